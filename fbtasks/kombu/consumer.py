"""This process as one consumer among others in the database: its registration, heartbeats, and the rescue of others.

A process is one consumer, whatever connections and channels it has. It renews one lease, and dies as a whole; what a
channel leaves behind is given back by name.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from fbtasks.firebird.session import READ
from fbtasks.maintenance import hosts
from fbtasks.maintenance.rescue import rescue
from fbtasks.maintenance.watch import SHARE, Rhythm, Suspect, Watch
from fbtasks.store import messages
from fbtasks.store.migrate import refuse_copy
from fbtasks.store.shared import SharedDatabase

logger = logging.getLogger("fbtasks.kombu")
HEARTBEAT: Final = 1.0
"""Seconds between two heartbeats, at the most."""


class Consumer:
    """The registration of this process. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, lease: float, delivery_limit: int | None) -> None:
        self._shared = shared
        self.rhythm = Rhythm(lease, longest=HEARTBEAT)
        self._delivery_limit = delivery_limit
        self._watch = Watch(self.rhythm)
        self._lock = threading.RLock()
        self.number: int | None = None
        """The number of this process among the consumers; None while it is not registered."""
        self.sweeps = False
        """Whether this process is the one that sweeps, as the last heartbeat told."""

    def register(self, announce: Callable[[int], None]) -> int:
        """The number of this process, which is registered when it is not.

        Then *announce* is called with the number, before any other thread gets it.
        """
        if self.number is not None:
            return self.number
        with self._lock:
            if self.number is None:
                self._watch.begin()
                number = self._insert()
                announce(number)
                self.number = number
                self._watch.registered()
            return self.number

    def _insert(self) -> int:
        pid = os.getpid()
        self._shared.use(lambda t: refuse_copy(t, self._shared.url), READ)
        host, begun, lease, limit = hosts.host_name(), hosts.start_ticks(pid), self.rhythm.lease, self._delivery_limit
        return self._shared.use(lambda t: messages.register(t, host, pid, begun, lease, limit))

    def forget(self, number: int) -> None:
        """Notes that this process, as the consumer *number*, was declared dead: others have its messages by now."""
        with self._lock:
            if self.number == number:
                logger.warning("Consumer %d was taken for dead; its messages are delivered again.", number)
                self.number = None

    def withdraw(self) -> int | None:
        """Has this process be no consumer from now on. Returns the number that it had, for :meth:`unregister`."""
        with self._lock:
            number, self.number = self.number, None
        return number

    def unregister(self, number: int) -> None:
        """Removes a consumer from the register; what it still holds is given back."""
        self._shared.use_in_turn(lambda t: messages.unregister(t, number))

    def beat(self) -> float | None:
        """Renews the lease, and takes back what dead neighbours held.

        Returns the seconds until the next heartbeat; None when this process is not registered, or not any more.
        """
        number = self.number
        if number is None:
            return None
        self._watch.begin()
        times = {"lease": self.rhythm.lease, "beat": self.rhythm.heartbeat}
        registered, renewed, silence, self.sweeps, neighbours, transaction = self._shared.use(
            lambda t: messages.beat(t, number, share=SHARE, **times)
        )
        if not registered:
            self.forget(number)
            return None
        self._shared.saw(transaction)
        if renewed:
            self._watch.beaten(silence)
        else:
            self._watch.held_up()
        suspects = self._watch.suspects(neighbours)
        rescue(suspects, self._take_back, self._kill_connection, kind="Consumer", again="messages are delivered")
        return self._watch.pause(neighbours)

    def lost(self) -> None:
        """Notes that the connection was lost in the middle of something."""
        self._watch.lost()

    def _take_back(self, suspect: Suspect) -> tuple[int, str | None]:
        number, gone, credit = suspect.neighbour.worker_id, suspect.gone, suspect.credit
        return self._shared.use_in_turn(lambda t: messages.rescue(t, number, gone=gone, share=SHARE, credit=credit))

    def _kill_connection(self, suspect: Suspect) -> bool:
        number, credit = suspect.neighbour.worker_id, suspect.credit
        return self._shared.use(lambda t: messages.cut_consumer(t, number, share=SHARE, credit=credit))
