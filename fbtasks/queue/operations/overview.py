"""All that can be told of the queue at a glance, however much it holds."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.operations.queues import QueueRow, StatRow, described
from fbtasks.queue.register import processes
from fbtasks.sheet import MOST
from fbtasks.tasks.call import WorkerRow

_FRESH: Final = 1.0
"""Seconds for which one look serves all who ask."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Queues, workers and counters at one moment."""

    time: datetime
    """The database's clock, in UTC."""
    queues: list[QueueRow]
    """Those that hold tasks, that a worker serves, or of which features have something to say, by their names.

    A count above :data:`fbtasks.sheet.MOST` stands for more.
    """
    workers: list[WorkerRow]
    counters: list[StatRow]
    transaction_gap: int
    """How many transactions have begun since the oldest one whose view of the database is still kept."""


def look(database: Database, window: timedelta | None = timedelta(hours=1)) -> Overview:
    """Returns what there is. Counters are those of the last *window*, as :func:`results.stats` has them."""
    return database.use(lambda session: read(database, session, window))


def read(database: Database, session: Session, window: timedelta | None = timedelta(hours=1)) -> Overview:
    """Does what :func:`look` does, with a session."""
    with session.reading():
        workers = processes.workers(session)
        serving = processes.serving(workers)
        rows = {row.queue: row for row in results.bounded(session, MOST + 1)}
        for name in serving:
            rows[name] = replace(rows.get(name) or QueueRow(queue=name), workers=serving[name])
        found = described(database, session, rows.values())
        return Overview(
            results.now(session),
            [found[name] for name in sorted(found) if name in rows or found[name].says_something],
            workers,
            results.stats(session, window),
            session.transaction_gap(),
        )


class Looks:
    """One look a second for all who ask, from any thread."""

    def __init__(self, database: Database, window: timedelta | None = timedelta(hours=1)) -> None:
        self._database = database
        self._window = window
        self._lock = threading.Lock()
        self.last: Overview | None = None
        """The last one that was read."""
        self._until = 0.0

    def get(self) -> Overview:
        """Returns an overview that is at most a second old. While one is read others wait for it."""
        with self._lock:
            if self.last is None or clock.monotonic() > self._until:
                self.last = look(self._database, self._window)
                self._until = clock.monotonic() + _FRESH
            return self.last
