"""Operations on workers: list, and whether they serve the queues in time."""

from __future__ import annotations

from dataclasses import dataclass

from fbtasks.database.database import Database
from fbtasks.features.limits import operations as limits
from fbtasks.features.limits.operations import LimitProblem
from fbtasks.features.queues.operations import QueueRow, with_policies
from fbtasks.features.schedules import operations as schedules
from fbtasks.features.schedules.operations import ScheduleProblem
from fbtasks.features.sources.operations import SourceProblem, find_problems
from fbtasks.features.sources.store import polling
from fbtasks.features.sources.store.polling import Failing
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import WorkerRow


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the queues are served."""

    workers: int
    """How many workers are alive."""
    unserved: list[str]
    """Queues that no worker serves, and that have ready or held tasks, or for which changes or events wait."""
    unknown: list[tuple[str, str]]
    """Queues and names of tasks that are parked, since no registered worker knows the name; of the first 200 alone."""
    overdue: dict[str, float]
    """Queues in which a ready task waits for too long, with the seconds for which the oldest one does."""
    failing: list[Failing]
    """Polls of tables that fail, or fail for some rows."""
    sources: list[SourceProblem]
    """What is wrong with subscriptions."""
    schedules: list[ScheduleProblem]
    """What is wrong with schedules."""
    limits: list[LimitProblem]
    """Limits that are not defined, and keys that are closed."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return bool(self.workers) and not (
            self.unserved
            or self.unknown
            or self.overdue
            or self.sources
            or self.failing
            or self.schedules
            or self.limits
        )


def list_workers(database: Database) -> list[WorkerRow]:
    """Returns the registered workers, the oldest first."""
    return database.use(processes.workers)


def get_health(database: Database, max_age: float, max_lag: float = 900.0) -> Health:
    """Returns how the queues are served, and what feeds them.

    A ready task may wait for *max_age* seconds, and a change for *max_lag* seconds to become a task.
    """

    def read(session: Session) -> Health:
        alive = [worker for worker in processes.workers(session) if worker.lease_left > 0]
        serving, heads = processes.serving(alive), results.heads(session)
        since = {head.queue: head.since for head in heads if head.state is State.READY}
        names = {*serving, *(head.queue for head in heads)}
        rows = with_policies(session, [QueueRow(queue=name, waiting_since=since.get(name)) for name in names])
        now = results.now(session)
        # In a queue with a window nothing waits for a worker before that opens.
        ages = {
            row.queue: (now - max(row.waiting_since, row.opens or row.waiting_since)).total_seconds()
            for row in rows
            if row.waiting_since is not None and row.is_open
        }
        open_for = {
            row.queue: (now - row.opens).total_seconds() if row.is_open and row.opens else 0.0
            for row in rows
            if row.window is not None
        }
        found = find_problems(session, max_lag, open_for)
        waits = {head.queue for head in heads if head.state in (State.READY, State.HELD)}
        return Health(
            workers=len(alive),
            unserved=sorted((waits | found.queues) - serving.keys()),
            unknown=_unknown(session),
            overdue={queue: age for queue, age in ages.items() if age > max_age},
            failing=polling.failing(session),
            sources=found.problems,
            schedules=schedules.find_problems(session),
            limits=limits.find_problems(session),
        )

    return database.use(read)


def _unknown(session: Session) -> list[tuple[str, str]]:
    parked = session.read("some_parked_names")
    known = processes.task_names(session) if parked else set()
    return sorted((queue, name) for queue, name in parked if name not in known)
