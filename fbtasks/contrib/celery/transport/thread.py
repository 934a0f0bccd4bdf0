"""The thread of a consuming process: it renews the lease, writes settlements, and polls beside the events."""

from __future__ import annotations

import logging
import threading
from typing import Final

from fbtasks import timing as clock
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.transport.claims import Claims
from fbtasks.contrib.celery.transport.consumer import HEARTBEAT, Consumer
from fbtasks.contrib.celery.transport.inbox import Inboxes
from fbtasks.contrib.celery.transport.queues import ConsumedQueues
from fbtasks.contrib.celery.transport.settlements import Alarm, Settlements
from fbtasks.errors import DatabaseError, DatabaseReplaced, DatabaseUnavailable
from fbtasks.queue.notify.listener import WatchedListener
from fbtasks.system.threads import Background

logger = logging.getLogger("fbtasks.kombu")
_SWEEP: Final = 10.0
_RETRY: Final = 0.5


class ConsumerThread:
    """Does in turn what is due while this process is registered as a consumer, and listens for events."""

    def __init__(
        self,
        shared: SharedDatabase,
        *,
        consumer: Consumer,
        queues: ConsumedQueues,
        settlements: Settlements,
        claims: Claims,
        inboxes: Inboxes,
        alarm: Alarm,
    ) -> None:
        self._consumer = consumer
        self._queues = queues
        self._settlements = settlements
        self._claims = claims
        self._inboxes = inboxes
        self._alarm = alarm
        self._stopping = False
        self._paused = False
        self._beat_at = clock.monotonic() + HEARTBEAT
        self._sweep_at = clock.monotonic() + 1.0
        self._retry_at = 0.0
        self._number = consumer.number
        """The number whose events are listened for."""
        self._listener = WatchedListener(shared.database, self._events, inboxes.wake)
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
            self._alarm.wait(self._next())
        return not self._stopping

    def _next(self) -> float:
        polls = [inbox.next_wake for inbox in self._inboxes.all()]
        return max(min(self._beat_at, self._alarm.at, self._consumer.collect_at, *polls), self._retry_at)

    def _work(self) -> None:
        now = clock.monotonic()
        beats = now >= self._beat_at
        if beats:  # first of all: whatever else holds it up, the lease is kept
            self._beat_at = now + self._beat()
            self._check_listener()
        if beats or now >= self._alarm.at:
            self._alarm.clear()
            self._settlements.write(self._consumer.number)
            self._claims.give_back_lost()
        for inbox in self._inboxes.all():
            inbox.wake_if_due(now)
        if (large := self._settlements.take_large()) or now >= self._consumer.collect_at:
            self._consumer.collect(large)
        if now >= self._sweep_at:
            self._queues.tell_ended()
            if added := self._settlements.take_added():
                self._consumer.collect(added)  # before the sweep reads in the order of an index what was deleted
            more = self._consumer.sweeps and self._consumer.sweep()
            self._sweep_at = now if more else now + _SWEEP
            self._queues.renew()

    def _beat(self) -> float:
        """Sends a heartbeat, or registers anew. Returns the seconds until the next."""
        number = self._consumer.number
        pause = self._consumer.beat()
        if pause is None and (number is not None or self._queues):
            self._queues.register()
        return self._consumer.rhythm.heartbeat if pause is None else pause

    def _check_listener(self) -> None:
        number = self._consumer.number
        if number not in (None, self._number):  # its own event has another name
            self._number = number
            self._listener.restart()
        self._listener.check(self._consumer.rhythm.heartbeat)

    def _lost(self) -> None:
        now = clock.monotonic()
        self._consumer.lost()
        self._retry_at = now + _RETRY
        self._beat_at = 0.0
        self._alarm.ask_for(now)
        self._listener.pause()
        self._inboxes.look_soon()
