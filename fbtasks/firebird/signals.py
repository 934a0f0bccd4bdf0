"""Keeps a program's own signal dispositions.

The client library installs handlers for SIGINT and SIGTERM at its first attach. They shut the engine down when the
signal comes and keep the program alive; and Python refuses ``signal.signal`` in other threads. So the C library's
``sigaction`` saves and restores them, whatever thread attaches. A signal that comes in between waits until the
program's handlers are back: it would be lost, and the engine with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fbtasks.threads import LEFT_ALONE

_ROOM: Final = 512  # bytes, more than any struct sigaction; its first field is the handler
_LIBRARIES: Final = ("libfbclient", "libEngine")

_lock = threading.Lock()
_programs: dict[signal.Signals, Any] = {}
_given_back = False
"""Whether the library has installed its handlers, which it does once, and they were replaced."""


class _Symbol(ctypes.Structure):
    """What ``dladdr`` tells of an address (``Dl_info``)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@contextmanager
def preserved_signals() -> Iterator[None]:
    """Returns SIGINT and SIGTERM to the program when the block has let the client library take them.

    Only the library's own handlers are replaced: one that the program sets meanwhile in another thread stays. The first
    time, both signals wait in this thread until then, and in all that the library starts.
    """
    if sys.platform == "win32" or _given_back:
        yield
        return
    libc = ctypes.CDLL(None)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_ALONE)
    try:
        _remember(libc)
        try:
            yield
        finally:
            _restore(libc)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _remember(libc: Any) -> None:
    with _lock:
        for number in LEFT_ALONE:
            action = _action(libc, number)
            # Another thread may be in the middle of its attach: the library's handler is never the program's.
            if not _of_library(libc, action):
                _programs[number] = action


def _restore(libc: Any) -> None:
    global _given_back
    with _lock:
        for number in LEFT_ALONE:
            if number in _programs and _of_library(libc, _action(libc, number)):
                libc.sigaction(int(number), _programs[number], None)
                _given_back = True


def _action(libc: Any, number: signal.Signals) -> Any:
    action = ctypes.create_string_buffer(_ROOM)
    libc.sigaction(int(number), None, action)
    return action


def _of_library(libc: Any, action: Any) -> bool:
    handler = ctypes.c_void_p.from_buffer(action).value
    if handler is None or handler == 1:  # SIG_DFL and SIG_IGN are no addresses
        return False
    symbol = _Symbol()
    found = libc.dladdr(ctypes.c_void_p(handler), ctypes.byref(symbol))
    return bool(found and symbol.file) and os.path.basename(os.fsdecode(symbol.file)).startswith(_LIBRARIES)
