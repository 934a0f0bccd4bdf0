"""Which file an embedded database is.

A connection keeps the file that it was opened with. When that is deleted, or another one is put in its place, the
connection goes on with a file that no new connection finds: what is written there is lost to all others.
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


def change(url: DatabaseURL, found: FileIdentity | None) -> str:
    """What happened to the file of *url*, when *found* is there now."""
    return f"{url.database} {'was deleted' if found is None else 'was replaced by another file'}"
