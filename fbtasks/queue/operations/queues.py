"""Operations on queues: list, count, purge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.queue.operations.choosing import InCode
from fbtasks.queue.register import processes
from fbtasks.queue.results import QueueRow as QueueRow
from fbtasks.queue.results import StatRow as StatRow

_KNOWN_FOR: Final = timedelta(days=30)
"""How long a queue is known in which there is no task any more."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of what has ended, and what waits and runs."""

    counters: list[StatRow]
    queues: list[QueueRow]


def list_queues(database: Database, queue: str | None = None, in_code: InCode = None) -> list[QueueRow]:
    """Returns the queues that hold live tasks, that a worker serves or that an app limits; with *queue* that one alone.

    Raises :class:`ConfigurationError` when *queue* is not known, as :func:`check_queue` does.
    """

    def read(session: Session) -> list[QueueRow]:
        counted = results.queues(session, processes.serving(processes.workers(session)))
        if queue is not None and all(row.queue != queue for row in counted):
            check_queue(database, session, queue, in_code)
            counted.append(QueueRow(queue=queue))
        found = described(database, session, counted)
        if queue is not None:
            return [found[queue]]
        named = {row.queue for row in counted}
        return [found[name] for name in sorted(found) if name in named or found[name].says_something]

    return database.use(read)


def described(database: Database, session: Session, rows: Iterable[QueueRow]) -> dict[str, QueueRow]:
    """Returns *rows* by their queues, with what features know of these; and other queues of which something is told."""
    found = {row.queue: row for row in rows}
    for feature in database.features:
        feature.describe_queues(session, found)
    for (name,) in session.read("paused_queues"):
        found[name] = replace(found.get(name) or QueueRow(queue=name), paused=True, is_open=False)
    return found


def get_statistics(
    database: Database, window: timedelta, queue: str | None = None, in_code: InCode = None
) -> Statistics:
    """Returns the counters of the last *window* (see :func:`fbtasks.queue.results.stats`), of *queue* alone if given.

    Raises :class:`ConfigurationError` when *queue* is not known, as :func:`check_queue` does.
    """

    def read(session: Session) -> Statistics:
        if queue is not None:
            check_queue(database, session, queue, in_code)
        counters, live = results.stats(session, window), results.queues(session)
        found = described(database, session, live)
        return Statistics(
            [row for row in counters if queue in (None, row.queue)],
            [found[row.queue] for row in live if queue in (None, row.queue)],
        )

    return database.use(read)


def count_waiting(database: Database, queue: str, in_code: InCode = None) -> int:
    """Returns how many tasks of *queue* :func:`purge` would delete. Raises :class:`ConfigurationError` as it does."""
    (row,) = list_queues(database, queue, in_code)
    return row.waiting


def purge(
    database: Database, queue: str, in_code: InCode = None, deleted: Callable[[int], object] | None = None
) -> int:
    """Deletes all waiting tasks of *queue*: ready, scheduled, parked and held ones. Returns how many.

    *deleted* is called again and again, with how many more are gone for good. Raises :class:`ConfigurationError` when
    *queue* is not known, as :func:`check_queue` does.
    """
    with database.session() as session:
        check_queue(database, session, queue, in_code)
        total = 0
        while gone := session.call("FBTASKS_OPERATOR.PURGE", queue, tasks.BATCH):
            total += gone
            if deleted is not None:
                deleted(gone)
        return total


def check_queue(database: Database, session: Session, queue: str, in_code: InCode = None) -> None:
    """Raises :class:`ConfigurationError` for a queue that is not known.

    Known are those that a task or a worker has, or a task had in the last days; those of which something is told to the
    database; and those that the app's code names, of which *in_code* tells.
    """
    known = {head.queue for head in results.heads(session)}
    known |= {name for worker in processes.workers(session) for name in worker.queues}
    known |= {row.queue for row in results.stats(session, _KNOWN_FOR) if row.queue}
    known |= described(database, session, ()).keys()
    if queue in known:
        return
    known.update(() if in_code is None else in_code())
    if queue not in known:
        names = ", ".join(sorted(known)) or "none"
        whose = "no task and no worker has it" if in_code is None else "no task and no worker has it, nor does the app"
        remedy = " One that only an app names is known with -A MODULE." if in_code is None else ""
        raise ConfigurationError(f"unknown queue {queue!r}: {whose}. Known queues: {names}.{remedy}")
