"""What the client library calls from its own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

_kept: list[Any] = []
"""Callbacks, while the process lives: a thread of the client library may call one after its connection went."""


def event_callback(heard: Callable[[bytes], None]) -> Any:
    """A callback for a request for events, which passes on what the library answers."""
    callback = _class()(heard)
    _kept.append(callback)
    return callback


@cache
def no_callback() -> Any:
    """One for a request that is given back at once."""
    return event_callback(lambda _events: None)


@cache
def _class() -> Any:
    from firebird.driver.interfaces import iEventCallbackImpl

    class Callback(iEventCallbackImpl):  # type: ignore[misc]  # the driver has no types
        """Hears the engine, in a thread of the client library."""

        def __init__(self, heard: Callable[[bytes], None]) -> None:
            super().__init__()
            self._heard = heard

        def events_arrived(self, events: bytes) -> None:
            self._heard(events)

        # The base class takes no arguments here, and the library passes itself. Python counts the references.
        def add_ref(self, *_: object) -> None:
            pass

        def release(self, *_: object) -> int:
            return 1

    return Callback
