"""Which database a connection is to, and which file an embedded one is.

A connection keeps the file that it was opened with. When that is deleted, or another one is put in its place, the
connection goes on with a file that no new connection finds: what is written there is lost to all others.

The file alone does not tell one database from another: the file of a restored backup may get the number of the one
that was deleted for it, and of a server's file nothing is seen here. So each connection is asked which database it is
to. A restored backup has another GUID. A copy of the file has the same one, but fewer transactions have begun in it.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from fbtasks.errors import DatabaseReplaced, EngineError
from fbtasks.url import DatabaseURL

_MOUNTS: Final = "/proc/self/mountinfo"
_LOST: Final = "Processes that open it under different names have different lock files, and lose each other's commits."


class FileIdentity(NamedTuple):
    """One file, whatever its name: a copy is another one."""

    device: int
    inode: int


class Mark(NamedTuple):
    """Which database connections are to, for a process that must not connect to another one."""

    file: FileIdentity | None
    """None for a database on a server."""
    key: bytes
    """Stands for the database's GUID. Not for its path: with several aliases that is the one which came first."""
    transaction: int = 0
    """The number of a transaction that has been in it, the highest that is known; 0 when none is."""

    def accepts(self, other: Mark) -> bool:
        """Whether *other*, found later, is the same database and not an older copy of it. The files do not matter."""
        return self.key == other.key and self.transaction <= other.transaction


def file_of(url: DatabaseURL, otherwise: FileIdentity | None = None) -> FileIdentity | None:
    """The file that is at the path of *url* now; None when there is none, and for a database on a server.

    *otherwise* when that cannot be told: a folder whose permissions were changed says nothing about the file.
    """
    if not url.embedded:
        return None
    try:
        facts = os.stat(url.database)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return otherwise
    return FileIdentity(facts.st_dev, facts.st_ino)


def refuse_colon(*paths: str) -> None:
    """Raises :class:`EngineError` for a ':' in *paths*, which the client library takes for the end of a host's name."""
    for path in paths:
        drive, rest = os.path.splitdrive(path)
        before, colon, after = rest.partition(":")
        if colon:
            name = drive + before + colon + after.partition(os.sep)[0]
            raise EngineError(
                f"{name} has a ':' in its name, before which the Firebird client library expects the name of a server. "
                f"Rename it, or put the database elsewhere than {path}"
            )


def is_at(url: DatabaseURL, path: str) -> bool:
    """Whether *path* leads to the embedded file of *url* as well: the folder is mounted under two paths (bind mount).

    Not by a symbolic link: the engine knows a file by the path without any, so one there was put in the file's place.
    """
    with suppress(OSError):
        return url.embedded and os.path.realpath(path) == path and os.path.samefile(path, url.database)
    return False


def refuse_second_name(path: str) -> None:
    """Raises :class:`EngineError` when the file *path* has another name, by a hard link."""
    with suppress(OSError):
        facts = os.stat(path)
        if facts.st_nlink > 1 and stat.S_ISREG(facts.st_mode):
            raise EngineError(
                f"{path} has {facts.st_nlink} names (hard links). {_LOST} Delete the others, which this command finds, "
                f"or make copies of them: find {shlex.quote(os.path.dirname(path))} -xdev -samefile {shlex.quote(path)}"
            )


def refuse_mounted(path: str) -> None:
    """Raises :class:`EngineError` when the file *path*, without links in it, is a mount point itself."""
    if path in _mount_points():
        folder, name = os.path.split(path)
        raise EngineError(
            f"{path} is a single file that is mounted there. {_LOST} Mount the folder that holds it, so that all share "
            f"the lock files in it: docker run -v FOLDER:{folder} (in the place of -v FOLDER/{name}:{path})"
        )


def _mount_points() -> set[str]:
    """The places at which something is mounted for this process; none where the system does not tell."""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in mounts}
    return set()


def replaced(url: DatabaseURL, found: FileIdentity | None) -> DatabaseReplaced:
    """The error for a process that had another file open than *found*, which is there now."""
    return DatabaseReplaced(
        f"{change(url, found)} while this process had it open: what is written to the old one is lost to all others. "
        "Connect anew, or start this process again."
    )


def restored(url: DatabaseURL) -> DatabaseReplaced:
    """The error for a process that worked on another database than the one that *url* leads to now."""
    return DatabaseReplaced(
        f"{url} is another database now than the one that this process worked on: it was restored from a backup, moved "
        "or replaced by a copy. Its tasks may have run before, so they do not run here. Start this process again; it "
        "tells whether the database has to be adopted (fbtasks adopt)."
    )


def change(url: DatabaseURL, found: FileIdentity | None) -> str:
    """What happened to the file of *url*, when *found* is there now."""
    return f"{url.database} {'was deleted' if found is None else 'was replaced by another file'}"


class KnownDatabase:
    """Which database all connections of a process are to be to, and whether it is still the one at its place."""

    def __init__(self, url: DatabaseURL) -> None:
        self._url = url
        self.file: FileIdentity | None = None
        """The file of the connections; None before the first, and for a database on a server."""
        self.mark: Mark | None = None
        """Which database the connections are to; None before the first."""
        self._kept: Callable[[], Mark | None] | None = None
        self._met_another = False

    def keep(self, mark: Callable[[], Mark | None] = lambda: None) -> None:
        """Has all connections be to one database: that of the first one, or the one that *mark* returns, if any.

        For a process that works on what was claimed there. Without this a replaced file is followed: the connections
        to the old one are closed when they are idle, and the new one is made ready as at the first use.
        """
        self._kept = mark

    def saw(self, transaction: int) -> None:
        """Notes that a transaction with this number was committed: what does not know of it is an older copy."""
        if self.mark is not None:
            self.mark = self.mark._replace(transaction=max(transaction, self.mark.transaction))

    def check(self) -> None:
        """Raises :class:`DatabaseReplaced` when the database of the connections is not the one at its place any more.

        For a database on a server only if a connection has found that out, in any thread.
        """
        if self.file_changed():
            raise replaced(self._url, file_of(self._url))
        self.check_met()

    def check_met(self) -> None:
        """Raises :class:`DatabaseReplaced` when a connection has met another database."""
        if self._met_another:
            raise restored(self._url)

    def file_changed(self) -> bool:
        """Whether another file is at the place now than that of the connections, or none."""
        return self.file is not None and file_of(self._url, self.file) != self.file

    def refuse_change(self) -> None:
        """Raises :class:`DatabaseReplaced`, for a file that has changed, where that is not followed."""
        if self._kept is not None:
            raise replaced(self._url, file_of(self._url))

    def expected(self) -> Mark | None:
        """Which database the next connection must be to; None before the first, and where a change is followed."""
        return None if self._kept is None else self._kept() or self.mark

    def expect_file(self, found: FileIdentity | None, expected: Mark | None) -> FileIdentity | None:
        """Returns *found*. Raises :class:`DatabaseReplaced` when connections must be to another file."""
        file = expected.file if expected is not None else self.file
        if file is not None and found != file:
            raise replaced(self._url, found)
        return found

    def meet(self, found: Mark, expected: Mark | None) -> None:
        """Notes the database of a new connection. Raises :class:`DatabaseReplaced` when it is not *expected*."""
        if expected is None and (first := self.expected()) is not None:  # another thread was first, and has gone on
            expected = first._replace(transaction=0)
        if expected is not None and not expected.accepts(found):
            self._met_another = True
            raise restored(self._url)
        self.file = found.file
        if expected is None:
            # How far the database has come is counted from what was done in it: of what other connections do,
            # something may be undone when the engine is killed.
            self.mark = found._replace(transaction=0)
