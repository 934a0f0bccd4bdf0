"""Keeps processes on the embedded engine awake to each other when one of them is killed.

The engine's processes ask each other for page locks through events in shared memory: a counter, a mutex and a condition
(``event_t`` in the engine's ``isc_sync``). Two things go wrong there when a process is killed at the wrong moment, for
which it is enough to lose the processor there, and each leaves all processes on the file waiting without end:

* The mutex is not a robust one (see ``pthread_mutexattr_setrobust``). Who dies with it leaves the event's owner deaf.
* A request is noted first and the event posted then. Who dies in between leaves a note that is never read, and that
  keeps all others from posting again.

So each process that uses the engine does two things for its own events, once a second: it unlocks a mutex whose holder
is dead, as a robust mutex would, since the counter that it protects is whole at every moment; and it posts its own
events, whose owner then looks for notes, and finds none nearly always.

A third thing cannot be mended from here: a process that is killed in the middle of a change to the table of locks may
leave a list in it that has no end, and who searches that next holds the table's mutex for good. Nothing of the database
is lost; but the table is made anew only when all processes have left it. So those that exist for nothing else than to
work on the queue end when that has been so for :data:`PATIENCE` looks (see :func:`leave_when_stuck`).
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_FUTEX: Final = {"x86_64": b"202", "aarch64": b"98"}.get(platform.machine())
_WAIT: Final = 0
_WAIT_BITSET: Final = 9
_EVERY: Final = 1.0
"""Seconds between looks; a mutex is freed when two in a row have seen the same dead holder."""
# The engine's event: counter, pid of its owner; then glibc's pthread_mutex_t: lock, count, holder, users, kind.
_EVENT: Final = struct.Struct("iiiIiIi")
_MUTEX_AT: Final = 8
_CONDITION_AT: Final = _MUTEX_AT + 40
_WORDS_AT: Final = (_CONDITION_AT + 40, _CONDITION_AT + 44)
"""What those who wait for the condition sleep on."""
_CONTENDED: Final = 2
_SHARED: Final = 128
"""A plain mutex between processes; a robust one has other bits."""
_ROBUST: Final = 16
_TABLE: Final = "fb_lock_"
_TABLE_MUTEX: Final = struct.Struct("iIiIi")
_TABLE_MUTEX_AT: Final = 16
"""The table of locks begins with a header; its mutex, a robust one, is held for microseconds."""
PATIENCE: Final = 30
"""Looks in a row that find the same thread with that mutex before it is believed to be stuck."""
STUCK: Final = 75
"""The exit code of a process that ends for that (EX_TEMPFAIL of ``sysexits.h``: start it again)."""

logger = logging.getLogger(__name__)
_started = False
_leaves = False


def leave_when_stuck() -> None:
    """Has this process end, with exit code :data:`STUCK`, when it could only wait for the engine without end."""
    global _leaves
    _leaves = True


def start(folder: Path) -> None:
    """Looks after this process's events in the files of *folder* from now on; once in a process.

    Does nothing where threads cannot be looked at: other systems than Linux, or other C libraries than glibc.
    """
    global _started
    if _started:
        return
    possible = sys.platform == "linux" and _FUTEX is not None and platform.libc_ver()[0] == "glibc"
    if possible and os.path.exists("/proc/self/task"):
        _started = True
        threading.Thread(target=_look_after, args=(str(folder.resolve()),), name="fbtasks-robust", daemon=True).start()


def leaves() -> bool:
    """Whether :func:`leave_when_stuck` was called."""
    return _leaves


@dataclass(frozen=True, slots=True)
class _Held:
    """A mutex, by its file and the place in it, and its dead holder."""

    file: str
    mutex: int
    holder: int


class _Files:
    """The engine's files, mapped once more: what the engine unmaps meanwhile is still there for us."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._views: dict[str, tuple[tuple[int, int], mmap.mmap, int]] = {}

    def mapped(self) -> list[tuple[range, int, str]]:
        """Where the engine has files of the folder, from which place on, and which."""
        found = []
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                if self._folder not in line:
                    continue
                parts = line.split(maxsplit=5)
                if os.path.dirname(path := parts[5].rstrip("\n")) == self._folder and self._map(path, int(parts[4])):
                    first, last = (int(each, 16) for each in parts[0].split("-"))
                    found.append((range(first, last), int(parts[2], 16), path))
        return found

    def _map(self, path: str, inode: int) -> bool:
        """False when another file is there by now."""
        with suppress(OSError), open(path, "r+b") as file:
            facts = os.fstat(file.fileno())
            state = (facts.st_ino, facts.st_size)
            if facts.st_ino != inode:
                return False
            if path not in self._views or self._views[path][0] != state:
                memory = mmap.mmap(file.fileno(), facts.st_size)
                self._views[path] = state, memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))
            return True
        return False

    def address(self, path: str, at: int) -> int:
        """Where *at* in a file is in our own memory."""
        return self._views[path][2] + at

    def holder_of_table(self) -> int:
        """The thread that holds the mutex of the table of locks; 0 when nobody does."""
        for path, (state, memory, _) in self._views.items():
            if os.path.basename(path).startswith(_TABLE):
                _, _, holder, _, kind = _TABLE_MUTEX.unpack_from(memory, _TABLE_MUTEX_AT)
                with suppress(OSError):
                    if (
                        holder
                        and kind == _SHARED | _ROBUST
                        and os.stat(path).st_ino == state[0]
                        and not _is_dead(holder)
                    ):
                        return int(holder)
        return 0

    def event(self, path: str, at: int) -> tuple[int, ...] | None:
        """The fields of an event, if there is room for one."""
        _, memory, _ = self._views[path]
        if at < 0 or at % 8 or at + _EVENT.size > len(memory):
            return None
        return _EVENT.unpack_from(memory, at)


