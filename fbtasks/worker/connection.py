"""The worker's one connection to the database: lost, waited for, and made anew."""

from __future__ import annotations

import logging
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import SHUT_DOWN_LOOK, Database
from fbtasks.errors import DatabaseError, StatementRefused
from fbtasks.firebird.driver.translate import was_shut_down
from fbtasks.firebird.session import Session
from fbtasks.timing import Backoff
from fbtasks.worker.lease import SOON, Lease

logger = logging.getLogger("fbtasks.worker")
FIRST: Final = 0.05
LAST: Final = 5.0
"""Seconds between two attempts to connect and work: the least, and the most."""


class Connection:
    """While it is away, what runs goes on, and what has ended is kept until it can be recorded."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self._database = database
        self._lease = lease
        self._backoff = Backoff(FIRST, LAST)
        self.away_since: float | None = None
        """The monotonic time since which no work has succeeded, when the connection was lost."""
        self.next_attempt = 0.0
        """The monotonic time before which no attempt is made to connect again."""
        self.session: Session | None = None
        """None while the database is away."""
        self._said_shut_down = False

    def open(self) -> Session:
        """Connects."""
        session = self.session = self._database.open()
        session.meanwhile = lambda: self._lease.beat_meanwhile(session)
        return session

    def note_lost(self, error: DatabaseError) -> None:
        """Closes the connection after *error*; the next attempt comes after a pause that grows.

        While the database is shut down for maintenance it is looked at seldom, and the log has one line.
        """
        self.away_since = self.away_since or clock.monotonic()
        self.close()
        if was_shut_down(error):
            if not self._said_shut_down:
                self._said_shut_down = True
                logger.warning("%s This worker waits for that, and looks every %g s.", error, SHUT_DOWN_LOOK)
            pause = SHUT_DOWN_LOOK
        else:
            monitor = self._lease.monitor
            self._backoff.last = LAST if monitor.overdue else max(SOON, monitor.leisure)
            pause = self._backoff.next()
            what = "refuses what this worker asks" if isinstance(error, StatementRefused) else "is away"
            logger.error("The database %s: %s Trying again in %.1f s.", what, error, pause)
        self.next_attempt = clock.monotonic() + pause
        self._lease.lost()

    def works(self) -> None:
        """Notes that work has succeeded. A connection alone shows little: of a disk that fails, one can still read."""
        logger.warning("The database is back after %.1f s.", clock.monotonic() - (self.away_since or 0.0))
        self.away_since = None
        self._said_shut_down = False
        self._backoff.reset()

    def close(self) -> None:
        """Closes it, if it is open."""
        if self.session is not None:
            self.session.close()
            self.session = None
