"""The app as its results know it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fbtasks.config import Settings
    from fbtasks.notify.outcomes import OutcomeReader
    from fbtasks.notify.results import Waiter
    from fbtasks.serialize import Serializer
    from fbtasks.store.database import Database


class Application(Protocol):
    """The settings of an app and its way to the database. :class:`fbtasks.definition.App` adds the tasks."""

    name: str
    settings: Settings
    serializer: Serializer
    database: Database
    outcomes: OutcomeReader

    def waiting(self) -> AbstractContextManager[Waiter]:
        """A wait that ends early when some task finishes."""

    def connect(self, **options: Any) -> Any:
        """A connection of firebird-driver to the app's database, for the application's own data."""

    def migrate(self) -> list[int]:
        """Brings the database's schema up to date. Returns the versions applied now."""

    def close(self) -> None:
        """Closes all connections; the next use opens new ones."""
