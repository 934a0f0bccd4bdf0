"""The worker's one connection to the database: lost, waited for, and made anew."""

from __future__ import annotations

import logging

from fbtasks import clock
from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import Session
from fbtasks.store.database import Database
from fbtasks.worker.backoff import Backoff
from fbtasks.worker.membership import Membership

logger = logging.getLogger("fbtasks.worker")


class Connection:
    """While it is away, what runs goes on, and what has ended is kept until it can be recorded."""

    def __init__(self, database: Database, membership: Membership) -> None:
        self._database = database
        self._membership = membership
        self._backoff = Backoff()
        self.away_since: float | None = None
        """The monotonic time since which no work has succeeded, when the connection was lost."""
        self.next_attempt = 0.0
        """The monotonic time before which no attempt is made to connect again."""
        self.session: Session | None = None
        """None while the database is away."""

    def open(self) -> Session:
        """Connects."""
        session = self.session = self._database.open()
        session.meanwhile = lambda: self._membership.beat_meanwhile(session)
        return session

    def note_lost(self, error: DatabaseError) -> None:
        """Closes the connection after *error*; the next attempt comes after a pause that grows."""
        self.away_since = self.away_since or clock.monotonic()
        monitor = self._membership.monitor
        pause = self._backoff.next(overdue=monitor.overdue, leisure=monitor.leisure)
        logger.error("The database is away: %s Trying again in %.1f s.", error, pause)
        self.close()
        self.next_attempt = clock.monotonic() + pause
        self._membership.lost()

    def works(self) -> None:
        """Notes that work has succeeded. A connection alone shows little: of a disk that fails, one can still read."""
        logger.warning("The database is back after %.1f s.", clock.monotonic() - (self.away_since or 0.0))
        self.away_since = None
        self._backoff.reset()

    def close(self) -> None:
        """Closes it, if it is open."""
        if self.session is not None:
            self.session.close()
            self.session = None
