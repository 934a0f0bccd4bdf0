"""Operations on queues and names of tasks: nothing of them begins while they are paused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fbtasks.checks import did_you_mean
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session, Transaction
from fbtasks.services.queues import check_queue
from fbtasks.store import limits, processes, tasks
from fbtasks.store.database import Database


@dataclass(frozen=True, slots=True)
class Paused:
    """What was paused, or goes on."""

    queues: list[str]
    tasks: list[str]
    """The names of tasks. In both lists is what changed alone."""
    put_back: int = 0
    """How many parked tasks went back into their queues."""


def pause(
    database: Database, queues: Iterable[str] = (), names: Iterable[str] = (), known: Iterable[str] = ()
) -> Paused:
    """Pauses queues, from which nothing is claimed any more, and names, whose tasks are parked when their turn comes.

    It holds at the next claim of every worker; what was claimed before goes on. *known* are names that the caller
    knows beside those of workers and of tasks that wait. Raises :class:`ConfigurationError` for a queue or a name that
    is not known; then nothing is changed.
    """
    queues, names = list(queues), list(names)

    def work(session: Session) -> Paused:
        for queue in queues:
            check_queue(session, queue)
        for name in names:
            _check_name(session, name, known)
        return session.run(lambda t: _set(t, queues, names, paused=True))

    return database.use(work)


def resume(database: Database, queues: Iterable[str] = (), names: Iterable[str] = ()) -> Paused:
    """Goes on after :func:`pause`, and puts what was parked back into its queue, as it was.

    Raises :class:`ConfigurationError` for a queue that is not known.
    """
    queues, names = list(queues), list(names)

    def work(session: Session) -> Paused:
        for queue in queues:
            check_queue(session, queue)
        changed = session.run(lambda t: _set(t, queues, names, paused=False))
        return Paused(changed.queues, changed.tasks, sum(_put_back(session, name) for name in names))

    return database.use(work)


def paused_names(database: Database) -> list[str]:
    """Returns the names of tasks that are paused."""
    return database.use(limits.paused_names)


def _set(transaction: Transaction, queues: list[str], names: list[str], *, paused: bool) -> Paused:
    return Paused(
        [queue for queue in queues if limits.pause_queue(transaction, queue, paused=paused)],
        [name for name in names if limits.pause_name(transaction, name, paused=paused)],
    )


def _put_back(session: Session, name: str) -> int:
    total = 0
    while some := session.run(lambda t: limits.unpark(t, name)):
        total += some
    return total


def _check_name(session: Session, name: str, known: Iterable[str]) -> None:
    names = {*known, *processes.task_names(session)}
    if name not in names and not tasks.is_live(session, name):
        hint = did_you_mean(name, names) or f" Known: {', '.join(sorted(names)) or 'none'}."
        raise ConfigurationError(f"no worker knows a task named {name!r}, and none of that name waits.{hint}")
