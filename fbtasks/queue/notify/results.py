"""Wakes the threads that wait for results in this process: one listener for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.queue.notify.listener import Listener

BUCKETS: Final = 15
"""Result events are posted per id modulo this number, so that few names tell of any number of tasks."""
EVENTS: Final = tuple(f"fbtasks:result:{bucket}" for bucket in range(BUCKETS))


def event_of(task: int) -> str:
    """The event that is posted when the task of that number ends."""
    return EVENTS[task % BUCKETS]


class Waiter:
    """One wait; wakes early when a task finished. *look* is called before each."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.only: str | None = None
        """The one event that wakes it; None: each."""
        self.closed = False
        """Whether the listener was closed during the wait."""
        self._look = look
        self._changed = threading.Condition()
        self._woken = False
        self._names: set[str] = set()

    def hear(self, names: Iterable[str]) -> None:
        """Ends the wait when it is about one of these events."""
        if self.only is None or self.only in names:
            self.wake(names)

    def wake(self, names: Iterable[str] = ()) -> None:
        """Ends the wait."""
        with self._changed:
            self._woken = True
            self._names.update(names)
            self._changed.notify()

    def wait(self, seconds: float) -> set[str]:
        """Waits for a wake or for *seconds*. Returns the events that came since the last time."""
        self._look()
        with self._changed:
            clock.wait_for(self._changed, lambda: self._woken, seconds)
            names, self._names, self._woken = self._names, set(), False
            return names


class ResultListener:
    """Shares one listener among all waits of a process; it is started by the first."""

    def __init__(self, database: Database, names: Sequence[str] = EVENTS) -> None:
        self._database = database
        self._names = names
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._listener: Listener | None = None

    def make_waiter(self) -> Waiter:
        """A wait that is woken inside of :meth:`waking`."""
        return Waiter(self._renew)

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """A wait for the block."""
        with self.waking(self.make_waiter()) as waiter:
            yield waiter

    @contextmanager
    def waking(self, waiter: Waiter) -> Iterator[Waiter]:
        """For the block, events wake *waiter*."""
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

    def _wake_all(self, events: Iterable[str]) -> None:
        with self._lock:
            for waiter in self._waiters:
                waiter.hear(events)

    def close(self) -> None:
        """Stops listening, and wakes all: their database is being closed."""
        with self._lock:
            listener, self._listener = self._listener, None
            for waiter in self._waiters:
                waiter.closed = True
                waiter.wake()
        if listener is not None:
            listener.stop()
