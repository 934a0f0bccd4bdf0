"""Watching over waits for the database that take too long.

The client library waits for an answer without end, be it from a server behind a firewall that forgot the connection, or
from a host that vanished. One thread per process looks at what is being waited for:

* On a server's connection that has waited for longer than :data:`PATIENCE` without any progress it calls
  :func:`kill_connection`, on this side alone; the wait then ends with an error. An answer is progress, and so is each
  piece of a long value: a slow link may take as long as it needs.
* The embedded engine cannot be cut off. It waits without end when a process was killed in the middle of a change to
  what all share, and lets a process that is started anew go on; so those that work for the queue alone, and commands,
  end then (see :func:`fbtasks.firebird.embedded.mutex_repair.exit_when_engine_hangs`). Other programs are told in the
  log what to do. A thread that computes, or waits for the disk, does not wait for the engine.
* It waits as well for a dead child of a host program, since the engine's lock manager takes a zombie for a living
  process, which keeps its locks. A host program such as Celery's worker reaps its children in the thread that may be
  waiting for just those locks. So they are reaped here, through the program's own library, which then knows.

Time in which this process was itself stopped (SIGSTOP, a container that is paused) does not count: nothing could answer
it. The thread knows of it since it was stopped as well: its look comes later than it should.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.firebird import fork
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.system import threads
from fbtasks.system.threads import Endless

PATIENCE: Final = 20.0
"""Seconds in which a server must have answered, or taken a piece of a long value. Nothing else takes as long."""
EMBEDDED_PATIENCE: Final = 45.0
"""Seconds that the embedded engine has: a process that is stopped for a while holds up the others."""
_WORKED: Final = 0.25
"""Seconds of processor in the second half of a wait for the embedded engine by which it works and does not hang. While
it waits for another process it looks for deadlocks from time to time, which takes some milliseconds in all."""
_REAP_AFTER: Final = 0.3
"""Seconds after which a wait of a host program is long enough to reap its children."""
_WITH_CHILDREN: Final = ("billiard.process", "multiprocessing.process")
"""Libraries of host programs whose dead children are reaped."""
_LOOK: Final = 1.0
_LOOK_TO_REAP: Final = 0.1
_LATE: Final = 1.0
"""Seconds by which a look may be late in a process that was not stopped."""


class _Wait:
    """One wait; for the block it is watched. A class, since a generator would cost each transaction twice as much."""

    __slots__ = ("connection", "late", "number", "outer", "patience", "thread", "until", "used")

    def __init__(self, patience: float, late: Callable[[_Wait], bool], connection: Any) -> None:
        self.patience = patience
        self.late = late
        """Called with this when the time is over. Returns whether to go on looking at this wait."""
        self.connection = connection
        self.number = 0
        self.outer: _Wait | None = None
        """What the same thread waits for around this."""
        self.until = 0.0
        self.thread = 0
        """The thread that waits, by the number that the system has for it."""
        self.used: float | None = None
        """Seconds of processor that the thread had used when half of the time was over."""

    def __enter__(self) -> None:
        if _thread is None:
            _start()
        self.number = number = next(_numbers)
        self.outer = getattr(_mine, "wait", None)
        self.thread = threading.get_native_id()
        self.until = clock.monotonic() + self.patience
        _mine.wait = _waits[number] = self

    def __exit__(self, *_: object) -> None:
        _mine.wait = self.outer
        _waits.pop(self.number, None)


logger = logging.getLogger(__name__)
_waits: dict[int, _Wait] = {}
_mine = threading.local()
_numbers = count()
_starting = threading.Lock()
_thread: threading.Thread | None = None
_look_closely = threading.Event()


def guard(connection: Any, *, embedded: bool = False) -> AbstractContextManager[None]:
    """For the block, which asks the database something on *connection*, it is watched."""
    return _Wait(EMBEDDED_PATIENCE, _exit, connection) if embedded else _Wait(PATIENCE, _kill, connection)


@contextmanager
def reaping() -> Iterator[None]:
    """For the block, which asks the embedded engine something, dead children are reaped when it takes long."""
    if _thread is None:
        _start()
    number, wait = next(_numbers), _Wait(_REAP_AFTER, _reap, None)
    wait.until = clock.monotonic() + _REAP_AFTER
    _waits[number] = wait
    _look_closely.set()
    try:
        yield
    finally:
        _waits.pop(number, None)


def moved() -> None:
    """This thread has had an answer: what it waits for may take as long again."""
    wait: _Wait | None = getattr(_mine, "wait", None)
    if wait is not None:
        now = clock.monotonic()
        while wait is not None:
            wait.until, wait.used = now + wait.patience, None
            wait = wait.outer


def cancel(connection: Any) -> None:
    """Cancels the statement that runs on *connection*: its thread gets an error."""
    from firebird.driver import CancelType

    connection._att.cancel_operation(CancelType.RAISE)


def forget_cancel(connection: Any) -> None:
    """Drops a :func:`cancel` that came when nothing ran; else it would end the next statement."""
    from firebird.driver import CancelType

    for kind in (CancelType.DISABLE, CancelType.ENABLE):
        connection._att.cancel_operation(kind)


def kill_connection(connection: Any) -> None:
    """Ends *connection* on this side; waits on it end with an error."""
    from firebird.driver import CancelType

    connection._att.cancel_operation(CancelType.ABORT)


def _start() -> None:
    global _thread
    with _starting:
        if _thread is None:
            _thread = Endless(_watch, name="fbtasks-watchdog")
            _thread.start()


def _watch() -> None:
    before = clock.monotonic()
    while True:
        _look_closely.wait(_LOOK)
        _look_closely.clear()
        before = _look(before)
        while any(wait.late is _reap for wait in list(_waits.values())):
            clock.sleep(_LOOK_TO_REAP)
            before = _look(before)


def _look(before: float) -> float:
    """Looks at all waits, after the look at the monotonic time *before*. Returns the time of this one."""
    now = clock.monotonic()
    stopped = now - before - _LOOK
    for number, wait in list(_waits.items()):
        if stopped > _LATE and wait.until - wait.patience < now - _LATE:  # else it began afterwards
            wait.until += stopped
        if wait.late is _exit and wait.used is None and now > wait.until - wait.patience / 2:
            wait.used = threads.processor_time(wait.thread)
        if now > wait.until and not wait.late(wait):
            _waits.pop(number, None)
    return now


def _kill(wait: _Wait) -> bool:
    with suppress(Exception):
        kill_connection(wait.connection)
    return False


def _exit(wait: _Wait) -> bool:
    used = threads.processor_time(wait.thread)
    if threads.is_busy(wait.thread) or used > (wait.used or 0.0) + _WORKED:
        wait.until, wait.used = clock.monotonic() + wait.patience, None
        return True
    why = f"the engine has not answered for {EMBEDDED_PATIENCE:g} seconds."
    if not mutex_repair.exit_if_asked(why):
        logger.warning("This program waits for the database: %s %s", why, mutex_repair.remedy())
    return False


def _reap(_wait: _Wait) -> bool:
    for name in _WITH_CHILDREN:
        library = sys.modules.get(name)
        if library is not None:
            with suppress(Exception):  # its own thread is at the same children
                library.active_children()
    return True


def _forked() -> None:
    """In a child: the parent's thread is not there, and what the parent waits for is the parent's."""
    global _thread, _starting, _look_closely
    _thread, _starting, _look_closely = None, threading.Lock(), threading.Event()
    _waits.clear()
    _mine.wait = None


fork.register(in_child=_forked)
