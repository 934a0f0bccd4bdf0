"""The layout of the files through which the processes on an embedded database share memory.

The layouts are those of Firebird 5 on Linux with glibc (``isc_s_proto.h``, ``event.h``); a reader here reads what
others change meanwhile, so each place is checked to be inside its file, and each list to end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fbtasks.errors import EngineError
from fbtasks.firebird.embedded.lockdir import open_regular

# An event: counter, pid of its owner; then glibc's pthread_mutex_t: lock, count, holder, users, kind.
_EVENT: Final = struct.Struct("iiiIiIi")
EVENT_MUTEX_AT: Final = 8
EVENT_CONDITION_AT: Final = EVENT_MUTEX_AT + 40
PLAIN: Final = 128
"""The kind of a plain mutex between processes."""
ROBUST: Final = PLAIN | 16
"""The kind of mutex that tells the next taker that its holder died (``pthread_mutexattr_setrobust``)."""
# Every file begins with a header, and that with the robust mutex that guards the file.
GUARD_AT: Final = 16
_GUARD: Final = struct.Struct("iIiIi")
# The table of events: a ring of processes, each with a ring of sessions; a ring's links are places in the file.
_EVENTS: Final = "fb_event_"
_LINK: Final = struct.Struct("i")
_FLAGS: Final = struct.Struct("H")
_PROCESSES_AT: Final = 92
_KIND_AT: Final = 4
_LINK_AT: Final = 8
_PROCESS: Final = 3
_SESSIONS_AT: Final = 16
_PROCESS_ID_AT: Final = 24
_SESSION: Final = 7
_SESSION_FLAGS_AT: Final = 28
_DELIVERING: Final = 1
# The table of locks (``lock_proto.h``): a ring of processes, each with a ring of owners, which are connections, each
# with a ring of the requests that it waits for; and each lock has a ring of all its requests, granted or not.
_LOCKS: Final = "fb_lock_"
_VERSION_AT: Final = 4
_LOCKS_VERSION: Final = 128 + 19
"""The layout of the table of locks that is known here, for 64 bits."""
_LOCK_PROCESSES_AT: Final = 100
_LOCK_PROCESS: Final = 7
_LOCK_PROCESS_ID_AT: Final = 4
_LOCK_PROCESS_LINK_AT: Final = 8
_OWNERS_AT: Final = 16
_OWNER: Final = 6
_OWNER_LINK_AT: Final = 24
_PENDING_AT: Final = 48
"""The ring of what an owner waits for; and, in each of those requests, its link in that ring."""
_OWNER_PROCESS_AT: Final = 56
_OWNER_EVENT_AT: Final = 80
_OWNER_FLAGS_AT: Final = 176
_WOKEN: Final = 2
_REQUEST: Final = 2
_REQUEST_FLAGS_AT: Final = 4
_REQUEST_OWNER_AT: Final = 8
_REQUEST_LOCK_AT: Final = 12
_REQUEST_LINK_AT: Final = 32
"""Its link in the ring of its lock."""
_LEVELS: Final = struct.Struct("xBB")
"""What is requested, and what is granted."""
_REQUESTS_AT: Final = 4
_SERIES_AT: Final = 40
_PAGE: Final = 3
_SHARED: Final = 3
_EXCLUSIVE: Final = 6
_PENDING: Final = 2
_TOLD: Final = 64
"""Its owner was told that others wait for it; nobody tells it again."""
_MOST: Final = 10_000
"""Links that are followed in a ring."""


class EngineFile:
    """One of the engine's files, mapped once more: what the engine unmaps meanwhile is still there for us."""

    def __init__(self, path: str, file: int, facts: os.stat_result) -> None:
        self.path = path
        self.key = facts.st_ino, facts.st_size
        """Changes when it is made anew or grows."""
        self._memory = mmap.mmap(file, facts.st_size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        """Where its beginning is in our own memory."""

    def event(self, at: int) -> tuple[int, ...] | None:
        """Counter, owner, lock, count, holder, users and kind of the event at a place, if there is room for one."""
        if at < 0 or at % 8 or at + _EVENT.size > len(self._memory):
            return None
        return _EVENT.unpack_from(self._memory, at)

    def guard(self) -> int | None:
        """Which thread holds the mutex that guards the file, 0 for none; None: it has no such mutex."""
        if len(self._memory) < GUARD_AT + _GUARD.size:
            return None
        _, _, holder, _, kind = _GUARD.unpack_from(self._memory, GUARD_AT)
        return int(holder) if kind == ROBUST else None

    def _is_table(self, prefix: str) -> bool:
        return os.path.basename(self.path).startswith(prefix) and self.guard() is not None

    def delivering(self) -> list[tuple[int, int]]:
        """Process ids, and the places of the flags of those of their sessions that are delivering events."""
        found = []
        with suppress(struct.error, IndexError):  # a link that leads nowhere: it is being changed
            for process in _events(self._memory, _PROCESSES_AT, _PROCESS) if self._is_table(_EVENTS) else ():
                (pid,) = _LINK.unpack_from(self._memory, process + _PROCESS_ID_AT)
                for session in _events(self._memory, process + _SESSIONS_AT, _SESSION):
                    flags = session + _SESSION_FLAGS_AT
                    if _FLAGS.unpack_from(self._memory, flags)[0] & _DELIVERING:
                        found.append((pid, flags))
        return found

    def end_delivery(self, flags: int) -> None:
        """Takes the mark of a delivery off a session. The caller holds the file's mutex."""
        _change(self._memory, flags, clear=_DELIVERING)

    @property
    def _has_locks(self) -> bool:
        """True when this is a table of locks whose layout is known."""
        return self._is_table(_LOCKS) and _FLAGS.unpack_from(self._memory, _VERSION_AT)[0] == _LOCKS_VERSION

    def processes(self) -> list[int]:
        """The ids of the processes in a table of locks."""
        pids = []
        with suppress(struct.error, IndexError):  # a link that leads nowhere: it is being changed
            for process in self._lock_processes() if self._has_locks else ():
                (pid,) = _LINK.unpack_from(self._memory, process + _LOCK_PROCESS_ID_AT)
                pids.append(pid)
        return pids

    def _lock_processes(self) -> Iterator[int]:
        return _ring(self._memory, _LOCK_PROCESSES_AT, _LOCK_PROCESS, link=_LOCK_PROCESS_LINK_AT)

    def unanswered(self, pid: int) -> set[tuple[int, int, int]]:
        """Page locks that connections of process *pid* have, were asked for, and have not given up yet.

        Returns the places of the request granted, of the one that waits, and of the lock; none where the layout of the
        table is not known.
        """
        memory = self._memory
        found: set[tuple[int, int, int]] = set()
        if not self._has_locks:
            return found
        with suppress(struct.error, IndexError):  # a link that leads nowhere: it is being changed
            for process in self._lock_processes():
                for owner in _ring(memory, process + _OWNERS_AT, _OWNER, link=_OWNER_LINK_AT):
                    for waiting in _ring(memory, owner + _PENDING_AT, _REQUEST, link=_PENDING_AT):
                        (lock,) = _LINK.unpack_from(memory, waiting + _REQUEST_LOCK_AT)
                        if memory[lock + _SERIES_AT] != _PAGE:
                            continue
                        for granted in _ring(memory, lock + _REQUESTS_AT, _REQUEST, link=_REQUEST_LINK_AT):
                            if _is_unanswered(memory, granted, waiting, pid):
                                found.add((granted, waiting, lock))
        return found

    def ask_again(self, granted: int, waiting: int) -> int:
        """Takes the mark off a request, and notes that who waits for it is woken, to tell its owner once more.

        The caller holds the file's mutex. Returns the place of the event that wakes.
        """
        owner: int = _LINK.unpack_from(self._memory, waiting + _REQUEST_OWNER_AT)[0]
        _change(self._memory, granted + _REQUEST_FLAGS_AT, clear=_TOLD)
        _change(self._memory, owner + _OWNER_FLAGS_AT, add=_WOKEN)
        return owner + _OWNER_EVENT_AT


class EngineFiles:
    """The engine's files in one folder that this process's engine has in memory."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.files: dict[str, EngineFile] = {}
        """Those that the last look has found, by their paths."""

    def mapped(self) -> list[tuple[range, int, EngineFile]]:
        """Where this process's engine has files of the folder in memory, from which place in them on, and which."""
        found = []
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                if self._folder not in line:
                    continue
                parts = line.split(maxsplit=5)
                path = parts[5].rstrip("\n")
                if os.path.dirname(path) == self._folder and (file := self._map(path, int(parts[4]))) is not None:
                    first, last = (int(each, 16) for each in parts[0].split("-"))
                    found.append((range(first, last), int(parts[2], 16), file))
        self.files = {file.path: file for _, _, file in found}
        return found

    def _map(self, path: str, inode: int) -> EngineFile | None:
        """None when another file is there by now."""
        with (
            suppress(OSError, ValueError, EngineError),
            os.fdopen(open_regular(Path(path), os.O_RDWR), "r+b") as opened,
        ):
            facts = os.fstat(opened.fileno())
            if facts.st_ino == inode:
                file = self.files.get(path)
                if file is None or file.key != (facts.st_ino, facts.st_size):
                    file = self.files[path] = EngineFile(path, opened.fileno(), facts)
                return file
        return None

    def tables_of_events(self) -> Iterator[EngineFile]:
        """Those with tables of events, whether this process's engine has them in memory or not."""
        for path in Path(self._folder).glob(f"{_EVENTS}*"):
            with suppress(OSError):
                if (file := self._map(str(path), path.lstat().st_ino)) is not None:
                    yield file


def _is_unanswered(memory: mmap.mmap, granted: int, waiting: int, pid: int) -> bool:
    (flags,) = _FLAGS.unpack_from(memory, granted + _REQUEST_FLAGS_AT)
    if flags & _PENDING or not flags & _TOLD:
        return False
    (requested, _), (_, has) = _LEVELS.unpack_from(memory, waiting), _LEVELS.unpack_from(memory, granted)
    if max(requested, has) < _EXCLUSIVE or min(requested, has) < _SHARED:
        return False
    (owner,) = _LINK.unpack_from(memory, granted + _REQUEST_OWNER_AT)
    (process,) = _LINK.unpack_from(memory, owner + _OWNER_PROCESS_AT)
    return _LINK.unpack_from(memory, process + _LOCK_PROCESS_ID_AT) == (pid,)


def _change(memory: mmap.mmap, flags: int, *, add: int = 0, clear: int = 0) -> None:
    _FLAGS.pack_into(memory, flags, _FLAGS.unpack_from(memory, flags)[0] & ~clear | add)


def _events(memory: mmap.mmap, head: int, kind: int) -> Iterator[int]:
    return _ring(memory, head, kind, link=_LINK_AT, kind_at=_KIND_AT)


def _ring(memory: mmap.mmap, head: int, kind: int, *, link: int, kind_at: int = 0) -> Iterator[int]:
    """The places of a ring's blocks, whose links are *link* behind their beginning.

    Ends where something else is found than a block of that *kind*.
    """
    (at,) = _LINK.unpack_from(memory, head)
    for _ in range(_MOST):
        block = at - link
        if at == head or block < 0 or memory[block + kind_at] != kind:
            return
        yield block
        (at,) = _LINK.unpack_from(memory, at)
