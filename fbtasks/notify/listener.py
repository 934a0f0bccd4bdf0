"""Events of the database as wakes.

Events are hints: over TCP they use a second port that a firewall may block in silence, and when the server is killed
nothing says so. Whoever waits polls as well, and can see by an event to himself whether they still arrive.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fbtasks import clock
from fbtasks.store.database import Database
from fbtasks.store.events import Events
from fbtasks.store.session import Session

logger = logging.getLogger(__name__)
Wake = Callable[[Iterable[str]], None]
_WAKE_TO_LOOK: Final = 0.2
"""Seconds after which the thread looks whether it is to end; no query is made."""
_SILENT_BEATS: Final = 3
_RESTART_AFTER: Final = 60.0
"""Seconds between two attempts to hear events where none arrive."""


class Listener:
    """Calls *wake* with the names that were posted, from a thread of its own, which also connects."""

    def __init__(self, database: Database, names: Sequence[str], wake: Wake) -> None:
        self._database = database
        self._names = list(names)
        self._wake = wake
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._listen, name="fbtasks-events", daemon=True)

    def start(self) -> None:
        """Begins to listen. Where events cannot be had this is logged, and polling has to do."""
        self._thread.start()
        atexit.register(self.stop)

    def _listen(self) -> None:
        events: Events | None = None
        try:
            self._session = self._database.open()
            events = Events(self._session, self._names)
            while not self._stopping.is_set():
                if came := events.wait(_WAKE_TO_LOOK):
                    self._wake(came)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises here, polling goes on
            if not self._stopping.is_set():
                logger.info("No events from the database, polling instead: %s", error)
        finally:
            if events is not None:
                events.close()
            if self._session is not None:
                self._session.close()

    def stop(self) -> None:
        """Ends the thread and closes the connection."""
        self._stopping.set()
        atexit.unregister(self.stop)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5 * _WAKE_TO_LOOK)
            if self._thread.is_alive() and self._session is not None:
                self._session.abort()  # it waits for an answer that does not come
                self._thread.join(5 * _WAKE_TO_LOOK)


class WatchedListener:
    """A listener that is started anew when the names change, or when no event arrives although some are posted."""

    def __init__(self, database: Database, names: Callable[[], list[str]], wake: Wake) -> None:
        self._database = database
        self._names = names
        self._wake = wake
        self._listener: Listener | None = None
        self._started = 0.0
        self._heard = 0.0

    def start(self) -> None:
        """Begins to listen."""
        self._started = clock.monotonic()
        self._listener = Listener(self._database, self._names(), self._hear)
        self._listener.start()

    def _hear(self, names: Iterable[str]) -> None:
        self._heard = clock.monotonic()
        self._wake(names)

    def heard_within(self, seconds: float) -> bool:
        """Whether any event arrived in the last *seconds*."""
        return clock.monotonic() - self._heard < seconds

    def check(self, beat: float) -> None:
        """Starts again, now and then, when no event has arrived although one is posted every *beat* seconds."""
        now = clock.monotonic()
        if now - self._started > _RESTART_AFTER and now - self._heard > _SILENT_BEATS * beat:
            logger.info("No event has arrived for a while: listening anew, and polling meanwhile.")
            self.restart()

    def restart(self) -> None:
        """Listens anew: the connection was lost, or the names have changed."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Stops listening."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
