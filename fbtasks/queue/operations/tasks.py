"""Operations on tasks: list, show, retry, cancel, discard, prune."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fbtasks.database.database import Database
from fbtasks.errors import TaskNotFound
from fbtasks.firebird.session import Session
from fbtasks.queue import holds, results, tasks
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.operations.waiting import hold_names, look
from fbtasks.queue.results import Filter as Filter
from fbtasks.queue.spool import Spool
from fbtasks.queue.upkeep.housekeeping import prune as prune_batches
from fbtasks.states import State
from fbtasks.system.showing import command_line
from fbtasks.tasks.call import Stored, TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

_PART: Final = 500
"""Tasks of a list whose holds are read together."""
RETRY_BATCH: Final = 500
"""Tasks that :func:`retry_failed` puts back in one transaction."""
_ALL_BATCHES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """All that the database has of one task."""

    row: TaskRow
    arguments: Payload | None
    """Positional and keyword arguments. None when they are no longer kept."""
    result: Payload | None
    """None unless the task has returned."""
    traceback: str | None
    facts: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """What features say of it while it has not ended: by the names in JSON the text for people and the value."""
    asked_for: int | None = None
    """The id of the task that was asked for, when it was merged into this one."""
    why: list[str] = field(default_factory=list)
    """Of a task that waits: what keeps it from running, as far as it is more than its turn; and what to do."""


@dataclass(frozen=True, slots=True)
class TaskChange:
    """The effect of a change on one task."""

    given: str
    """The id as the caller wrote it."""
    id: int
    outcome: str
    """One of "retried", "discarded", "cancelled", "requested" (a running task, whose worker was asked to stop it) and
    "unchanged"."""
    state: str | None
    """The name of the task's state afterwards. None when the task is no longer there."""


@dataclass(frozen=True, slots=True)
class TaskChanges:
    """The effects of a change on all tasks that it was given."""

    tasks: list[TaskChange]
    condition: str
    """Which tasks can be changed this way: the reason why the others were refused."""

    @property
    def count(self) -> int:
        """How many were changed, without those whose worker was asked to."""
        return len(self.tasks) - len(self.requested) - len(self.refused)

    @property
    def requested(self) -> list[TaskChange]:
        """Running tasks whose worker was asked to stop them."""
        return [change for change in self.tasks if change.outcome == "requested"]

    @property
    def refused(self) -> list[TaskChange]:
        """Tasks that were left as they are."""
        return [change for change in self.tasks if change.outcome == "unchanged"]


@contextmanager
def list_tasks(
    database: Database, state: State, wanted: Filter, app: FBTasks | None = None
) -> Iterator[tuple[Spool[TaskRow], bool]]:
    """For the block, tasks in one state, in the order of :func:`results.listing`, and whether there are more of them.

    However many they are, few are in memory at once, and no transaction is open while they are shown. Raises
    :class:`ConfigurationError` when the filter names a queue that is not known, as :func:`check_queue` does.
    """

    def read(session: Session) -> tuple[Spool[TaskRow], bool]:
        if wanted.queue is not None:
            check_queue(database, session, wanted.queue, app)
        found = results.listing(session, state, replace(wanted, limit=wanted.limit + 1))
        rows = Spool(islice(found, wanted.limit))
        more = bool(list(found))
        if state is not State.HELD:
            return rows, more
        with rows:
            return Spool(_with_waits(database, session, rows)), more

    rows, more = database.use(read)
    with rows:
        yield rows, more


def _with_waits(database: Database, session: Session, rows: Iterable[TaskRow]) -> Iterator[TaskRow]:
    rest = iter(rows)
    while part := list(islice(rest, _PART)):
        found = holds.holds(session, [row.id for row in part])
        names = hold_names(database, session, {hold for some in found.values() for hold in some})
        for row in part:
            yield replace(row, waits_for=[names[hold] for hold in found.get(row.id, ())])


def get_task(database: Database, task_id: str) -> TaskDetail:
    """Returns one task with its arguments and its outcome: that into which it was merged, if it was.

    Raises :class:`TaskNotFound`.
    """

    def read(session: Session) -> TaskDetail:
        given = _find(session, task_id)
        number = results.answering(session, given)
        row = results.find(session, number)
        if row is None:
            raise _not_found(task_id)
        call = results.call_of(session, number)
        stored = results.outcome(session, number)
        waits_for, why, facts = look(database, session, row)
        return TaskDetail(
            replace(row, waits_for=waits_for),
            None if call is None or call[1] is None else Payload(call[0], call[1]),
            _result(stored),
            None if stored is None else stored.traceback,
            facts,
            given if given != number else None,
            why,
        )

    return database.use(read)


