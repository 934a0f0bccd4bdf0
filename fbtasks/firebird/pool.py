"""A small bounded pool of sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from fbtasks import clock
from fbtasks.errors import DatabaseUnavailable, PoolTimeout
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Session
from fbtasks.showing import count
from fbtasks.url import DatabaseURL

_PING_AFTER: Final = 30.0


class Pool:
    """Lends sessions to threads, opens at most *size*, and lets others wait for *timeout* seconds."""

    def __init__(self, url: DatabaseURL, connect: Callable[[], Session], *, size: int, timeout: float) -> None:
        self._url = url
        self._connect = connect
        self._size = size
        self._timeout = timeout
        self._idle: list[tuple[Session, float]] = []
        self._lent = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for the block; given up when the database turns out to be unreachable on it."""
        session = self.acquire()
        try:
            yield session
        except DatabaseUnavailable:
            self.release(session, broken=True)
            raise
        except BaseException:
            self.release(session)
            raise
        self.release(session)

    def acquire(self) -> Session:
        """A session that works. Raises :class:`PoolTimeout` when none becomes free in time."""
        refuse_fork()
        with self._changed:
            if not self._changed.wait_for(lambda: self._lent < self._size, self._timeout):
                raise PoolTimeout(
                    f"no connection to {self._url} became free in {count(self._timeout, 'second')}; pool_size is "
                    f"{self._size}. Raise it, or use fewer threads."
                )
            self._lent += 1
            idle = self._idle.pop() if self._idle else None
        try:
            if idle is not None:
                session, since = idle
                if clock.monotonic() - since < _PING_AFTER or session.alive():
                    return session
                session.close()
            return self._connect()
        except BaseException:
            with self._changed:
                self._lent -= 1
                self._changed.notify()
            raise

    def give(self, session: Session) -> None:
        """Takes a session that its caller has opened, to lend it."""
        with self._changed:
            self._lent += 1
        self.release(session)

    def release(self, session: Session, *, broken: bool = False) -> None:
        """Takes a session back."""
        with self._changed:
            self._lent -= 1
            kept = not (broken or self._closed)
            if kept:
                self._idle.append((session, clock.monotonic()))
            self._changed.notify()
        if not kept:
            session.close(lost=broken)

    def close(self) -> None:
        """Closes the sessions: those that are lent when they come back."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the sessions that are not lent."""
        with self._changed:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session.close()
