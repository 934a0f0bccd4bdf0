"""Waiting for events of the database, on the client library's own interface.

The driver's collector keeps its notifications in a queue that cannot compare two of them, loses what is posted between
a wake and its flush, and may abort the process when it is closed while events are being posted. Here each answer's
counts go into the next request, so that the engine answers at once when something was posted in between.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import cache
from typing import Any

from fbtasks import timing as clock
from fbtasks.errors import DatabaseUnavailable
from fbtasks.firebird.driver.translate import Translated
from fbtasks.firebird.session import Session

_VERSION = b"\x01"
_kept: list[Any] = []
"""Callbacks, while the process lives: a thread of the client library may call one after its connection went."""


def _event_callback(heard: Callable[[bytes], None]) -> Any:
    """A callback for a request for events, which passes on what the library answers."""
    from firebird.driver.interfaces import iEventCallbackImpl

    class Callback(iEventCallbackImpl):  # type: ignore[misc]  # the driver has no types
        """Hears the engine, in a thread of the client library."""

        def events_arrived(self, events: bytes) -> None:
            heard(events)

        # The base class takes no arguments here, and the library passes itself. Python counts the references.
        def add_ref(self, *_: object) -> None:
            pass

        def release(self, *_: object) -> int:
            return 1

    _kept.append(callback := Callback())
    return callback


@cache
def no_callback() -> Any:
    """One for a request that is given back at once."""
    return _event_callback(lambda _events: None)


class Events:
    """The standing request for some events on a connection that serves nothing else."""

    def __init__(self, session: Session, names: Iterable[str]) -> None:
        """Asks for the events. Raises what the database answers, translated."""
        came = self._came = threading.Event()
        answers: list[bytes] = []
        self._answers = answers

        def heard(events: bytes) -> None:
            if events:  # a request that is given back answers with nothing
                answers.append(events)
                came.set()

        self._session = session
        self._counts = dict.fromkeys((name.encode("ascii") for name in names), 0)
        self._callback = _event_callback(heard)
        self._request: Any = None
        self._ask()

    def wait(self, seconds: float) -> list[str]:
        """The names that were posted, as soon as there are any; none after *seconds*.

        Raises :class:`DatabaseUnavailable` when the connection is found to be lost.
        """
        if not self._came.wait(seconds):
            return []
        self._came.clear()
        came: set[bytes] = set()
        while self._answers:
            counts = _read(self._answers.pop(0))
            came |= {name for name, count in counts.items() if count != self._counts.get(name)}
            self._counts.update(counts)
        self._ask()
        return sorted(name.decode("ascii") for name in came)

    def _ask(self) -> None:
        request = _VERSION + b"".join(
            bytes((len(name),)) + name + struct.pack("<I", count) for name, count in self._counts.items()
        )
        # Given back first: afterwards the client library would take the new one for it, and withdraw that.
        self._request = None
        # A server that waits for another client's event port lets all others wait meanwhile.
        with self._session.watched(), Translated(self._session.url):
            self._request = self._session.connection._att.que_events(self._callback, request)

    def close(self) -> None:
        """Withdraws the request."""
        if self._request is not None:
            with suppress(Exception), self._session.watched():
                self._request.cancel()
            # A cancelled request has been given back, which the driver would do again; and if the connection is lost,
            # it is for the library to forget.
            self._request._refcnt = 0
            self._request = None


def round_trip(listener: Session, post: Callable[[], object], name: str, seconds: float) -> float | None:
    """Returns after how many seconds *listener* hears the event that *post* posts. None: not within *seconds*.

    The listener is closed, and before that killed while a server keeps it waiting for the port of its events.
    """
    until = clock.monotonic() + seconds
    limit = threading.Timer(seconds, listener.kill)
    limit.daemon = True
    limit.start()
    with closing(listener), suppress(DatabaseUnavailable):  # it was killed
        try:
            events = Events(listener, [name])
        finally:
            limit.cancel()
        with closing(events):
            events.wait(until - clock.monotonic())  # the first request is answered at once, whatever was posted
            posted = clock.monotonic()
            post()
            if events.wait(until - clock.monotonic()):
                return clock.monotonic() - posted
    return None


def _read(block: bytes) -> dict[bytes, int]:
    counts, at = {}, 1
    while at < len(block):
        end = at + 1 + block[at]
        counts[block[at + 1 : end]] = struct.unpack_from("<I", block, end)[0]
        at = end + 4
    return counts
