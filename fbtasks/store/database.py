"""The database of an app: connections with their statements, and the schema made ready on first use."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

from fbtasks.config import Settings
from fbtasks.errors import CommitUncertain, DatabaseUnavailable
from fbtasks.store import engine, grants, migrate
from fbtasks.store.pool import Pool
from fbtasks.store.session import Session, identity

T = TypeVar("T")


class Database:
    """Lends sessions from a small pool, and opens private ones for those that keep theirs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = settings.url
        self._pool: Pool | None = None
        self._ready = False
        self._identity: tuple[str, str] | None = None
        self._lock = threading.RLock()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for a short while; others wait for it when all are lent."""
        self.make_ready()
        with self._pooled().session() as session:
            yield session

    def _pooled(self) -> Pool:
        with self._lock:
            if self._pool is None:
                settings = self.settings
                self._pool = Pool(self.url, self._open, size=settings.pool_size, timeout=settings.pool_timeout)
                # Only now: the driver's own exit function, which shuts the library down, must run after this one.
                atexit.register(self._at_exit)
            return self._pool

    def use(self, work: Callable[[Session], T]) -> T:
        """*work* with a session, and once more with a new one when the first turns out to have died in the pool.

        Not after a commit whose answer was lost: whether that took effect is for the caller to find out.
        """
        with self.session() as session:
            fresh, session.fresh = session.fresh, False
            try:
                return work(session)
            except CommitUncertain:
                raise
            except DatabaseUnavailable:
                if fresh:
                    raise
        self._pooled().drop_idle()  # the others are most likely dead as well
        with self.session() as session:
            session.fresh = False
            return work(session)

    def open(self) -> Session:
        """A session of one's own; close it."""
        self.make_ready()
        return self._open()

    def _open(self) -> Session:
        return Session(engine.connect(self.url), self.url)

    def make_ready(self) -> None:
        """Creates and migrates the database where the settings say so, else checks its schema. Once."""
        engine.refuse_fork()  # before the lock, which another thread may have held when this process was forked
        if self._ready:
            return
        with engine.opening(), self._lock:
            if self._is_ready():  # another thread was first
                return
            session = self._create() if self._missing() else self._open()
            try:
                if self.settings.migrates and self._outdated(session):
                    self._migrate(session)
                else:
                    migrate.check(session)
            finally:
                session.close()
            self._ready = True

    def _is_ready(self) -> bool:
        return self._ready

    def identity(self) -> tuple[str, str] | None:
        """Which database this is, whatever its name; None for a file that is not there. Nothing is created."""
        if self._missing():
            return None
        with self.session() if self._ready else closing(self._open()) as session:
            self._identity = identity(session.connection)
        return self._identity

    def is_one(self, found: tuple[str, str]) -> bool:
        """Whether *found* is the identity of this database. Asks only where the last answer does not suffice."""
        return found == self._identity or found == self.identity()

    def migrate(self) -> list[int]:
        """Brings the schema up to date, whatever the settings say. Gives the versions applied."""
        session = self._create() if self._missing() else self._open()
        try:
            return self._migrate(session)
        finally:
            session.close()

    def _migrate(self, session: Session) -> list[int]:
        applied = migrate.migrate(session)
        grants.refresh(session)
        return applied

    def _outdated(self, session: Session) -> bool:
        found = migrate.current_version(session)
        return found is None or found < migrate.latest_version()

    def _missing(self) -> bool:
        return self.url.embedded and not engine.database_exists(self.url)

    def _create(self) -> Session:
        return Session(engine.connect(self.url, create=True), self.url)

    def close(self) -> None:
        """Closes the pooled connections; the next use opens new ones."""
        with self._lock:
            atexit.unregister(self._at_exit)
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def _at_exit(self) -> None:
        """Statements before connections, or the driver prints what it cannot free; nothing that a fork inherited."""
        if not engine.was_forked():
            self.close()