def _look_after(folder: str) -> None:
    libc = ctypes.CDLL(None)
    files = _Files(folder)
    before: set[_Held] = set()
    holder, looks = 0, 0
    while True:
        time.sleep(_EVERY)
        with suppress(OSError):
            last, holder = holder, files.holder_of_table() if _leaves else 0
            looks = looks + 1 if holder and holder == last else 0
            if looks >= PATIENCE:
                leave(f"the engine's table of locks has been held by thread {holder} for {PATIENCE} seconds.")
            held = set(_look(files, libc))
            for each in held & before:
                libc.pthread_mutex_unlock(ctypes.c_void_p(files.address(each.file, each.mutex)))
            before = held - before


def _look(files: _Files, libc: Any) -> Iterator[_Held]:
    """Posts the events that threads of this process wait for; gives the mutexes that dead ones hold."""
    waits = [wait for thread in os.listdir("/proc/self/task") if (wait := _sleeps(thread))]
    mapped = files.mapped() if waits or _leaves else []  # also the table of locks is among them
    for operation, address in waits:
        place = next(((start + address - where[0], path) for where, start, path in mapped if address in where), None)
        if place is None:
            continue
        at, path = place
        if operation == _WAIT:
            event = at - _MUTEX_AT
        else:
            event = next((start for start in (at - word for word in _WORDS_AT) if _is_own(files, path, start)), -1)
        holder = _dead_holder(files, path, event)
        if holder:
            yield _Held(path, event + _MUTEX_AT, holder)
        elif operation == _WAIT_BITSET and _is_own(files, path, event):
            _post(files.address(path, event), libc)


def _sleeps(thread: str) -> tuple[int, int] | None:
    """How and where *thread* waits, when it waits for a contended mutex, or without end for a condition."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", "rb") as file:
            call = file.read().split()
    except OSError:  # it has ended
        return None
    if len(call) < 5 or call[0] != _FUTEX:
        return None
    address, operation, value, timeout = (int(each, 16) for each in call[1:5])
    operation &= 127
    contended = operation == _WAIT and value == _CONTENDED
    endless = operation == _WAIT_BITSET and timeout == 0
    return (operation, address) if contended or endless else None


def _is_own(files: _Files, path: str, at: int) -> bool:
    """Whether an event of this process's is there."""
    fields = files.event(path, at)
    return fields is not None and fields[1] == os.getpid() and fields[-1] == _SHARED


def _dead_holder(files: _Files, path: str, at: int) -> int:
    """The thread that holds the mutex of the event there and is dead; 0 when nobody does, or when it lives."""
    fields = files.event(path, at)
    if fields is None:
        return 0
    _, _, lock, _, holder, _, kind = fields
    return holder if lock and holder and kind == _SHARED and _is_dead(holder) else 0


def _is_dead(thread: int) -> bool:
    try:
        os.kill(thread, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        return False
    return False


def _post(event: int, libc: Any) -> None:
    mutex, condition = ctypes.c_void_p(event + _MUTEX_AT), ctypes.c_void_p(event + _CONDITION_AT)
    if libc.pthread_mutex_trylock(mutex) == 0:
        ctypes.c_int.from_address(event).value += 1
        libc.pthread_cond_broadcast(condition)
        libc.pthread_mutex_unlock(mutex)


def leave(why: str) -> None:
    """Ends this process if it is one that leaves."""
    if _leaves:
        logger.critical(
            "This process ends: %s A process that was killed while it changed what the engine's processes share leaves "
            "it so. Start it again; if that does not help, end all others that use the database.",
            why,
        )
        logging.shutdown()
        os._exit(STUCK)


def _forked() -> None:
    """In a child: the parent's thread is not there."""
    global _started
    _started = False


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
