"""Operations on workers: list, stop, and whether they serve the queues in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fbtasks.database.database import Database
from fbtasks.database.migrate import check_identity
from fbtasks.errors import ConfigurationError, ForeignDatabaseError
from fbtasks.feature import Asked, Problem
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.operations.queues import QueueRow, described
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.system.checks import did_you_mean
from fbtasks.system.showing import command_line, span
from fbtasks.tasks.call import WorkerRow

MAX_AGE: Final = 300.0
"""Seconds for which a task may be ready, unless the caller says otherwise."""
MAX_LAG: Final = 900.0
"""Seconds for which a change may wait to become a task."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the queues are served."""

    workers: int
    """How many workers are alive."""
    served: list[str]
    """The queues that workers serve which are alive."""
    unserved: list[str]
    """Queues that no worker serves, and that have ready or held tasks, or for which changes or events wait."""
    unknown: list[tuple[str, str, str]]
    """Queues and names of tasks that are parked, since no registered worker knows the name, and which one may have been
    meant, as a question; of the first of each queue alone."""
    overdue: dict[str, float]
    """Queues in which a ready task waits for too long, with the seconds for which the oldest one does."""
    problems: Mapping[str, Sequence[Problem]]
    """What is wrong for features, by their names."""
    remarks: Sequence[Problem]
    """What they have to say that is no problem."""
    copy: str | None = None
    """Why no worker runs the tasks, when the database was restored or moved, and not adopted."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return next(self.wrong(), None) is None

    def wrong(self) -> Iterator[Problem]:
        """Yields all that is wrong."""
        if self.copy is not None:
            yield Problem(self.copy, id="identity")
        for queue in self.unserved:
            meant = did_you_mean(queue, self.served, 0.75)  # imports is not reports
            move = f"{meant} To move its tasks: {command_line('fbtasks move --from {} --to QUEUE', queue)}"
            start = f" Start one: {command_line('fbtasks worker -A MODULE -Q {}', queue)}"
            remedy = move if meant else start
            said = f"no worker serves it.{remedy}" if self.served else "no worker serves it"
            yield Problem(said, f"queue {queue}", id="unserved")
        for queue, name, meant in self.unknown:
            said = f"no worker knows a task named {name}{meant} (fbtasks inspect parked)"
            yield Problem(said, f"queue {queue}", id="parked-names")
        for queue, seconds in self.overdue.items():
            yield Problem(f"a task has waited for {span(seconds)}", f"queue {queue}", id="overdue")
        for some in self.problems.values():
            yield from some
        if not self.workers:
            yield Problem("no worker is alive (fbtasks worker -A MODULE)", id="workers")


def stop(database: Database, names: Sequence[str]) -> list[str]:
    """Has workers end, which claim nothing more from their next heartbeat on and leave when what they run has ended.

    *names* are those of workers, or their ids. Returns the names of those that had not been told yet. Raises
    :class:`ConfigurationError` for one that is not registered, and for the name of several that live and were not told
    before; then none is told.
    """

    def work(session: Session) -> list[str]:
        rows = processes.workers(session)
        known = {row.name: [each for each in rows if each.name == row.name and each.alive] or [row] for row in rows}
        known |= {str(row.id): [row] for row in rows}
        chosen: dict[int, str] = {}
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"there is no worker {name!r}.{did_you_mean(name, known)} They are in: fbtasks inspect workers"
                )
            some = [each for each in known[name] if not each.draining]
            if len(some) > 1:
                which = ", ".join(f"{each.id} (pid {each.pid} at {each.host.partition('/')[0]})" for each in some)
                raise ConfigurationError(f"{len(some)} workers are named {name!r}: {which}. Give an id instead.")
            chosen |= {each.id: each.name for each in some}
        session.run(lambda t: [t.call("FBTASKS_OPERATOR.STOP_WORKER", each) for each in chosen])
        return [*chosen.values()]

    return database.use(work)


def list_workers(database: Database) -> list[WorkerRow]:
    """Returns the registered workers, the oldest first."""
    return database.use(processes.workers)


def get_health(database: Database, max_age: float, max_lag: float = MAX_LAG) -> Health:
    """Returns how the queues are served, and what features find wrong.

    A ready task may wait for *max_age* seconds, and a change for *max_lag* seconds to become a task.
    """

    def read(session: Session) -> Health:
        look = Look(database, session, max_age, max_lag)
        found = {feature.name: list(feature.problems(session, look.asked)) for feature in database.features}
        told = () if look.alive else (each for feature in database.features for each in feature.beside(session))
        beside = [Problem(each, is_wrong=False) for each in told]
        return look.health(
            {name: [each for each in some if each.is_wrong] for name, some in found.items()},
            [each for some in found.values() for each in some if not each.is_wrong] + beside,
        )

    return database.use(read)


class Look:
    """The workers and the queues at one moment, for those who judge them."""

    def __init__(self, database: Database, session: Session, max_age: float = MAX_AGE, max_lag: float = MAX_LAG):
        self._session = session
        self.workers = processes.workers(session)
        self.alive = [worker for worker in self.workers if worker.alive]
        self.serving, heads = processes.serving(self.alive), results.heads(session)
        since = {name: moment for name, state, moment in heads if state is State.READY}
        names = {*self.serving, *(name for name, *_ in heads)}
        rows = described(database, session, [QueueRow(queue=name, waiting_since=since.get(name)) for name in names])
        waiting = {name for name, state, _ in heads if state in (State.READY, State.HELD)}
        self.asked = Asked(max_age, max_lag, results.now(session), rows, waiting)
        """What features are asked."""

    def waits(self, least: float) -> dict[str, float]:
        """Returns the queues in which a ready task waits for more than so many seconds, with those of the oldest."""
        ages = {row.queue: row.waited(self.asked.now) for row in self.asked.queues.values()}
        return {queue: age for queue, age in ages.items() if age is not None and age > least}

    def health(self, problems: Mapping[str, Sequence[Problem]], remarks: Sequence[Problem]) -> Health:
        """Returns how the queues are served, with what features have said."""
        return Health(
            workers=len(self.alive),
            served=sorted(self.serving),
            unserved=sorted(self.asked.waiting - self.serving.keys()),
            unknown=unknown_names(self._session, State.PARKED),
            overdue=self.waits(self.asked.max_age),
            problems=problems,
            remarks=remarks,
            copy=_copy(self._session),
        )


def _copy(session: Session) -> str | None:
    try:
        check_identity(session)
    except ForeignDatabaseError as error:
        return str(error)
    return None


def unknown_names(session: Session, state: State) -> list[tuple[str, str, str]]:
    """Returns queues and names of tasks in *state* that no living worker knows, and a question for the name meant.

    The first tasks of each queue are looked at.
    """
    found = session.read("some_names", int(state))
    known = processes.task_names(session) if found else set()
    meant = {name: did_you_mean(name, known) for _, name in found if name not in known}
    return sorted((queue, name, meant[name] and f".{meant[name]}") for queue, name in found if name in meant)
