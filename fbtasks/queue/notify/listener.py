"""Events of the database as wakes.

Events are hints: over TCP they use a second port that a firewall may block in silence, and when the server is killed
nothing says so. A process that waits polls as well, and can see by an event to itself whether they still arrive.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseUnavailable
from fbtasks.firebird import fork
from fbtasks.firebird.events import Events
from fbtasks.firebird.session import Session
from fbtasks.system.threads import Background

logger = logging.getLogger(__name__)
Wake = Callable[[Iterable[str]], None]
_WAKE_TO_LOOK: Final = 0.2
"""Seconds after which the thread looks whether it is to end; no query is made."""
_LAY_OUT: Final = 3.0
"""Seconds for which a lost connection is left alone: the library's own thread for its events is still at it, and both
at once have ended the process."""
_QUIET: Final = 10.0
"""Seconds that a database must have been back for before events are asked for again: a connection that is cut just then
is what the client library bears least."""
_SILENCE: Final = 5.0
"""Seconds without an event after which a waiting thread has the connection asked whether it still lives."""
_SILENT_BEATS: Final = 3
_RESTART_AFTER: Final = 60.0
"""Seconds between two attempts to hear events where none arrive."""


class Listener:
    """Calls *wake* with the names that were posted, from a thread of its own, which also connects.

    A connection that is killed alone is silent. A process that sends no event to itself says by *waited_for*
    whether silence matters now.
    """

    def __init__(
        self, database: Database, names: Sequence[str], wake: Wake, waited_for: Callable[[], bool] = lambda: False
    ) -> None:
        self._database = database
        self._names = list(names)
        self._wake = wake
        self._waited_for = waited_for
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._lost = False
        self._started = 0.0
        self._thread = Background(target=self._listen, name="fbtasks-events")

    def start(self) -> None:
        """Begins to listen. Where events cannot be had this is logged, and polling has to do."""
        self._started = clock.monotonic()
        self._thread.start()
        atexit.register(self.stop)

    def _listen(self) -> None:
        events: Events | None = None
        try:
            self._session = self._database.open()
            events = Events(self._session, self._names)
            self._pass_on(events, self._session)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises here, polling goes on
            if not self._stopping.is_set():
                logger.info("No events from the database, polling instead: %s", error)
                if self._session is not None and isinstance(error, DatabaseUnavailable):
                    fork.note_lost(self._session.connection)  # a fork need not wait for it
                self._lost = True
                clock.sleep(_LAY_OUT)
        finally:
            if events is not None:
                events.close()
            if self._session is not None:
                self._session.close()

    def _pass_on(self, events: Events, session: Session) -> None:
        known = clock.monotonic()
        while not self._stopping.is_set():
            if came := events.wait(_WAKE_TO_LOOK):
                self._wake(came)
            elif not self._waited_for() or clock.monotonic() - known < _SILENCE:
                continue
            elif not session.alive():
                raise DatabaseUnavailable("their connection was lost.")
            known = clock.monotonic()

    def may_begin_anew(self) -> bool:
        """Whether the connection was lost, and so long ago that another listener may take the place of this one."""
        return self._lost and not self._thread.is_alive() and clock.monotonic() - self._started > _QUIET

    def stop(self) -> None:
        """Ends the thread and closes the connection."""
        self._stopping.set()
        atexit.unregister(self.stop)
        if self._thread.is_alive() and not self._lost and self._thread is not threading.current_thread():
            self._thread.join(5 * _WAKE_TO_LOOK)
            if self._thread.is_alive() and self._session is not None:
                self._session.kill()  # it waits for an answer that does not come
                self._thread.join(5 * _WAKE_TO_LOOK)


class WatchedListener:
    """A listener that is started anew when the names change, or when no event arrives although some are posted.

    Any thread may call it: a second listener that began meanwhile would never end.
    """

    def __init__(self, database: Database, names: Callable[[], list[str]], wake: Wake) -> None:
        self._database = database
        self._names = names
        self._wake = wake
        self._lock = threading.RLock()
        self._listener: Listener | None = None
        self._started = 0.0
        self._heard = -math.inf
        self._start_at = math.inf

    def start(self) -> None:
        """Begins to listen, anew if it does already."""
        with self._lock:
            self.stop()
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
        """Listens anew when it is time, or when no event has come. Called every *beat* seconds, when one is posted."""
        with self._lock:
            now = clock.monotonic()
            if self._listener is None:
                if now >= self._start_at:
                    self.start()
            elif now - self._started > _RESTART_AFTER and now - self._heard > _SILENT_BEATS * beat:
                logger.info("No event has arrived for a while: listening anew, and polling meanwhile.")
                self.start()

    def restart(self) -> None:
        """The names have changed: listens anew if it listens; after a pause it will do so under the new ones."""
        with self._lock:
            if self._listener is not None:
                self.start()

    def pause(self) -> None:
        """The database was away: listens anew once it has been there for a while, by :meth:`check`."""
        with self._lock:
            self.stop()
            self._start_at = clock.monotonic() + _QUIET

    def stop(self) -> None:
        """Stops listening, until :meth:`start`."""
        with self._lock:
            self._start_at = math.inf
            if self._listener is not None:
                self._listener.stop()
                self._listener = None
