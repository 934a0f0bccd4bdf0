"""Reads states, outcomes, and the lists of operators."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.database.values import as_naive_utc, as_utc
from fbtasks.firebird.session import SNAPSHOT, Session
from fbtasks.queue.codec import chunks
from fbtasks.states import State
from fbtasks.tasks.call import Claim, Failed, Stored, TaskRow

STAT_DAYS: Final = 7
"""Whole days before today whose counters are kept by the hour and worker; of those before, by the day."""
_PART: Final = 500
"""Tasks of a list that are in memory at once."""
_DIGITS: Final = 19
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks a list holds. Times are UTC, both inclusive; ``limit`` is the most rows, after ``offset`` others."""

    queue: str | None = None
    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    offset: int = 0
    before: tuple[datetime, int] | None = None
    """Of finished tasks: those that the list has after the one with this FINISH_TIME and ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """How much waits and runs in a queue, and how many workers serve it."""

    queue: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    parked: int = 0
    held: int = 0
    awaiting: int = 0
    waiting_since: datetime | None = None
    """The earliest moment at which a task that is ready was both enqueued and due. An ``eta`` of years ago does not
    count."""
    workers: int = 0
    max_length: int | None = None
    """How many tasks that have not ended it may hold; None: any number."""
    is_open: bool = True
    """Whether its tasks may run now."""
    opens: datetime | None = None
    """Of a queue that is not open at any time: since when it is open, or when it opens next."""
    paused: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)
    """What else features say of it, by the names that it has in JSON."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The same for people, by the titles of columns."""

    @property
    def waiting(self) -> int:
        """How many of its tasks have not begun, or are to be tried again."""
        return self.ready + self.scheduled + self.parked + self.held + self.awaiting

    @property
    def length(self) -> int:
        """How many of its tasks have not ended."""
        return self.waiting + self.running

    def waited(self, now: datetime) -> float | None:
        """Seconds for which a task that is ready has waited for a worker. None: none is, or the queue is not open.

        In a queue that is open at some times alone nothing waits for a worker before it opens.
        """
        since = self.waiting_since
        return (now - max(since, self.opens or since)).total_seconds() if since is not None and self.is_open else None

    @property
    def says_something(self) -> bool:
        """Whether there is more to say of it than that it is there."""
        return bool(self.shown) or self.paused or self.max_length is not None or self.is_bounded_in_time

    @property
    def is_bounded_in_time(self) -> bool:
        """Whether its tasks may run at some times alone, as far as can be told while it is paused."""
        return self.opens is not None or not (self.is_open or self.paused)


@dataclass(frozen=True, slots=True)
class StatRow:
    """Counters of a queue. ``queue`` is empty for what belongs to none."""

    queue: str
    succeeded: int
    failed: int
    cancelled: int
    retried: int
    released: int
    elapsed_ms: int
    conflicts: int


def number_of(task: str) -> int | None:
    """The database's id when *task* is one as text; None for a ``task_id`` that a caller gave."""
    return int(task) if task.isascii() and task.isdigit() and len(task) < _DIGITS else None


def find_id(session: Session, task: str) -> int | None:
    """The database's id for an id as callers write it: the number, or the ``task_id`` given at enqueue."""
    number = number_of(task)
    return number if number is not None else numbers(session, [task]).get(task)


def numbers(session: Session, names: Iterable[str]) -> dict[str, int]:
    """The database's ids for ``task_id``s that callers gave: of those that it knows, and the caller's user may see."""
    possible = [name for name in names if not (name.isascii() and name.isdigit()) and len(name) <= _LONGEST_NAME]
    hashes = chunks(hashlib.sha256(name.encode("utf-8", "replace")).digest() for name in possible)
    packed = b"".join(session.read("FBTASKS_READER.NUMBERS", some)[0][0] for some in hashes)
    found = {name: int(packed[_DIGITS * at : _DIGITS * (at + 1)]) for at, name in enumerate(possible)}
    return {name: number for name, number in found.items() if number}


