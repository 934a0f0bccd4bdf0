"""Waking those who wait for results in this process: one listener for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fbtasks.notify.listener import Listener
from fbtasks.store.database import Database

BUCKETS: Final = 15
"""Result events are posted per id modulo this number, so that few names tell of any number of tasks."""
EVENTS: Final = tuple(f"fbtasks:result:{bucket}" for bucket in range(BUCKETS))


class Waiter:
    """One wait; wakes early when any task finished. *look* is called before each."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._event = threading.Event()

    def wake(self) -> None:
        """Ends the wait."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits for a wake or for *seconds*. Whether it was woken."""
        self._look()
        woken = self._event.wait(max(0.0, seconds))
        if woken:
            self._event.clear()
        return woken


class ResultListener:
    """Shares one listener among all waits of a process; it is started by the first."""

    def __init__(self, database: Database, names: Sequence[str] = EVENTS) -> None:
        self._database = database
        self._names = names
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._listener: Listener | None = None

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """A wait for the block."""
        waiter = Waiter(self._renew)
        with self._lock:
            self._waiters.add(waiter)
            if self._listener is None:
                self._begin()
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _begin(self) -> None:
        self._listener = Listener(self._database, self._names, self._wake_all, lambda: bool(self._waiters))
        self._listener.start()

    def _renew(self) -> None:
        """Listens anew when the connection was lost a while ago; one that was closed, as before a fork, stays so."""
        with self._lock:
            if self._listener is not None and self._listener.may_begin_anew():
                self._listener.stop()
                self._begin()

    def _wake_all(self, _events: Iterable[str]) -> None:
        with self._lock:
            for waiter in self._waiters:
                waiter.wake()

    def close(self) -> None:
        """Stops listening."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
