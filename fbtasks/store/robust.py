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
"""

from __future__ import annotations

import ctypes
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

_started = False


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


@dataclass(frozen=True, slots=True)
class _Held:
    """A mutex and its dead holder."""

    mutex: int
    holder: int


def _look_after(folder: str) -> None:
    libc = ctypes.CDLL(None)
    before: set[_Held] = set()
    while True:
        time.sleep(_EVERY)
        with suppress(OSError):
            held = set(_look(folder, libc))
            for each in held & before:
                libc.pthread_mutex_unlock(ctypes.c_void_p(each.mutex))
            before = held - before


def _look(folder: str, libc: Any) -> Iterator[_Held]:
    """Posts the events that threads of this process wait for; gives the mutexes in *folder* that dead ones hold."""
    mapped: list[range] | None = None
    for thread in os.listdir("/proc/self/task"):
        operation, address = _sleeps(thread)
        if not address:
            continue
        mapped = _mapped(folder) if mapped is None else mapped
        if not any(address in each for each in mapped):
            continue
        if operation == _WAIT:
            event = address - _MUTEX_AT
        else:
            event = next((at for at in (address - word for word in _WORDS_AT) if _is_own(at)), 0)
        if event and (holder := _dead_holder(event)):
            yield _Held(event + _MUTEX_AT, holder)
        elif event and operation == _WAIT_BITSET:
            _post(event, libc)


def _sleeps(thread: str) -> tuple[int, int]:
    """How and where *thread* waits: for a contended mutex, or without end for a condition. Else 0, 0."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", "rb") as file:
            call = file.read().split()
    except OSError:  # it has ended
        return 0, 0
    if len(call) < 5 or call[0] != _FUTEX:
        return 0, 0
    address, operation, value, timeout = (int(each, 16) for each in call[1:5])
    operation &= 127
    contended = operation == _WAIT and value == _CONTENDED
    endless = operation == _WAIT_BITSET and timeout == 0
    return (operation, address) if contended or endless else (0, 0)


def _mapped(folder: str) -> list[range]:
    """The addresses at which files in *folder* are mapped."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and os.path.dirname(parts[5].rstrip("\n")) == folder:
                first, last = parts[0].split("-")
                found.append(range(int(first, 16), int(last, 16)))
    return found


def _read(event: int) -> tuple[int, ...]:
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # an error, not a crash, when it is unmapped meanwhile
        memory.seek(event)
        return _EVENT.unpack(memory.read(_EVENT.size))


def _is_own(event: int) -> bool:
    """Whether an event of this process's is at *event*."""
    if event % 8:
        return False
    _, pid, *_, kind = _read(event)
    return pid == os.getpid() and kind == _SHARED


def _dead_holder(event: int) -> int:
    """The thread that holds the event's mutex and is dead; 0 when nobody does, or when it lives."""
    _, _, lock, _, holder, _, kind = _read(event)
    if not lock or not holder or kind != _SHARED:
        return 0
    try:
        os.kill(holder, 0)
    except ProcessLookupError:
        return holder
    except PermissionError:  # another user's
        return 0
    return 0


def _post(event: int, libc: Any) -> None:
    mutex, condition = ctypes.c_void_p(event + _MUTEX_AT), ctypes.c_void_p(event + _CONDITION_AT)
    if libc.pthread_mutex_trylock(mutex) == 0:
        ctypes.c_int.from_address(event).value += 1
        libc.pthread_cond_broadcast(condition)
        libc.pthread_mutex_unlock(mutex)


def _forked() -> None:
    """In a child: the parent's thread is not there."""
    global _started
    _started = False


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