def _result(stored: Stored | None) -> Payload | None:
    if stored is None or stored.state is not State.SUCCEEDED:
        return None
    return Payload(stored.content_type or JSON_TYPE, stored.result or b"null")


def find_number(database: Database, task_id: str) -> int:
    """Returns the database's id of a task by either of its ids. Raises :class:`TaskNotFound`."""
    return database.use(lambda session: _find(session, task_id))


def retry(database: Database, task_ids: Iterable[str]) -> TaskChanges:
    """Puts failed and cancelled tasks back into their queues.

    Raises :class:`TaskNotFound` for an id that does not exist, before any task is changed.
    """
    condition = "only failed and cancelled tasks are put back"
    changes = _change(
        database, task_ids, lambda t, task: t.call("FBTASKS_OPERATOR.RETRY", task) and "retried", condition
    )
    step = next((each.id for each in changes.refused if each.state in ("failed", "cancelled")), None)
    if step is None:
        return changes
    look = command_line("fbtasks inspect workflow {}", step)
    follows = f"a step of a workflow with the task that it follows: {look}"
    return replace(changes, condition=f"{condition}, and {follows}")


def retry_failed(database: Database, wanted: Filter, app: FBTasks | None = None) -> int:
    """Puts back all failed tasks of the filter, in batches. Returns how many.

    ``until`` and ``limit`` of the filter do not count. Tasks that fail again meanwhile are left. Raises
    :class:`ConfigurationError` when the filter names a queue that is not known, as :func:`check_queue` does.
    """
    with database.session() as session:
        if wanted.queue is not None:
            check_queue(database, session, wanted.queue, app)
        wanted = replace(wanted, until=results.now(session), limit=RETRY_BATCH)
        total = 0
        while ids := [b"%019d" % row.id for row in results.listing(session, State.FAILED, wanted)]:
            done = session.call("FBTASKS_OPERATOR.RETRY_MANY", b"".join(ids), 0, 0)
            if not done:
                break
            total += done
        return total


def cancel(database: Database, task_ids: Iterable[str], *, terminate: bool = True) -> TaskChanges:
    """Cancels waiting tasks, and asks the workers of running ones to stop them.

    Without *terminate* a running one may end as it does, and is not tried again. Raises :class:`TaskNotFound` for an
    id that does not exist, before any task is changed.
    """
    condition = "only tasks that have not ended are cancelled"
    return _change(database, task_ids, partial(tasks.revoke, terminate=terminate), condition)


def discard(database: Database, task_ids: Iterable[str]) -> TaskChanges:
    """Deletes finished tasks for good.

    Raises :class:`TaskNotFound` for an id that does not exist, before any task is changed.
    """
    condition = "only tasks that have ended are discarded"
    return _change(
        database, task_ids, lambda t, task: t.call("FBTASKS_READER.DISMISS", task) and "discarded", condition
    )


def prune(database: Database) -> Iterator[int]:
    """Deletes results and failures that the app's settings do not keep any longer.

    Returns again and again how many more tasks are gone for good.
    """
    with database.session() as session:
        yield from prune_batches(session, database.settings, _ALL_BATCHES)


def _change(database: Database, task_ids: Iterable[str], change: Callable[..., Any], condition: str) -> TaskChanges:
    """Changes tasks one after the other, each in a transaction of its own; *change* returns the outcome, if any."""
    with database.session() as session:
        numbers = {task_id: results.answering(session, _find(session, task_id)) for task_id in task_ids}
        changes = []
        for given, number in numbers.items():
            outcome = session.run(partial(change, task=number)) or "unchanged"
            found = results.state(session, number)
            changes.append(TaskChange(given, number, outcome, None if found is None else found[0].name.lower()))
    return TaskChanges(changes, condition)


def _find(session: Session, task_id: str) -> int:
    number = results.find_id(session, task_id)
    if number is None or results.state(session, number) is None:
        raise _not_found(task_id)
    return number


def _not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"there is no task {task_id!r}; see: fbtasks inspect failed, active, ready or scheduled. One that has "
        "succeeded is not kept where its result is ignored, as that of a handler."
    )
