"""Reaping dead children while somebody waits for the embedded engine.

A child that dies while it is attached keeps its locks until it is reaped: the engine's lock manager takes a zombie for
a living process. A host program such as Celery's worker reaps its children in the thread that may be waiting for just
those locks. So another thread does, when a wait takes long; through the program's own library, which then knows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final

from fbtasks import clock
from fbtasks.threads import Background

_LOOK: Final = 0.1
_LONG: Final = 0.3
"""Seconds after which a wait is long enough to look."""
_LIBRARIES: Final = ("billiard.process", "multiprocessing.process")

_waits: dict[int, float] = {}
_numbers = count()
_started = threading.Lock()
_thread: threading.Thread | None = None
_begin = threading.Event()


@contextmanager
def reaped() -> Iterator[None]:
    """For the block, which asks the embedded engine something, dead children are reaped when it takes long."""
    if _thread is None:
        _start()
    number = next(_numbers)
    _waits[number] = clock.monotonic()
    _begin.set()
    try:
        yield
    finally:
        _waits.pop(number, None)


def _start() -> None:
    global _thread
    with _started:
        if _thread is None:
            _thread = Background(target=_look, name="fbtasks-reaper")
            _thread.start()


def _look() -> None:
    pause = threading.Event()
    while True:
        _begin.wait()
        _begin.clear()
        while _waits:
            pause.wait(_LOOK)
            oldest = min(list(_waits.values()), default=None)
            if oldest is not None and clock.monotonic() - oldest > _LONG:
                _reap()


def _reap() -> None:
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is not None:
            with suppress(Exception):  # its own thread is at the same children
                library.active_children()


def forget() -> None:
    """In a fork: the parent's thread is not there."""
    global _thread, _started, _begin
    _thread, _started, _begin = None, threading.Lock(), threading.Event()
    _waits.clear()
