"""Operations on queues: list, count, purge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.queue.register import processes
from fbtasks.queue.results import QueueRow as QueueRow
from fbtasks.queue.results import StatRow as StatRow

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

_KNOWN_FOR: Final = timedelta(days=30)
"""How long a queue is known in which there is no task any more."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of what has ended, and what waits and runs."""

    counters: list[StatRow]
    queues: list[QueueRow]


def list_queues(database: Database, queue: str | None = None, app: FBTasks | None = None) -> list[QueueRow]:
    """Returns the queues that hold live tasks, that a worker serves or that an app limits; with *queue* that one alone.

    Raises :class:`ConfigurationError` when *queue* is not known, as :func:`check_queue` does.
    """

    def read(session: Session) -> list[QueueRow]:
        counted = results.queues(session, processes.serving(processes.workers(session)))
        if queue is not None and all(row.queue != queue for row in counted):
            check_queue(database, session, queue, app)
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


def list_beside(database: Database) -> list[str]:
    """Returns sentences on what else the database holds that others than workers run."""
    return database.use(lambda session: [each for feature in database.features for each in feature.beside(session)])


def get_statistics(
    database: Database, window: timedelta, queue: str | None = None, app: FBTasks | None = None
) -> Statistics:
    """Returns the counters of the last *window* (see :func:`fbtasks.queue.results.stats`), of *queue* alone if given.

    Raises :class:`ConfigurationError` when *queue* is not known, as :func:`check_queue` does.
    """

    def read(session: Session) -> Statistics:
        if queue is not None:
            check_queue(database, session, queue, app)
        counters, live = results.stats(session, window), results.queues(session)
        found = described(database, session, live)
        return Statistics(
            [row for row in counters if queue in (None, row.queue)],
            [found[row.queue] for row in live if queue in (None, row.queue)],
        )

    return database.use(read)


def purge(database: Database, queue: str, app: FBTasks | None = None) -> Iterator[int]:
    """Deletes all waiting tasks of *queue*: ready, scheduled, parked and held ones.

    Returns again and again how many more are gone for good. Raises :class:`ConfigurationError` when *queue* is not
    known, as :func:`check_queue` does.
    """
    with database.session() as session:
        check_queue(database, session, queue, app)
        while gone := session.call("FBTASKS_OPERATOR.PURGE", queue, tasks.BATCH):
            yield gone


def check_queue(database: Database, session: Session, queue: str, app: FBTasks | None = None) -> None:
    """Raises :class:`ConfigurationError` for a queue that is not known.

    Known are those that a task or a worker has, or a task had in the last days; those of which something is told to the
    database; and those that the code of *app* names.
    """
    known = {name for name, *_ in results.heads(session)}
    known |= {name for worker in processes.workers(session) for name in worker.queues}
    known |= {row.queue for row in results.stats(session, _KNOWN_FOR) if row.queue}
    known |= described(database, session, ()).keys()
    if queue in known:
        return
    known.update(() if app is None else app.queues_known())
    if queue not in known:
        names = ", ".join(sorted(known)) or "none"
        whose = "no task and no worker has it" if app is None else "no task and no worker has it, nor does the app"
        remedy = " One that only an app names is known with -A MODULE." if app is None else ""
        raise ConfigurationError(f"unknown queue {queue!r}: {whose}. Known queues: {names}.{remedy}")
