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


class Pool:
    """Lends sessions to threads, opens at most *size*, and lets others wait for *timeout* seconds."""

    def __init__(self, url: DatabaseURL, connect: Callable[[], Session], *, size: int, timeout: float) -> None:
        self._url = url
        self._connect = connect
        self.size = size
        self._timeout = timeout
        self._idle: list[tuple[Session, float]] = []
        """Those that were lent last are at its end."""
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
            if not self._changed.wait_for(lambda: self._lent < self.size, self._timeout):
                raise PoolTimeout(
                    f"no connection to {self._url} became free in {count(self._timeout, 'second')}; pool_size is "
                    f"{self.size}. Raise it, or use fewer threads."
                )
            self._lent += 1
            idle = self._idle.pop() if self._idle else None
            if idle is not None:
                _shelf.take(idle[0])
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
            surplus = None
            if kept:
                self._idle.append((session, clock.monotonic()))
                surplus = _shelf.put(session, self)
            self._changed.notify()
        if not kept:
            session.close(lost=broken)
        elif surplus is not None:
            surplus[1]._drop(surplus[0])

    def close(self) -> None:
        """Closes the sessions: those that are lent when they come back."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the sessions that are not lent."""
        with self._changed:
            idle, self._idle = self._idle, []
            for session, _ in idle:
                _shelf.take(session)
        for session, _ in idle:
            session.close()

    def _drop(self, session: Session) -> None:
        """Closes *session*, unless another thread has it by now."""
        with self._changed:
            kept = [each for each in self._idle if each[0] is not session]
            found = len(kept) < len(self._idle)
            self._idle = kept
        if found:
            session.close()


class _Shelf:
    """The idle sessions of all pools of this process, that which has been idle for longest first."""

    def __init__(self) -> None:
        self._pools: dict[Session, Pool] = {}
        self._lock = threading.Lock()

    def put(self, session: Session, pool: Pool) -> tuple[Session, Pool] | None:
        """Adds one of *pool*. Returns the one to be closed for it, with its pool, where there are too many."""
        with self._lock:
            self._pools[session] = pool
            if len(self._pools) <= max(MOST_IDLE, pool.size):
                return None
            longest = next(iter(self._pools))
            return longest, self._pools.pop(longest)

    def take(self, session: Session) -> None:
        """Forgets one that is lent or closed."""
        with self._lock:
            self._pools.pop(session, None)


_shelf: Final = _Shelf()
