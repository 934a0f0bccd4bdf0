"""Frees mutexes of the embedded engine whose holder was killed.

The engine's processes wake each other by events in shared memory. The mutex of such an event is not a robust one (see
``pthread_mutexattr_setrobust``): a process that is killed while it holds the mutex of another one's event, which takes
no more than losing the processor at that moment, leaves that other process deaf to requests for its page locks, and in
the end all processes on the file wait for it without end.

So each process that uses the engine does for its own threads what a robust mutex does by itself: when one waits for a
mutex in the engine's shared memory and the thread that holds it no longer exists, the mutex is unlocked. What the
mutex protects is a counter, which is whole at every moment.
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
from pathlib import Path
from typing import Final

_FUTEX: Final = {"x86_64": b"202", "aarch64": b"98"}.get(platform.machine())
_EVERY: Final = 1.0
"""Seconds between looks; a mutex is freed when two in a row have seen the same thread wait for the same dead one."""
# pthread_mutex_t of glibc: lock, count, owner, users, kind.
_MUTEX: Final = struct.Struct("iIiIi")
_CONTENDED: Final = 2
_SHARED_NORMAL: Final = 128

_started = threading.Lock()


def start(folder: Path) -> None:
    """Looks after the mutexes in shared memory of *folder*'s files from now on, once in a process.

    Does nothing where threads cannot be looked at: other systems than Linux, or other C libraries than glibc.
    """
    possible = sys.platform == "linux" and _FUTEX is not None and platform.libc_ver()[0] == "glibc"
    if possible and os.path.exists("/proc/self/task") and _started.acquire(blocking=False):
        threading.Thread(target=_look_after, args=(str(folder.resolve()),), name="fbtasks-robust", daemon=True).start()


def _look_after(folder: str) -> None:
    before: set[tuple[int, int, int]] = set()
    while True:
        time.sleep(_EVERY)
        with suppress(OSError):
            now = set(_waiting_for_dead(folder))
            for _, address, _ in now & before:
                ctypes.CDLL(None).pthread_mutex_unlock(ctypes.c_void_p(address))
            before = now - before


def _waiting_for_dead(folder: str) -> Iterator[tuple[int, int, int]]:
    """Threads of this process that wait for a mutex in *folder* of a thread that is dead: (thread, address, holder)."""
    ranges: list[range] | None = None
    for thread in os.listdir("/proc/self/task"):
        address = _waits_at(thread)
        if address is None:
            continue
        ranges = _mapped(folder) if ranges is None else ranges
        if any(address in each for each in ranges):
            holder = _holder(address)
            if holder and not _exists(holder):
                yield int(thread), address, holder


def _exists(thread: int) -> bool:
    try:
        os.kill(thread, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _waits_at(thread: str) -> int | None:
    """The address of the contended mutex between processes that *thread* waits for."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", "rb") as file:
            call = file.read().split()
    except OSError:  # it has ended
        return None
    waits = len(call) > 3 and call[0] == _FUTEX and int(call[2], 16) == 0 and int(call[3], 16) == _CONTENDED
    return int(call[1], 16) if waits else None


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


def _holder(address: int) -> int:
    """The thread that holds the mutex at *address*; 0 when none does, or when it is a robust one."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # an error, not a crash, when it is unmapped meanwhile
        memory.seek(address)
        lock, _, owner, _, kind = _MUTEX.unpack(memory.read(_MUTEX.size))
    return owner if lock == _CONTENDED and kind == _SHARED_NORMAL else 0
