"""The rules of a task's life that hold in the tables whatever happened: which rows may stand beside each other.

The model of the store (integration/test_model.py) comes to every state there is and holds the tables against them after
each step, so that a rule that asks for too much is found there. The crash matrix and the soak, which kill processes and
cannot know what exactly the outcome is, hold theirs against the same rules.

What is not here is what only one of them can know. The model knows each call and the answer to it: it computes the one
row that must be there (which outcome leads to which state, who is charged with a death). The soak knows what producers,
tasks and faults wrote into a ledger: it asks whether there is a reason for what is there (a second run, a crash, a
cancellation).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fbtasks.states import State

CRASH_LIMIT = 3
"""That of an app that names none."""
WORKER_LOST = "WorkerLost"
IDS = {
    "workers": "QUEUE_PROCESS", "payloads": "QUEUE_PAYLOAD", "results": "QUEUE_RESULT", "task_ids": "QUEUE_TASK_ID",
    "cancels": "QUEUE_CANCEL",
}  # fmt: skip
LIVE = "SELECT ID, STATE, WORKER_ID, TRY_COUNT, CRASH_COUNT FROM QUEUE_TASK"
HISTORY = "SELECT ID, STATE, NULL, TRY_COUNT, CRASH_COUNT, ERROR_TYPE FROM QUEUE_HISTORY"
TRANSITIONS = {
    State.READY: {State.RUNNING, State.PARKED, State.CANCELLED},
    State.SCHEDULED: {State.READY, State.HELD, State.CANCELLED},
    State.RUNNING: {
        State.SUCCEEDED, State.FAILED, State.CANCELLED,
        State.SCHEDULED, State.READY, State.PARKED, State.HELD, State.AWAITING,
    },
    State.PARKED: {State.RUNNING, State.READY, State.HELD, State.FAILED, State.CANCELLED},
    State.HELD: {State.READY, State.RUNNING, State.PARKED, State.CANCELLED},
    State.AWAITING: {
        State.READY, State.SCHEDULED, State.HELD, State.RUNNING, State.PARKED, State.FAILED, State.CANCELLED,
    },
    State.SUCCEEDED: set[State](),
    State.FAILED: {State.READY, State.HELD, State.AWAITING},
    State.CANCELLED: {State.READY, State.HELD, State.AWAITING},
}  # fmt: skip
"""From each state, the states a task may go to next. FAILED and CANCELLED lead back by an operator's retry."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be, with what shows it."""

    rule: str
    subject: str
    evidence: tuple[object, ...] = ()

    def __str__(self):
        return "\n".join([f"{self.rule}: {self.subject}", *(f"      {line}" for line in self.evidence)])


@dataclass(frozen=True, slots=True)
class Row:
    """A row of QUEUE_TASK or of QUEUE_HISTORY."""

    id: int
    state: int = State.SUCCEEDED
    worker_id: int | None = None
    tries: int = 1
    crashes: int = 0
    error_type: str | None = None

    @property
    def subject(self):
        """What a violation calls it."""
        return f"id {self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The tables at one moment; of those beside the tasks, the ids."""

    live: Sequence[Row] = ()
    history: Sequence[Row] = ()
    workers: frozenset[int] = frozenset()
    payloads: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()
    task_ids: frozenset[int] = frozenset()
    cancels: frozenset[int] = frozenset()


def ids(query):
    """The ids of *Rows*; *query* returns the rows of a statement."""
    return {name: frozenset(id for (id,) in query(f"SELECT ID FROM {table}")) for name, table in IDS.items()}


def read(query):
    """The tables; *query* returns the rows of a statement."""
    return Rows(live=[Row(*row) for row in query(LIVE)], history=[Row(*row) for row in query(HISTORY)], **ids(query))


def broken(rows, *, crash_limit=CRASH_LIMIT, at_rest=True, orphans=False):
    """The rules that *rows* break.

    *at_rest*: nothing runs any longer, and the last worker has left. With *orphans*, a worker may have left a task
    behind that it could not give back, such as one whose row is locked: the next maintenance of another one does that.
    """
    found = [*counts(rows, crash_limit), *belongings(rows)]
    if at_rest or not orphans:
        found += [
            Violation("a running task's worker is not registered", row.subject, (row,))
            for row in rows.live
            if row.state == State.RUNNING and row.worker_id is not None and row.worker_id not in rows.workers
        ]
    if at_rest:  # a request that came too late goes at the next heartbeat
        strays = rows.cancels - {row.id for row in rows.live}
        found += [Violation("a row of QUEUE_CANCEL has no live task", f"id {id}") for id in sorted(strays)]
        found += [Violation("a worker is registered that is gone", f"id {id}") for id in sorted(rows.workers)]
    return found


def counts(rows, crash_limit):
    """States, tries and crashes of each task."""
    for row in rows.live:
        if not State(row.state).live:
            yield Violation("a task in QUEUE_TASK has ended", row.subject, (row,))
        if (row.state == State.RUNNING) != (row.worker_id is not None):
            yield Violation("a task has a worker and does not run, or runs without", row.subject, (row,))
        if row.crashes >= crash_limit:
            yield Violation("a task goes on whose crashes have reached the limit", row.subject, (row,))
    for row in rows.history:
        if State(row.state).live:
            yield Violation("a task in QUEUE_HISTORY has not ended", row.subject, (row,))
        if row.state == State.SUCCEEDED and row.tries < 1:
            yield Violation("a task succeeded without a try", row.subject, (row,))
        if row.crashes > crash_limit or (row.crashes == crash_limit and row.state == State.SUCCEEDED):
            yield Violation("a task went on whose crashes had reached the limit", row.subject, (row,))
        if WORKER_LOST in (row.error_type or "") and row.crashes < crash_limit:
            what = f"{row.subject}: {row.crashes} of {crash_limit}"
            yield Violation("a task failed before its crashes reached the limit", what, (row,))


def belongings(rows):
    """Each task is in one table, and what belongs to tasks has one; a success needs its payload no longer."""
    live, history = {row.id for row in rows.live}, {row.id for row in rows.history}
    succeeded = {row.id for row in rows.history if row.state == State.SUCCEEDED}
    for rule, strays in (
        ("an id is both in QUEUE_TASK and in QUEUE_HISTORY", live & history),
        ("a row of QUEUE_PAYLOAD has no task", rows.payloads - live - history),
        ("a row of QUEUE_PAYLOAD is that of a success", (rows.payloads & succeeded) - live),
        ("a row of QUEUE_RESULT has no finished task", rows.results - history),
        ("a row of QUEUE_TASK_ID has no task", rows.task_ids - live - history),
    ):
        for id in sorted(strays):
            yield Violation(rule, f"id {id}")