def state(session: Session, task: int) -> tuple[State, int] | None:
    """State and ended tries of a task, live or finished. None when the caller's user may not see it."""
    rows = session.read("FBTASKS_READER.STATE", task)
    return (State(rows[0][0]), rows[0][1]) if rows else None


def outcome(session: Session, task: int) -> Stored | None:
    """The outcome of a finished task. None when the caller's user may not see it."""
    rows = session.read("FBTASKS_READER.OUTCOME", task)
    return _stored(rows[0]) if rows else None


def outcomes(session: Session, tasks: Iterable[int]) -> dict[int, Stored | None]:
    """The outcomes of those of *tasks* that do not live; None for one that the caller's user does not know.

    One statement for 1,724 of them: that a task still lives costs next to nothing.
    """
    found: dict[int, Stored | None] = {}
    for packed in chunks(b"%0*d" % (_DIGITS, task) for task in tasks):
        for task, *row in session.read("FBTASKS_READER.OUTCOMES", packed):
            found[task] = None if row[0] is None else _stored(row)
    return found


def _stored(row: Sequence[Any]) -> Stored:
    state, *facts, inline, large = row
    return Stored(*(State(state), *facts, inline if large is None else bytes(large)))


def find(session: Session, task: int) -> TaskRow | None:
    """A task, live or finished."""
    # Finished first: a task goes from live to finished, and one that an operator puts back is found by the second.
    for query in ("finished", "live", "finished"):
        rows = session.read(query, task, more=" T.ID = ?")
        if rows:
            return _task(rows[0])
    return None


def find_all(session: Session, tasks: Sequence[int], *, live: bool) -> dict[int, TaskRow]:
    """Those of *tasks* that live, or those that have finished, by their ids."""
    numbers = ",".join(str(int(task)) for task in tasks)
    rows = session.read("live" if live else "finished", more=f" T.ID IN ({numbers})") if tasks else []
    return {row[0]: _task(row) for row in rows}


def answering(session: Session, task: int) -> int:
    """The number of the task that answers for *task*, which may have been merged into it."""
    rows = session.read("answering", task)
    return rows[0][0] if rows else task


def call_of(session: Session, task: int) -> tuple[str, bytes | None] | None:
    """Content type and payload of a task; the payload is None when it is no longer kept."""
    for query in ("live_call", "finished_call", "live_call"):  # an operator may put it back meanwhile
        rows = session.read(query, task)
        if rows:
            content_type, inline, large = rows[0]
            return content_type, inline if large is None else bytes(large)
    return None


def failure(session: Session, task: int, retries: int) -> tuple[Claim, Failed] | None:
    """The last claim of a task that has failed, and what it failed with; None when it has not failed.

    *retries*: how many tries had ended before. The payload is None where it may be in its own table.
    """
    found = session.read("FBTASKS_WORKER.FAILURE", task)
    if not found:
        return None
    task_id, name, queue, priority, start, most, content_type, payload, fed, error, message, trace, args = found[0]
    claim = Claim(
        task, 0, name, queue, priority, retries, 0, most, 10 * clock.to_ms(as_utc(start)), None, content_type, payload,
        task_id, gated=True, fed=fed,
    )  # fmt: skip
    return claim, Failed(error or "", message or "", trace or "", args)


