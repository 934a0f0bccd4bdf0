"""Events of the database as a flag that can be waited for.

Events are hints: over TCP they use a second port that a firewall may block in silence, and those posted between
a wake and the next registration are lost. Whoever waits polls as well.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from fbtasks.errors import FBTasksError
from fbtasks.store.database import Database
from fbtasks.store.session import Session

logger = logging.getLogger(__name__)
_WAKE_TO_LOOK: Final = 0.2
"""Seconds after which the thread looks whether it is to end; no query is made."""


class Listener:
    """Calls *wake* from a thread of its own whenever one of the *events* was posted."""

    def __init__(self, database: Database, events: Sequence[str], wake: Callable[[], None]) -> None:
        self._database = database
        self._events = list(events)
        self._wake = wake
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._collector: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begins to listen. False when events cannot be had; then polling has to do."""
        try:
            self._session = self._database.open()
            self._collector = self._session.connection.event_collector(self._events)
            self._collector.begin()
        except FBTasksError as error:
            logger.warning("No events from the database, polling instead: %s", error)
            self.stop()
            return False
        except Exception as error:  # noqa: BLE001  # whatever the driver raises here, polling goes on
            logger.warning("No events from the database, polling instead: %s", error)
            self.stop()
            return False
        self._thread = threading.Thread(target=self._listen, name="fbtasks-events", daemon=True)
        self._thread.start()
        atexit.register(self.stop)
        return True

    def _listen(self) -> None:
        collector = self._collector
        while not self._stopping.is_set():
            counts = collector.wait(_WAKE_TO_LOOK)
            if any(counts.values()):  # at the timeout it is a dictionary of zeros
                collector.flush()
                self._wake()

    def stop(self) -> None:
        """Ends the thread and closes the connection."""
        self._stopping.set()
        atexit.unregister(self.stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10 * _WAKE_TO_LOOK)
            self._thread = None
        if self._collector is not None:
            with suppress(Exception):
                self._collector.close()
            self._collector = None
        if self._session is not None:
            self._session.close()
            self._session = None
