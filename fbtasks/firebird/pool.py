"""Small bounded pools of sessions, and one bound on what all pools of a process keep idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from fbtasks import timing as clock
from fbtasks.errors import DatabaseUnavailable, PoolTimeout
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Session
from fbtasks.system.showing import count
from fbtasks.url import DatabaseURL

_PING_AFTER: Final = 30.0
MOST_IDLE: Final = 10
"""Sessions that all pools of a process keep idle, beside a larger pool's own. An embedded one takes 8 MB."""


_changed: Final = threading.Condition()
_idle: Final[dict[Session, tuple[Pool, float]]] = {}
"""The sessions of all pools that no thread has, and since when on the monotonic clock; those idle for longest first."""


class Pool:
    """Lends sessions to threads, opens at most *size*, and lets others wait for *timeout* seconds."""

    def __init__(self, url: DatabaseURL, connect: Callable[[], Session], *, size: int, timeout: float) -> None:
        self._url = url
        self._connect = connect
        self._size = size
        self._timeout = timeout
        self._lent = 0
        self._closed = False

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
        with _changed:
            if not clock.wait_for(_changed, lambda: self._lent < self._size, self._timeout):
                raise PoolTimeout(
                    f"no connection to {self._url} became free in {count(self._timeout, 'second')}; pool_size is "
                    f"{self._size}. Raise it, or use fewer threads."
                )
            self._lent += 1
            session = next((each for each, (pool, _) in reversed(_idle.items()) if pool is self), None)
            since = 0.0 if session is None else _idle.pop(session)[1]
        try:
            if session is not None:
                if clock.monotonic() - since < _PING_AFTER or session.alive():
                    return session
                session.close()
            return self._connect()
        except BaseException:
            with _changed:
                self._lent -= 1
                _changed.notify_all()
            raise

    def give(self, session: Session) -> None:
        """Takes a session that its caller has opened, to lend it."""
        with _changed:
            self._lent += 1
        self.release(session)

    def release(self, session: Session, *, broken: bool = False) -> None:
        """Takes a session back."""
        surplus: Session | None = session
        with _changed:
            self._lent -= 1
            if not (broken or self._closed):
                _idle[session] = self, clock.monotonic()
                surplus = next(iter(_idle)) if len(_idle) > max(MOST_IDLE, self._size) else None
                if surplus is not None:
                    del _idle[surplus]
            _changed.notify_all()
        if surplus is not None:
            surplus.close(lost=broken)

    def close(self) -> None:
        """Closes the sessions: those that are lent when they come back."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the sessions that are not lent."""
        with _changed:
            found = [session for session, (pool, _) in _idle.items() if pool is self]
            for session in found:
                del _idle[session]
        for session in found:
            session.close()
