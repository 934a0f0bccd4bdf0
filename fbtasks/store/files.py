"""Which database a connection is to, and which file an embedded one is.

A connection keeps the file that it was opened with. When that is deleted, or another one is put in its place, the
connection goes on with a file that no new connection finds: what is written there is lost to all others.

The file alone does not tell one database from another: the file of a restored backup may get the number of the one
that was deleted for it, and of a server's file nothing is seen here. So each connection is asked which database it is
to. A restored backup has another GUID. A copy of the file has the same one, but fewer transactions have begun in it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from fbtasks.config import DatabaseURL
from fbtasks.errors import DatabaseReplaced


class FileIdentity(NamedTuple):
    """One file, whatever its name: a copy is another one."""

    device: int
    inode: int


class Mark(NamedTuple):
    """Which database connections are to, for a process that must not connect to another one."""

    file: FileIdentity | None
    """None for a database on a server."""
    key: bytes
    """Stands for the database's GUID, and for its path as the engine has it."""
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
