"""Giving up on a server that has stopped to answer: a firewall that forgot the connection, a host that vanished.

The client library waits for an answer without end. One thread per process looks now and then at what is being waited
for, and cuts the connection (on this side alone) on which a thread has waited for longer than :data:`PATIENCE` without
any progress; the wait then ends with an error. An answer is progress, and so is each piece of a long value: a slow
link may take as long as it needs.

The embedded engine cannot be cut off. It waits without end when a process was killed in the middle of a change
to what all share, and lets a process that is started anew go on; so those that work for the queue alone end then (see
:func:`fbtasks.firebird.embedded.mutex_repair.exit_when_engine_hangs`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from fbtasks import clock
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.threads import Background

PATIENCE: Final = 20.0
"""Seconds in which a server must have answered, or taken a piece of a long value. Nothing else takes as long."""
EMBEDDED_PATIENCE: Final = 45.0
"""Seconds that the embedded engine has: a process that is stopped for a while holds up the others."""
_LOOK: Final = 1.0


@dataclass(slots=True)
class _Wait:
    patience: float
    connection: Any
    outer: _Wait | None
    """What the same thread waits for around this."""
    until: float = 0.0


_waits: dict[int, _Wait] = {}
_mine = threading.local()
_numbers = count()
_started = threading.Lock()
_thread: threading.Thread | None = None


@contextmanager
def guard(connection: Any, *, embedded: bool = False) -> Iterator[None]:
    """For the block, which asks the database something on *connection*, it is watched."""
    if _thread is None:
        _start()
    number = next(_numbers)
    patience, watched = (EMBEDDED_PATIENCE, None) if embedded else (PATIENCE, connection)
    outer: _Wait | None = getattr(_mine, "wait", None)
    _mine.wait = _waits[number] = _Wait(patience, watched, outer, clock.monotonic() + patience)
    try:
        yield
    finally:
        _mine.wait = outer
        _waits.pop(number, None)


def moved() -> None:
    """This thread has had an answer: what it waits for may take as long again."""
    wait: _Wait | None = getattr(_mine, "wait", None)
    if wait is not None:
        now = clock.monotonic()
        while wait is not None:
            wait.until = now + wait.patience
            wait = wait.outer


def cancel(connection: Any) -> None:
    """Has the engine end the statement that runs on *connection*, with an error in its thread."""
    from firebird.driver import CancelType

    connection._att.cancel_operation(CancelType.RAISE)


def forget_cancel(connection: Any) -> None:
    """Has the engine forget a :func:`cancel` that came when nothing ran; else it ends the next statement."""
    from firebird.driver import CancelType

    for kind in (CancelType.DISABLE, CancelType.ENABLE):
        connection._att.cancel_operation(kind)


def kill_connection(connection: Any) -> None:
    """Cuts *connection* on this side; waits on it end with an error."""
    from firebird.driver import CancelType

    connection._att.cancel_operation(CancelType.ABORT)


def _start() -> None:
    global _thread
    with _started:
        if _thread is None:
            _thread = Background(target=_look, name="fbtasks-watchdog")
            _thread.start()


def _look() -> None:
    pause = threading.Event()
    while not pause.wait(_LOOK):
        now = clock.monotonic()
        for number, wait in list(_waits.items()):
            if now > wait.until:
                _waits.pop(number, None)
                if wait.connection is None:
                    mutex_repair.exit_if_asked(f"the engine has not answered for {EMBEDDED_PATIENCE:g} seconds.")
                    continue
                with suppress(Exception):
                    kill_connection(wait.connection)


def _forked() -> None:
    """In a child: the parent's thread is not there, and what the parent waits for is the parent's."""
    global _thread
    _thread = None
    _waits.clear()
    _mine.wait = None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
