"""A lock that the workers of one host hold around claim and finish on the embedded engine.

Pages that move between processes cost more than waiting for one's turn: four processes that claim side by side
are slower than one, and meet conflicts; one at a time they meet none. On a server there is nothing to lock.

Processes wait for it in the kernel, which wakes one of them when it is free: many that look for it again and again keep
the one that has it from the processor. They get it in turn. Who waits holds a second byte of the file while it is the
next; so who has just given the lock up, and wants it again, comes behind those that wait.

It serves speed alone: without it the engine's own locks keep everything right. So nothing waits for it without end: a
process goes on without it after :data:`PATIENCE` seconds, and hardly waits any more until it moves again. The lock is
the process's own (one of ``fcntl``, not of ``flock``), so that a process that was forked from this one never holds it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fbtasks import timing as clock
from fbtasks.firebird import fork
from fbtasks.firebird.embedded.lockdir import folder_of, open_lock_file
from fbtasks.system.threads import Background
from fbtasks.timing import Quiet
from fbtasks.url import DatabaseURL

try:
    import fcntl
except ImportError:  # not on Windows: the statements' own conflict retry has to do
    fcntl = None  # type: ignore[assignment]

PATIENCE: Final = 3.0
"""Seconds to wait for it. A claim with its finish takes some milliseconds, and more than a second where many processes
share the processors and the disk."""
IMPATIENCE: Final = 0.02
"""The same, when it was waited for in vain and has not been had since."""
_TURN: Final = 0
"""The byte of the file that is locked by the process whose turn it is."""
_NEXT: Final = 1
"""The byte that is locked by the one that waits for that."""

logger = logging.getLogger(__name__)


class _Turn:
    """The lock file of one database as this process has it open, once: to close it anywhere gives the lock up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self._file = open_lock_file(path)
        self._mine = threading.Lock()
        """Held by the thread that has the turn, or waits for it: the lock of the file is the whole process's."""
        self._changed = threading.Condition()
        self._queues = False
        """Whether a thread of this process waits in the kernel."""
        self._wanted = False
        """Whether the lock is to be kept when that one gets it."""
        self._missed = False
        """Whether it was waited for in vain, and has not been had since."""
        self._quiet = Quiet()

    def take(self) -> bool:
        """Waits for the lock. False when it is not to be had."""
        until = clock.monotonic() + (IMPATIENCE if self._missed else PATIENCE)
        if not self._mine.acquire(timeout=max(0.0, until - clock.monotonic())):
            return False
        taken = False
        try:
            taken = (not self._queues and self._try()) or self._wait(until)
        except (OSError, ValueError):  # the file was closed, as by a task that closes all that it finds open
            pass
        finally:
            if not taken:
                self._mine.release()
        return taken

    def _try(self) -> bool:
        """Takes the lock when nobody has it and nobody waits for it."""
        if not self._lock(_NEXT):
            return False
        try:
            taken = self._lock(_TURN)
            self._missed &= not taken
            return taken
        finally:
            self._unlock(_NEXT)

    def _wait(self, until: float) -> bool:
        """Waits for a thread that waits in the kernel: there is no other way out of that wait than to get the lock."""
        with self._changed:
            self._wanted = True
            if not self._queues:
                self._queues = True
                Background(target=self._queue, name="fbtasks-turn").start()
            try:
                if not clock.wait_for(self._changed, lambda: not self._queues, until - clock.monotonic()):
                    self._miss()
                    return False
                return self._wanted  # not when the file was closed
            except BaseException:  # of a signal's handler
                if self._wanted and not self._queues:
                    self._unlock(_TURN)
                raise
            finally:
                self._wanted = False

    def _queue(self) -> None:
        """Waits in the kernel: first among those that wait, then for the lock."""
        taken = False
        with suppress(OSError, ValueError):
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _NEXT)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
                taken = True
            finally:
                self._unlock(_NEXT)
        with self._changed:
            if taken and not self._wanted:
                self._unlock(_TURN)
            self._wanted &= taken
            self._missed &= not taken
            self._queues = False
            self._changed.notify_all()

    def give(self) -> None:
        """Releases the lock."""
        self._unlock(_TURN)
        self._mine.release()

    def _lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # another process has it
            return False
        return True

    def _unlock(self, byte: int) -> None:
        with suppress(OSError, ValueError):  # the file was closed, which gives the lock up as well
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def _miss(self) -> None:
        if not self._missed and self._quiet.over():
            logger.warning(
                "%s has been locked by others for %g s. Work goes on without this lock, which may be slower.",
                self.path,
                PATIENCE,
            )
        self._missed = True

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, -1
        with suppress(OSError):
            os.close(file)


_turns: dict[Path, _Turn] = {}
_opening = threading.Lock()


class HostLock:
    """An exclusive lock per embedded database and host; nothing for a database on a server."""

    def __init__(self, url: DatabaseURL) -> None:
        self._turn: _Turn | None = None
        if url.embedded and fcntl is not None:
            path = folder_of(url.database) / f"{Path(os.path.realpath(url.database)).name}.turn"
            with _opening:
                turn = self._turn = _turns.get(path) or _turns.setdefault(path, _Turn(path))
                turn.users += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock for the block, if it is to be had soon."""
        turn = self._turn
        if turn is None or not turn.take():
            yield
            return
        try:
            yield
        finally:
            turn.give()

    def close(self) -> None:
        """Closes the file when nothing here uses it any more."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        with _opening:
            turn.users -= 1
            if turn.users == 0 and _turns.get(turn.path) is turn:
                del _turns[turn.path]
                turn.close()


def _forked() -> None:
    """In a child: nothing of it is the child's, whatever thread of the parent had it."""
    global _opening
    _opening = threading.Lock()
    for turn in _turns.values():
        turn.close()
    _turns.clear()


fork.register(in_child=_forked)
