"""Keeps a program's own signal dispositions.

The client library installs handlers for SIGINT and SIGTERM at its first attach. They shut the engine down when the
signal comes and keep the program alive; and Python refuses ``signal.signal`` in other threads. So the C library's
``sigaction`` saves and restores them, whatever thread attaches.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_KEPT: Final = (signal.SIGINT, signal.SIGTERM)
_ROOM: Final = 512  # more than any struct sigaction


@contextmanager
def preserved_signals() -> Iterator[None]:
    """Leaves SIGINT and SIGTERM as they were before the block."""
    if sys.platform == "win32":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    saved = {number: ctypes.create_string_buffer(_ROOM) for number in _KEPT}
    for number, buffer in saved.items():
        libc.sigaction(int(number), None, buffer)
    try:
        yield
    finally:
        for number, buffer in saved.items():
            libc.sigaction(int(number), buffer, None)
