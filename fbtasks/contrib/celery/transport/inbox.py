"""Wakes the thread that receives on a connection, and tells it why."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Set
from weakref import WeakSet

from fbtasks.contrib.celery.store.messages import OWN_EVENT
from fbtasks.system.waking import Waker


class Inbox:
    """What one connection is told, with the waker that its thread or its event loop waits for."""

    def __init__(self) -> None:
        self.waker = Waker()
        self._lock = threading.Lock()
        self._buckets: set[int] = set()
        self._lost_queue: str | None = None
        self.poll_at = math.inf
        """The monotonic time of the next look at the database; never, while nothing is consumed."""

    def look_soon(self) -> None:
        """Asks for a look at the database: a channel consumes, or the connection was lost."""
        self.poll_at = 0.0
        self.waker.wake()

    def wake(self, buckets: Set[int] = frozenset()) -> None:
        """Says that events came for queues of these numbers, modulo 14; or none, and a channel is to be looked at."""
        with self._lock:
            self._buckets |= buckets
        self.waker.wake()

    def wake_if_due(self, now: float) -> None:
        """Wakes the connection when it is time for a look."""
        if now >= self.poll_at:
            self.waker.wake()

    @property
    def next_wake(self) -> float:
        """The monotonic time at which it is to be woken; never, while it has been and did not look yet."""
        return math.inf if self.waker.woken else self.poll_at

    def take_buckets(self) -> set[int]:
        """Returns the numbers that events came for since the last time."""
        with self._lock:
            buckets, self._buckets = self._buckets, set()
        return buckets

    def tell_lost(self, queue: str) -> None:
        """Says that a queue is gone that is consumed from here."""
        self._lost_queue = queue
        self.waker.wake()

    def take_lost(self) -> str | None:
        """Returns a queue that is gone, once; None: there is none."""
        queue, self._lost_queue = self._lost_queue, None
        return queue


class Inboxes:
    """Those of all connections of this process to one database. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: WeakSet[Inbox] = WeakSet()

    def add(self) -> Inbox:
        """Makes one for a new connection."""
        with self._lock:
            inbox = Inbox()
            self._all.add(inbox)
        return inbox

    def discard(self, inbox: Inbox) -> None:
        """Removes one of a connection that ends."""
        with self._lock:
            self._all.discard(inbox)

    def all(self) -> list[Inbox]:
        """Returns those there are at this moment."""
        with self._lock:
            return list(self._all)

    def look_soon(self) -> None:
        """Makes all connections look at the database soon, which tells them what keeps it from answering."""
        for inbox in self.all():
            inbox.look_soon()

    def wake(self, names: Iterable[str]) -> None:
        """Tells of events that came."""
        buckets = {int(name.rpartition(":")[2]) for name in names if not name.startswith(OWN_EVENT)}
        if buckets:
            for inbox in self.all():
                inbox.wake(buckets)