def listing(session: Session, state: State, wanted: Filter) -> Iterator[TaskRow]:
    """Tasks in one state. They come in the order of an index, so none is sorted or counted.

    Finished ones are listed newest first, scheduled ones as they become due, and all others queue by queue, in the
    order in which they are claimed. No other ones are read from *session* before the last of them.
    """
    values: list[object] = [int(state)]
    if state is State.SCHEDULED:
        # STATE + 0: the engine is not to read all that the other index has of this state before.
        clauses = ["T.STATE + 0 = ?", "T.DUE_TIME >= TIMESTAMP '0001-01-01'"]
    else:
        clauses = ["T.STATE = ?"]
    column = "T.START_TIME" if state.live else "T.FINISH_TIME"
    for clause, value in (
        ("T.QUEUE = ?", wanted.queue),
        ("T.NAME = ?", wanted.name),
        (f"{column} >= ?", as_naive_utc(wanted.since)),
        (f"{column} <= ?", as_naive_utc(wanted.until)),
    ):
        if value is not None:
            clauses.append(clause)
            values.append(value)
    if wanted.before is not None:
        moment, number = wanted.before
        clauses.append("T.FINISH_TIME <= ? AND NOT (T.FINISH_TIME = ? AND T.ID >= ?)")  # with OR, all are read
        values += [as_naive_utc(moment), as_naive_utc(moment), number]
    if state is State.SCHEDULED:
        order = "T.DUE_TIME"
    elif state.live:
        order = "T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID"
    else:
        order = "T.STATE DESC, T.FINISH_TIME DESC, T.ID DESC"
    more = f" {' AND '.join(clauses)} ORDER BY {order} ROWS {wanted.offset + 1} TO {wanted.offset + wanted.limit}"
    for rows in session.read_in_parts("live" if state.live else "finished", *values, more=more, size=_PART):
        yield from map(_task, rows)


def queues(session: Session, serving: Mapping[str, int] | None = None) -> list[QueueRow]:
    """All queues that hold live tasks, and those in *serving*, which has the number of workers of each queue."""
    serving = serving or {}
    counts: dict[str, dict[str, Any]] = {queue: {} for queue in serving}
    oldest: dict[str, datetime] = {}
    for queue, number, count, earliest in session.read("queues"):
        state = State(number)
        counts.setdefault(queue, {})[state.name.lower()] = count
        if state is State.READY:
            oldest[queue] = as_utc(earliest)
    return [
        QueueRow(queue=queue, waiting_since=oldest.get(queue), workers=serving.get(queue, 0), **found)
        for queue, found in sorted(counts.items())
    ]


def heads(session: Session) -> list[tuple[str, State, datetime | None]]:
    """The queues and the states of the tasks in them: it costs the same however many tasks there are.

    Of those that are ready with the moment that :attr:`QueueRow.waiting_since` is.
    """
    return [(queue, State(state), as_utc(since)) for queue, state, since, _ in session.read("heads", 0)]


def bounded(session: Session, most: int) -> list[QueueRow]:
    """All queues that hold live tasks. Counts up to *most* tasks of each state, so that it never costs more."""
    found: dict[str, dict[str, Any]] = {}
    for queue, number, since, tasks in session.read("heads", most):
        state = State(number)
        facts = found.setdefault(queue, {"queue": queue})
        facts[state.name.lower()] = tasks
        if state is State.READY:
            facts["waiting_since"] = as_utc(since)
    return [QueueRow(**facts) for _, facts in sorted(found.items())]


def counted_since(now: datetime, window: timedelta | None) -> datetime:
    """Returns when the counters of the last *window* begin; None: since the queue was made.

    It is a whole hour, and before the last :data:`STAT_DAYS` days a whole day.
    """
    since = (now.replace(year=2000) if window is None else now - window).replace(minute=0, second=0, microsecond=0)
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=STAT_DAYS)
    return since.replace(hour=0) if since < begins else since


def stats(session: Session, window: timedelta | None) -> list[StatRow]:
    """Counters per queue over the last *window*, from :func:`counted_since` on."""
    with session.transaction(SNAPSHOT) as transaction:
        since = counted_since(transaction.value("now"), window)
        return [
            StatRow(row[0], *map(int, row[1:]))  # sums of BIGINT arrive as Decimal
            for row in transaction.rows("stats", since)
        ]


def now(session: Session) -> datetime:
    """The database's clock."""
    moment: datetime = session.read("now")[0][0]
    return as_utc(moment)


def _task(row: Sequence[Any]) -> TaskRow:
    return TaskRow(*(*row[:4], State(row[4]), row[5], *map(as_utc, row[6:10]), *row[10:]))
