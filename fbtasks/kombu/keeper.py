"""The thread of a consuming process that keeps its lease, writes settlements, and backs the events up by polling."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from fbtasks import clock
from fbtasks.errors import DatabaseError, DatabaseReplaced, DatabaseUnavailable
from fbtasks.notify.listener import WatchedListener
from fbtasks.store import messages
from fbtasks.threads import Background

if TYPE_CHECKING:
    from fbtasks.kombu.broker import Broker

logger = logging.getLogger("fbtasks.kombu")
BEAT: Final = 1.0
"""Seconds between two heartbeats, at the most."""
_GATHER: Final = 0.01
"""Seconds for which settlements are gathered."""
_SWEEP: Final = 10.0
LINGER: Final = 5.0
"""Seconds after which the connections of a process without transports are closed."""
_RETRY: Final = 0.5


class Keeper:
    """Runs while the process is registered as a consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed = threading.Condition()
        self._stopping = False
        self._flush_at: float | None = None
        self._beat_at = clock.monotonic() + BEAT
        self._sweep_at = clock.monotonic() + 1.0
        self._linger_until: float | None = None
        self._retry_at = 0.0
        self._listener = WatchedListener(broker.shared.database, self._events, broker.wake)
        self._thread = Background(target=self._run, name="fbtasks-keeper")

    def _events(self) -> list[str]:
        return [*messages.EVENTS, f"{messages.OWN_EVENT}{self._broker.consumer_id}"]

    def start(self) -> None:
        """Begins, and listens for events."""
        self._listener.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the listening."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(30)
        self._listener.stop()

    def pause(self) -> None:
        """Before a fork: closes the listener's connection. The thread waits at the database's gate meanwhile."""
        self._listener.stop()

    def resume(self) -> None:
        """After a fork, in the parent."""
        if not self._stopping:
            self._listener.start()
            with self._changed:
                self._beat_at = 0.0
                self._changed.notify()

    def renamed(self) -> None:
        """The consumer has another number, so its own event has another name."""
        self._listener.restart()

    def flush_soon(self) -> None:
        """There are settlements to be written."""
        with self._changed:
            if self._flush_at is None:
                self._flush_at = clock.monotonic() + _GATHER
                self._changed.notify()

    def linger(self) -> None:
        """No transport is left: if that stays so for a while, everything is closed."""
        with self._changed:
            self._linger_until = clock.monotonic() + LINGER
            self._changed.notify()

    def _run(self) -> None:
        while self._waited():
            try:
                if self._is_over() and self._broker.retire():
                    self._listener.stop()
                    return
                self._work()
            except DatabaseReplaced as error:
                logger.error("The consumer loses its connection: %s", error)
                self._lost()
                return
            except DatabaseUnavailable as error:
                logger.debug("The database does not answer: %s", error)
                self._lost()
            except DatabaseError as error:
                logger.warning("The keeper of the consumer tries again: %s", error)
                self._retry_at = clock.monotonic() + _RETRY
            except Exception:
                logger.exception("The keeper of the consumer goes on after an error")
                self._retry_at = clock.monotonic() + _RETRY

    def _waited(self) -> bool:
        """Waits until something is to be done. False when the thread is to end."""
        with self._changed:
            if not self._stopping:
                self._changed.wait(max(0.0, self._next() - clock.monotonic()))
            return not self._stopping

    def _next(self) -> float:
        times = [self._beat_at, self._poll_at()]
        if self._flush_at is not None:
            times.append(self._flush_at)
        if self._linger_until is not None:
            times.append(self._linger_until)
        return max(min(times), self._retry_at)

    def _poll_at(self) -> float:
        return min((transport.next_wake for transport in self._broker.attached()), default=float("inf"))

    def _is_over(self) -> bool:
        now = clock.monotonic()
        with self._changed:
            if self._linger_until is None or now < self._linger_until:
                return False
            if self._broker.attached():
                self._linger_until = None
            elif not self._broker.idle:
                self._linger_until = now + LINGER
            return self._linger_until is not None and now >= self._linger_until

    def _work(self) -> None:
        now = clock.monotonic()
        beats = now >= self._beat_at
        if beats:  # first of all: whatever else holds it up, the lease is kept
            self._beat_at = now + self._broker.beat()
            self._listener.check(self._broker.rhythm.heartbeat)
        if beats or (self._flush_at is not None and now >= self._flush_at):
            self._flush_at = None
            self._broker.flush()
        for transport in self._broker.attached():
            transport.wake_if_due(now)
        if now >= self._sweep_at:
            self._sweep_at = now if self._broker.sweep() else now + _SWEEP
            for queue, number in self._broker.renew_queues().items():
                if sum(transport.renumber(queue, number) for transport in self._broker.attached()):
                    self._broker.reuse(queue)

    def _lost(self) -> None:
        now = clock.monotonic()
        self._broker.lost()
        self._retry_at = now + _RETRY
        self._beat_at = 0.0
        self._flush_at = now
        self._listener.pause()
        for transport in self._broker.attached():
            transport.look_soon()  # which finds out what keeps the database from answering
