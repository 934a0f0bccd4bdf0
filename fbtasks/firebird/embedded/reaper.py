"""Reaping dead children while a thread waits for the embedded engine.

A child that dies while it is attached keeps its locks until it is reaped: the engine's lock manager takes a zombie for
a living process. A host program such as Celery's worker reaps its children in the thread that may be waiting for just
those locks. So the watchdog's thread does, when a wait takes long; through the program's own library, which then knows.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

_LIBRARIES: Final = ("billiard.process", "multiprocessing.process")


def reap_children() -> None:
    """Reaps the dead children of the libraries that this program has loaded."""
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is not None:
            with suppress(Exception):  # its own thread is at the same children
                library.active_children()
