"""Operations on queues: list, count, purge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session
from fbtasks.store import processes, results, tasks
from fbtasks.store.database import Database
from fbtasks.store.results import QueueRow as QueueRow
from fbtasks.store.results import StatRow as StatRow

_KNOWN_FOR: Final = timedelta(days=30)
"""How long a queue is known in which there is no task any more."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of what has ended, and what waits and runs."""

    counters: list[StatRow]
    queues: list[QueueRow]


def list_queues(database: Database, queue: str | None = None) -> list[QueueRow]:
    """Returns the queues that hold live tasks or that a worker serves; with *queue* that one alone, if need be empty.

    Raises :class:`ConfigurationError` when no task and no worker has *queue*.
    """

    def read(session: Session) -> list[QueueRow]:
        rows = results.queues(session, processes.serving(processes.workers(session)))
        if queue is None:
            return rows
        found = [row for row in rows if row.queue == queue]
        if not found:
            check_queue(session, queue)
        return found or [QueueRow(queue=queue)]

    return database.use(read)


def get_statistics(database: Database, window: timedelta, queue: str | None = None) -> Statistics:
    """Returns the counters of the last *window* (see :func:`fbtasks.store.results.stats`), of *queue* alone if given.

    Raises :class:`ConfigurationError` when no task and no worker has *queue*.
    """

    def read(session: Session) -> Statistics:
        counters, queues = results.stats(session, window), results.queues(session)
        if queue is None:
            return Statistics(counters, queues)
        check_queue(session, queue)
        return Statistics(
            [row for row in counters if row.queue == queue], [row for row in queues if row.queue == queue]
        )

    return database.use(read)


def count_waiting(database: Database, queue: str) -> int:
    """Returns how many tasks of *queue* :func:`purge` would delete. Raises :class:`ConfigurationError` as it does."""
    (row,) = list_queues(database, queue)
    return row.ready + row.scheduled + row.parked


def purge(database: Database, queue: str) -> int:
    """Deletes all waiting tasks of *queue*: ready, scheduled and parked ones. Returns how many.

    Raises :class:`ConfigurationError` when no task and no worker has *queue*.
    """
    with database.session() as session:
        check_queue(session, queue)
        total = 0
        while gone := session.run(lambda t: tasks.purge(t, queue)):
            total += gone
        return total


def check_queue(session: Session, queue: str) -> None:
    """Raises :class:`ConfigurationError` unless a task or a worker has *queue*, or a task had it in the last days."""
    known = {row.queue for row in results.queues(session)}
    known |= {name for worker in processes.workers(session) for name in worker.queues}
    known |= {row.queue for row in results.stats(session, _KNOWN_FOR) if row.queue}
    if queue not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"unknown queue {queue!r}: no task and no worker has it. Known queues: {names}.")
