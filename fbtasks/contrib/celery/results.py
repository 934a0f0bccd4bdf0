"""The database of this process's result backends: one store for each, with patience while it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.contrib.celery import Celery
from fbtasks.contrib.celery.one_per_database import OnePerDatabase
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import keyvalues
from fbtasks.errors import ConflictError, DatabaseUnavailable
from fbtasks.firebird import fork
from fbtasks.firebird.session import INSERT, Transaction
from fbtasks.queue.notify.results import ResultListener, Waiter
from fbtasks.timing import Backoff

T = TypeVar("T")
POLL: Final = 1.0
"""Seconds between two looks when no event comes."""
FIRST_POLLS: Final = 0.05


class Store:
    """One database, shared by all backends of this process, with the listener of those that wait."""

    def __init__(self, settings: Settings) -> None:
        self.shared = SharedDatabase(settings, (Celery(),))
        self.listener = ResultListener(self.shared.database, keyvalues.EVENTS)
        fork.register(before=self._before_fork)

    def close(self) -> None:
        """Stops listening and closes the connections."""
        self.listener.close()
        self.shared.close()

    def _before_fork(self) -> None:
        if self.shared.detached:
            self.listener.close()


_stores: OnePerDatabase[Store] = OnePerDatabase()


def close_all() -> None:
    """Closes the connections of all backends of this process."""
    _stores.close_all()


class StoreAccess:
    """The store of this process for one database, as one backend uses it."""

    def __init__(self, settings: Settings, patience: float) -> None:
        self._settings = settings
        self._patience = patience
        """Seconds for which a database that does not answer is asked again."""

    @property
    def _store(self) -> Store:
        return _stores.get(self._settings, lambda: Store(self._settings))

    def waiter(self) -> AbstractContextManager[Waiter]:
        """Returns a wait that ends when a value was stored."""
        return self._store.listener.waiter()

    def run(self, work: Callable[[Transaction], T], kind: bytes = INSERT) -> T:
        """Runs *work* in a transaction of its own."""
        found = self._store.shared.use(work, kind)
        _stores.close_at_exit()
        return found

    def run_until_answered(self, work: Callable[[Transaction], T]) -> T:
        """Runs *work* again and again while the database does not answer. Twice must come to the same as once."""
        return self.until_answered(lambda: self.run(work))

    def until_answered(self, ask: Callable[[], T], deadline: float | None = None) -> T:
        """Calls *ask* again while the database does not answer, until *deadline* at most. Returns what it returns."""
        limit = clock.monotonic() + self._patience
        if deadline is not None:
            limit = min(limit, deadline)
        pauses = Backoff(FIRST_POLLS, POLL)
        while True:
            try:
                return ask()
            except (DatabaseUnavailable, ConflictError):
                left = limit - clock.monotonic()
                if left <= 0:
                    raise
            clock.sleep(min(pauses.next(), left))
