"""Objects of which a process has one for each database."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from fbtasks.config import Settings
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.firebird import fork


class UserOfDatabase(Protocol):
    """What shares one database among all its users in this process."""

    @property
    def shared(self) -> SharedDatabase:
        """The database."""

    def close(self) -> None:
        """Closes the connections."""


U = TypeVar("U", bound=UserOfDatabase)


class OnePerDatabase(Generic[U]):
    """The objects of which a process has one for each database. A fork begins without any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str | None, bool | None], U] = {}
        self._closes_at_exit = False
        fork.register(in_child=self._forget)

    def get(self, settings: Settings, make: Callable[[], U], good: Callable[[U], bool] = lambda _: True) -> U:
        """Returns the object for the database of *settings*: the one there is while it is *good*, else a new one."""
        key = (str(settings.url), settings.url.password, settings.auto_migrate)
        with self._lock:
            former = self._found.get(key)
            if former is not None and good(former):
                return former
            made = self._found[key] = make()
        if former is not None:
            former.close()
        return made

    def close_all(self) -> None:
        """Closes the connections of all."""
        with self._lock:
            found = list(self._found.values())
            self._found.clear()
        for each in found:
            if not each.shared.inherited:
                each.close()

    def close_at_exit(self) -> None:
        """Closes all when this process ends. To be called after the first use.

        The driver's own exit function, which shuts the library down, must run after this one. A process of Celery's
        pool ends without exit functions, but sends a signal.
        """
        if not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(self.close_all)
            if (signals := sys.modules.get("celery.signals")) is not None:
                signals.worker_process_shutdown.connect(lambda **_: self.close_all(), weak=False, dispatch_uid=id(self))

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._found.clear()
        self._closes_at_exit = False
