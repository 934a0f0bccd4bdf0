"""The end of a program while other threads of it still use the database.

Daemon threads go on while the interpreter ends. One that is inside the client library while its connection is closed,
or while the C library unloads the engine, ends the process by SIGSEGV or SIGABRT, whatever status it was to have. So at
the exit no other thread gets into the library any more, and those that are inside are waited for, and cancelled when
that takes long. Where even that does not help, the library is left as it is: nothing is closed, and the process ends
before the engine is unloaded, as if it were killed, but with its own status.

All calls of the driver go through one property, the table of an object's functions. It is replaced at the exit, so that
nothing is spent on this before.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.firebird import watchdog
from fbtasks.firebird.driver import freeing

PATIENCE: Final = 2.0
"""Seconds that calls of other threads have at the exit, and again when they have been cancelled."""
_LOOK: Final = 0.002


def keep_others_out(connections: Iterable[Any]) -> bool:
    """Ends the program's other threads as soon as they call the library, and waits until none is inside.

    False when one does not come out, though its connection is one of *connections* and was cancelled. Then nobody calls
    the library any more.
    """
    from firebird.driver import interfaces

    _let_in(interfaces.iVersioned, threading.get_ident())
    if _wait(_uses_driver) or not _any(_is_inside):
        return True
    for connection in connections:
        with suppress(Exception):
            watchdog.cancel(connection)
    if _wait(_is_inside):
        for connection in connections:
            with suppress(Exception):
                watchdog.forget_cancel(connection)
        return True
    _let_in(interfaces.iVersioned, None)
    skip_unloading()
    return False


def _let_in(kind: Any, thread: int | None) -> None:
    """From now on *thread* alone can call functions of the library."""

    def vtable(thing: Any) -> Any:
        if threading.get_ident() != thread:
            raise SystemExit  # which ends a thread, and nothing is printed
        return thing._as_parameter_.contents.vtable.contents

    kind.vtable = property(vtable)
    hook = sys.unraisablehook

    def say(unraisable: Any) -> None:
        of_driver = str(getattr(unraisable.object, "__module__", "")).startswith("firebird.")
        if not of_driver:  # what such a thread leaves is collected, and cannot be freed
            hook(unraisable)

    sys.unraisablehook = say


def _wait(does: Callable[[FrameType], bool]) -> bool:
    """Waits until no other thread *does* that. False when it takes too long."""
    until = clock.monotonic() + PATIENCE
    while _any(does):
        if clock.monotonic() > until:
            return False
        clock.sleep(_LOOK)
    return True


def _any(does: Callable[[FrameType], bool]) -> bool:
    own = threading.get_ident()
    return any(does(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _is_inside(frame: FrameType) -> bool:
    """Whether a thread is in a call of the library."""
    from firebird.driver import interfaces

    return _is_in(frame, (str(interfaces.__file__), freeing.__file__))


def _uses_driver(frame: FrameType) -> bool:
    """Whether a thread is in the driver, and may be about to look at what the exit frees."""
    import firebird.driver

    return _is_in(frame, (os.path.dirname(str(firebird.driver.__file__)), freeing.__file__))


def _is_in(frame: FrameType | None, places: tuple[str, ...]) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(places):
            return True
        frame = frame.f_back
    return False


def skip_unloading() -> None:
    """Has the process end with its status before any library is unloaded, and without a shutdown of the engine."""
    from firebird.driver import core

    atexit.unregister(core._api_shutdown)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of glibc: what is registered last is called first, and with the status
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
