"""Helpers for the tests of applications: another database, eager mode, draining a queue; a pytest plugin."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fbtasks.testing.helpers import EnqueuedTask, drain, eager, enqueued, on_database

__all__ = ["EnqueuedTask", "drain", "eager", "enqueued", "on_database"]


def __getattr__(name: str) -> Any:
    """Imports a helper when it is first used: pytest loads the plugin in every run."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    from fbtasks.testing import helpers

    return getattr(helpers, name)
