"""This process as one consumer among others in the database: its registration, heartbeats, and the rescue of others.

A process is one consumer, whatever connections and channels it has. It renews one lease, and dies as a whole; what a
channel leaves behind is given back by name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.database.migrate import refuse_copy
from fbtasks.firebird import connections
from fbtasks.firebird.session import READ
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.queue.register.registration import Registration
from fbtasks.queue.upkeep.collecting import Room

logger = logging.getLogger("fbtasks.kombu")
HEARTBEAT: Final = 1.0
"""Seconds between two heartbeats, at the most."""


class Consumer:
    """The registration of this process. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, lease: float, delivery_limit: int | None) -> None:
        self._shared = shared
        self.rhythm = Rhythm(lease, longest=HEARTBEAT)
        self._registration = Registration("consumer", self.rhythm, delivery_limit=delivery_limit)
        self._lock = threading.RLock()
        self.number: int | None = None
        """The number of this process among the consumers; None while it is not registered."""
        self._swept_up_to = 0
        """The number of the message up to which the last sweep looked for expired ones."""
        self.sweeps = False
        """Whether this process is the one that sweeps, as the last heartbeat told."""
        self._room = Room()

    def register(self, announce: Callable[[int], None]) -> int:
        """The number of this process, which is registered when it is not.

        Then *announce* is called with the number, before any other thread gets it.
        """
        if self.number is not None:
            return self.number
        with self._lock:
            if self.number is None:
                self._shared.use(lambda t: refuse_copy(t, self._shared.url), READ)
                number = self._registration.register(self._shared.use)
                announce(number)
                self.number = number
            return self.number

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
        self._registration.unregister(self._shared.use_in_turn, number)

    def beat(self) -> float | None:
        """Renews the lease, and takes back what dead neighbours held.

        Returns the seconds until the next heartbeat; None when this process is not registered, or not any more.
        """
        number = self.number
        if number is None:
            return None
        reply = self._registration.heartbeat(self._shared.use, number)
        if not reply.alive:
            self.forget(number)
            return None
        self.sweeps = reply.oldest
        self._shared.database.known.saw(reply.transaction)
        pause = self._registration.pause()
        again = self._registration.rescue(self._shared.use_in_turn, self._find_the_dead)
        return 0.0 if again else pause

    def _find_the_dead(self) -> None:
        self._shared.use_session(lambda session: connections.find_the_dead(session.url))

    def sweep(self) -> bool:
        """Takes away some of what is over in the tables of messages. Returns whether there may be more."""
        swept = self._shared.use_in_turn(lambda t: messages.sweep(t, self._swept_up_to))
        self._swept_up_to = swept.last or 0
        self._room.want(swept.expired)
        return max(swept.queues, swept.released, swept.expired) >= messages.BATCH

    @property
    def collect_at(self) -> float:
        """The monotonic time at which :meth:`collect` has something to do."""
        return self._room.next_turn

    def collect(self, deleted: int) -> None:
        """Has the room of deleted messages used again, of which there are so many more. For the consumer's thread."""
        self._room.want(deleted)
        self._shared.use_session(self._room.turn)

    def lost(self) -> None:
        """Notes that the connection was lost in the middle of something."""
        self._registration.monitor.connection_lost()
