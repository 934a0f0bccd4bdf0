"""This process as one consumer in the database: its registration, heartbeats, the rescue of others, and its thread.

A process is one consumer, whatever connections and channels it has. It renews one lease, and dies as a whole; what a
channel leaves behind is given back by name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.database.migrate import refuse_copy
from fbtasks.errors import DatabaseError, DatabaseReplaced, DatabaseUnavailable
from fbtasks.firebird import connections
from fbtasks.firebird.session import READ
from fbtasks.queue.notify.listener import WatchedListener
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.queue.register.registration import Registration
from fbtasks.queue.upkeep.collecting import Room
from fbtasks.system.threads import Background

if TYPE_CHECKING:
    from fbtasks.contrib.celery.transport.process import ConsumerProcess

logger = logging.getLogger("fbtasks.kombu")
HEARTBEAT: Final = 1.0
"""Seconds between two heartbeats, at the most."""
_SWEEP: Final = 10.0
_RETRY: Final = 0.5


class Consumer:
    """The registration of this process. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, lease: float, delivery_limit: int | None) -> None:
        self._shared = shared
        self.rhythm = Rhythm(lease, longest=HEARTBEAT)
        self.registration = Registration("consumer", self.rhythm, delivery_limit=delivery_limit)
        self._lock = threading.RLock()
        self.number: int | None = None
        """The number of this process among the consumers; None while it is not registered."""
        self._swept_up_to = 0
        """The number of the message up to which the last sweep looked for expired ones."""
        self.sweeps = False
        """Whether this process is the one that sweeps, as the last heartbeat told."""
        self._room = Room()

    def register(self, announce: Callable[[int], None]) -> int:
        """Registers this process unless it is registered. Returns its number.

        Then *announce* is called with the number, before any other thread gets it.
        """
        if self.number is not None:
            return self.number
        with self._lock:
            if self.number is None:
                self._shared.use(lambda t: refuse_copy(t, self._shared.url), READ)
                number = self.registration.register(self._shared.use)
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
        """Ends the registration of this process. Returns the number that it had."""
        with self._lock:
            number, self.number = self.number, None
        return number

    def beat(self) -> float | None:
        """Renews the lease, and takes back what dead neighbours held.

        Returns the seconds until the next heartbeat; None when this process is not registered, or not any more.
        """
        number = self.number
        if number is None:
            return None
        reply = self.registration.heartbeat(self._shared.use, number)
        if not reply.alive:
            self.forget(number)
            return None
        self.sweeps = reply.oldest
        self._shared.database.known.saw(reply.transaction)
        pause = self.registration.pause()
        again = self.registration.rescue(
            self._shared.use_in_turn,
            lambda: self._shared.use_session(lambda session: connections.find_the_dead(session.url)),
        )
        return 0.0 if again else pause

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
        """Frees the room of *deleted* more messages. For the consumer's thread."""
        self._room.want(deleted)
        self._shared.use_session(self._room.turn)


class ConsumerThread:
    """Does in turn what is due while this process is registered as a consumer, and listens for events."""

    def __init__(self, process: ConsumerProcess) -> None:
        self._process = process
        self._alarm = process.settlements.alarm
        self._stopping = False
        self._paused = False
        self._beat_at = clock.monotonic() + HEARTBEAT
        self._sweep_at = clock.monotonic() + 1.0
        self._retry_at = 0.0
        self._number = process.consumer.number
        """The number whose events are listened for."""
        self._listener = WatchedListener(process.shared.database, self._events, process.inboxes.wake)
        self._thread = Background(target=self._run, name="fbtasks-consumer")

    def _events(self) -> list[str]:
        return [*messages.EVENTS, f"{messages.OWN_EVENT}{self._number}"]

    def start(self) -> None:
        """Begins, and listens for events."""
        self._listener.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the listening."""
        self._stopping = True
        self._alarm.ring()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(30)
        self._listener.stop()

    def pause(self) -> None:
        """Closes the listener's connection before a fork. The thread waits at the database's gate meanwhile."""
        self._paused = True
        self._listener.stop()

    def resume(self) -> None:
        """Ends that after the fork, in the parent."""
        paused, self._paused = self._paused, False
        if paused and not self._stopping:
            self._listener.start()
            self._beat_at = 0.0
            self._alarm.ring()

    def _run(self) -> None:
        while self._waited():
            try:
                self._work()
            except DatabaseReplaced as error:
                logger.error("The consumer loses its connection: %s", error)
                self._lost()
                return
            except DatabaseUnavailable as error:
                logger.debug("The database does not answer: %s", error)
                self._lost()
            except DatabaseError as error:
                logger.warning("The consumer's thread tries again: %s", error)
                self._retry_at = clock.monotonic() + _RETRY
            except Exception:
                logger.exception("The consumer's thread goes on after an error")
                self._retry_at = clock.monotonic() + _RETRY

    def _waited(self) -> bool:
        """Waits until something is to be done. False when the thread is to end."""
        if not self._stopping:
            polls = [inbox.next_wake for inbox in self._process.inboxes.all()]
            due = min(self._beat_at, self._alarm.at, self._process.consumer.collect_at, *polls)
            self._alarm.wait(max(due, self._retry_at))
        return not self._stopping

    def _work(self) -> None:
        process, consumer, settlements = self._process, self._process.consumer, self._process.settlements
        now = clock.monotonic()
        beats = now >= self._beat_at
        if beats:  # first of all: whatever else holds it up, the lease is kept
            self._beat_at = now + self._beat()
            number = consumer.number
            if number not in (None, self._number):  # its own event has another name
                self._number = number
                self._listener.restart()
            self._listener.check(consumer.rhythm.heartbeat)
        if beats or now >= self._alarm.at:
            self._alarm.clear()
            process.flush()
        for inbox in process.inboxes.all():
            inbox.wake_if_due(now)
        if (large := settlements.take_large()) or now >= consumer.collect_at:
            consumer.collect(large)
        if now >= self._sweep_at:
            process.queues.tell_ended()
            if added := settlements.take_added():
                consumer.collect(added)  # before the sweep reads in the order of an index what was deleted
            more = consumer.sweeps and consumer.sweep()
            self._sweep_at = now if more else now + _SWEEP
            process.queues.renew()

    def _beat(self) -> float:
        """Sends a heartbeat, or registers anew. Returns the seconds until the next."""
        consumer, queues = self._process.consumer, self._process.queues
        number = consumer.number
        pause = consumer.beat()
        if pause is None and (number is not None or queues):
            queues.register()
        return consumer.rhythm.heartbeat if pause is None else pause

    def _lost(self) -> None:
        now = clock.monotonic()
        self._process.consumer.registration.monitor.connection_lost()
        self._retry_at = now + _RETRY
        self._beat_at = 0.0
        self._alarm.ask_for(now)
        self._listener.pause()
        self._process.inboxes.look_soon()
