"""A lock that the workers of one host hold around claim and finish on the embedded engine.

Pages that move between processes cost more than waiting for one's turn: four processes that claim side by side
are slower than one, and meet conflicts; one at a time they meet none. On a server there is nothing to lock.

It serves speed alone: without it the engine's own locks keep everything right. So nothing waits for it without end. A
process that does not get it in :data:`PATIENCE` seconds goes on without, and hardly waits for it any more until it is
free again. And it is the process's own (a lock of ``fcntl``, not of ``flock``), so that a process that was forked from
this one never holds it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fbtasks import clock
from fbtasks.firebird import fork
from fbtasks.firebird.embedded.lockdir import folder_of, open_lock_file
from fbtasks.url import DatabaseURL

try:
    import fcntl
except ImportError:  # not on Windows: the statements' own conflict retry has to do
    fcntl = None  # type: ignore[assignment]

PATIENCE: Final = 1.0
"""Seconds to wait for the lock; a claim with its finish takes some milliseconds."""
IMPATIENCE: Final = 0.02
"""The same, while it has not been free since this process last waited in vain."""
_LOOK: Final = 0.0002
"""Seconds between two attempts to get it. With ten times as many, two processes that take turns are a fifth slower."""
SAY: Final = 60.0
"""Seconds between two lines of the log about a lock that is not free."""

logger = logging.getLogger(__name__)


class _Turn:
    """The lock file of one database as this process has it open, once: to close it anywhere gives the lock up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self._file = open_lock_file(path)
        self._mine = threading.Lock()
        """Held by the thread that has the turn: the lock of the file is the whole process's."""
        self._missed = False
        self._quiet_until = 0.0

    def take(self) -> bool:
        """Waits for the lock. False when it is not to be had."""
        until = clock.monotonic() + (IMPATIENCE if self._missed else PATIENCE)
        if not self._mine.acquire(timeout=max(0.0, until - clock.monotonic())):
            return False
        taken = False
        try:
            taken = self._wait(until)
        finally:
            if not taken:
                self._mine.release()
        return taken

    def _wait(self, until: float) -> bool:
        try:
            while not self._try():
                if clock.monotonic() >= until:
                    self._miss()
                    return False
                time.sleep(_LOOK)
        except (OSError, ValueError):  # the file was closed, as by a task that closes all that it finds open
            return False
        self._missed = False
        return True

    def give(self) -> None:
        """Releases the lock."""
        with suppress(OSError, ValueError):  # the file was closed, which gives the lock up as well
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._mine.release()

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # another process has it
            return False
        return True

    def _miss(self) -> None:
        self._missed = True
        now = clock.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + SAY
            logger.warning(
                "%s has been locked by another process for %g s. Work goes on without this lock, which may be slower.",
                self.path,
                PATIENCE,
            )

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
