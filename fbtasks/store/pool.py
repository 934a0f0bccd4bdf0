"""A small bounded pool of connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from fbtasks.config import DatabaseURL
from fbtasks.errors import DatabaseUnavailable, PoolTimeout
from fbtasks.store import engine
from fbtasks.store.translate import translate

_PING_AFTER: Final = 30.0


class ConnectionPool:
    """Lends connections to threads, opens at most *size*, and lets others wait for *timeout* seconds."""

    def __init__(
        self, url: DatabaseURL, *, size: int, timeout: float, connector: Callable[[DatabaseURL], Any] = engine.connect
    ) -> None:
        self._url = url
        self._size = size
        self._timeout = timeout
        self._connector = connector
        self._idle: list[tuple[Any, float]] = []
        self._lent = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection for the block; given up when the database turns out to be unreachable on it."""
        connection = self.acquire()
        try:
            yield connection
        except DatabaseUnavailable:
            self.release(connection, broken=True)
            raise
        except BaseException:
            self.release(connection)
            raise
        self.release(connection)

    def acquire(self) -> Any:
        """A connection that works. Raises :class:`PoolTimeout` when none becomes free in time."""
        engine.refuse_fork()
        with self._changed:
            if not self._changed.wait_for(lambda: self._lent < self._size, self._timeout):
                raise PoolTimeout(
                    f"none of the {self._size} connections to {self._url} became free in {self._timeout:g} seconds. "
                    "Raise pool_size, or use fewer threads."
                )
            self._lent += 1
            idle = self._idle.pop() if self._idle else None
        try:
            if idle is not None:
                connection, since = idle
                if time.monotonic() - since < _PING_AFTER or _answers(connection):
                    return connection
                _close(connection)
            return self._connector(self._url)
        except BaseException:
            with self._changed:
                self._lent -= 1
                self._changed.notify()
            raise

    def release(self, connection: Any, *, broken: bool = False) -> None:
        """Takes a connection back."""
        with self._changed:
            self._lent -= 1
            broken = broken or self._closed
            if not broken:
                self._idle.append((connection, time.monotonic()))
            self._changed.notify()
        if broken:
            _close(connection)

    def close(self) -> None:
        """Closes the connections: those that are lent when they come back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            _close(connection)


def _answers(connection: Any) -> bool:
    try:
        connection._att.ping()
    except Exception as error:  # noqa: BLE001  # whatever it is, the connection is of no use
        return translate(error) is None
    return True


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
