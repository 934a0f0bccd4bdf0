"""Keeps a program's own signal dispositions, and holds signals while something must not be cut.

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

from fbtasks.firebird import fork
from fbtasks.system.threads import LEFT_ALONE

_ROOM: Final = 512  # bytes, more than any struct sigaction; its first field is the handler
_LIBRARIES: Final = ("libfbclient", "libEngine")

_DEFAULT: Final = 0
_IGNORED: Final = 1

_lock = threading.Lock()
_holders = 0
"""Blocks that hold signals now."""
_held: dict[signal.Signals, Any] = {}
"""The program's handlers of the signals that are held."""
_programs: dict[signal.Signals, Any] = {}
_given_back = False
"""Whether the library has installed its handlers, which it does once, and they were replaced."""


class _Symbol(ctypes.Structure):
    """The answer of ``dladdr`` for an address (``Dl_info``)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@contextmanager
def held_signals() -> Iterator[None]:
    """For the block, the signals that ask to end are held, and are answered at its end, in whatever thread it runs.

    A mask would not do: it is this thread's alone, and the kernel gives a signal to any thread that does not block it.
    So each signal's handler is one of the C library's that does nothing but to have the signal ignored: where that is
    found at the end, the signal came, and is sent again. What is ignored already is left so. A program that another
    thread starts after the signal came, and before the end, inherits that it is ignored: keep the block short.
    """
    global _holders
    if sys.platform == "win32":
        yield
        return
    libc = ctypes.CDLL(None)
    with _lock:
        _holders += 1
        if _holders == 1:
            _hold(libc)
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            came = _give_back(libc) if _holders == 0 else []
        for number in came:
            os.kill(os.getpid(), number)


def _hold(libc: Any) -> None:
    for number in LEFT_ALONE:
        action = _action(libc, number)
        if _handler(action) != _IGNORED:
            _held[number] = action
            ours = ctypes.create_string_buffer(action.raw)
            ctypes.c_void_p.from_buffer(ours).value = _noting(libc)
            libc.sigaction(int(number), ours, None)


def _give_back(libc: Any) -> list[signal.Signals]:
    """Restores the program's handlers. Returns the signals that came. A handler that was set meanwhile stays."""
    came = []
    for number, action in _held.items():
        handler = _handler(_action(libc, number))
        has_come = handler == _IGNORED and signal.getsignal(number) is not signal.SIG_IGN
        if has_come or handler == _noting(libc):
            libc.sigaction(int(number), action, None)
        if has_come:
            came.append(number)
    _held.clear()
    return came


def _in_child() -> None:
    """In a child that was forked meanwhile by another thread: the signals are not held there."""
    global _holders
    _holders = 0
    if _held:
        _give_back(ctypes.CDLL(None))


fork.register(in_child=_in_child)


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


def _handler(action: Any) -> int:
    return ctypes.c_void_p.from_buffer(action).value or 0


def _noting(libc: Any) -> int | None:
    """The handler for a signal that is held: ``sigignore`` is called with the signal's number, as a handler is."""
    return ctypes.cast(libc.sigignore, ctypes.c_void_p).value


def _of_library(libc: Any, action: Any) -> bool:
    handler = _handler(action)
    if handler in (_DEFAULT, _IGNORED):  # which are no addresses
        return False
    symbol = _Symbol()
    found = libc.dladdr(ctypes.c_void_p(handler), ctypes.byref(symbol))
    return bool(found and symbol.file) and os.path.basename(os.fsdecode(symbol.file)).startswith(_LIBRARIES)
