"""A lock that the workers of one host hold around claim and finish on the embedded engine.

Pages that move between processes cost more than waiting for one's turn: four processes that claim side by side
are slower than one, and meet conflicts; one at a time they meet none. On a server there is nothing to lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fbtasks.config import DatabaseURL
from fbtasks.store.lockdir import folder_of, open_lock_file

try:
    import fcntl
except ImportError:  # no flock on Windows: the statements' own conflict retry has to do
    fcntl = None  # type: ignore[assignment]


class HostLock:
    """An exclusive lock per embedded database and host; nothing for a database on a server."""

    def __init__(self, url: DatabaseURL) -> None:
        self._file: int | None = None
        if url.embedded and fcntl is not None:
            name = Path(os.path.realpath(url.database)).name
            self._file = open_lock_file(folder_of(url.database) / f"{name}.turn")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock for the block."""
        if self._file is None:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the file back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
