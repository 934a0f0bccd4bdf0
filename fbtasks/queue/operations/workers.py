"""Operations on workers: list, and whether they serve the queues in time."""

from __future__ import annotations

from dataclasses import dataclass

from fbtasks.database.database import Database
from fbtasks.database.migrate import check_identity
from fbtasks.errors import ForeignDatabaseError
from fbtasks.feature import Asked, Problem
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.operations.queues import QueueRow, described
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import WorkerRow


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the queues are served."""

    workers: int
    """How many workers are alive."""
    served: list[str]
    """The queues that workers serve which are alive."""
    unserved: list[str]
    """Queues that no worker serves, and that have ready or held tasks, or for which changes or events wait."""
    unknown: list[tuple[str, str]]
    """Queues and names of tasks that are parked, since no registered worker knows the name; of the first 200 alone."""
    overdue: dict[str, float]
    """Queues in which a ready task waits for too long, with the seconds for which the oldest one does."""
    problems: dict[str, list[Problem]]
    """What is wrong for features, by their names."""
    remarks: list[Problem]
    """What they have to say that is no problem."""
    copy: str | None = None
    """Why no worker runs the tasks, when the database was restored or moved, and not adopted."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.copy or self.unserved or self.unknown or self.overdue or any(self.problems.values())
        return bool(self.workers) and not wrong


def list_workers(database: Database) -> list[WorkerRow]:
    """Returns the registered workers, the oldest first."""
    return database.use(processes.workers)


def get_health(database: Database, max_age: float, max_lag: float = 900.0) -> Health:
    """Returns how the queues are served, and what features find wrong.

    A ready task may wait for *max_age* seconds, and a change for *max_lag* seconds to become a task.
    """

    def read(session: Session) -> Health:
        alive = [worker for worker in processes.workers(session) if worker.alive]
        serving, heads = processes.serving(alive), results.heads(session)
        since = {name: moment for name, state, moment in heads if state is State.READY}
        names = {*serving, *(name for name, *_ in heads)}
        rows = described(database, session, [QueueRow(queue=name, waiting_since=since.get(name)) for name in names])
        now = results.now(session)
        ages = {row.queue: age for row in rows.values() if (age := row.waited(now)) is not None}
        waiting = {name for name, state, _ in heads if state in (State.READY, State.HELD)}
        asked = Asked(max_age, max_lag, now, rows, waiting)
        found = {feature.name: list(feature.problems(session, asked)) for feature in database.features}
        told = () if alive else (each for feature in database.features for each in feature.beside(session))
        beside = [Problem(each, is_wrong=False) for each in told]
        return Health(
            workers=len(alive),
            served=sorted(serving),
            unserved=sorted(waiting - serving.keys()),
            unknown=_unknown(session),
            overdue={queue: age for queue, age in ages.items() if age > max_age},
            problems={name: [each for each in some if each.is_wrong] for name, some in found.items()},
            remarks=[each for some in found.values() for each in some if not each.is_wrong] + beside,
            copy=_copy(session),
        )

    return database.use(read)


def _copy(session: Session) -> str | None:
    try:
        check_identity(session)
    except ForeignDatabaseError as error:
        return str(error)
    return None


def _unknown(session: Session) -> list[tuple[str, str]]:
    parked = session.read("some_parked_names")
    known = processes.task_names(session) if parked else set()
    return sorted((queue, name) for queue, name in parked if name not in known)
