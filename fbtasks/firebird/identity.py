"""Which database a connection is to, and which file an embedded one is.

A connection keeps the file that it was opened with. When that is deleted, or another one is put in its place, the
connection goes on with a file that no new connection finds: what is written there is lost to all others.

The file alone does not tell one database from another: the file of a restored backup may get the number of the one
that was deleted for it, and of a server's file nothing is seen here. So each connection is asked which database it is
to. A restored backup has another GUID. A copy of the file has the same one, but fewer transactions have begun in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from fbtasks.errors import DatabaseReplaced, EngineError
from fbtasks.url import DatabaseURL

_MOUNTS: Final = "/proc/self/mountinfo"
_LOST: Final = "Processes that open it under different names have different lock files, and lose each other's commits."
_LARGEST_PAGE: Final = 32768
_ROOM: Final = 2048 + _LARGEST_PAGE
_END: Final = 1
_HEADER: Final = bytes((1, 0, 0))
"""The number of the header page, behind its length. To a user who may not see pages that is said, and 1 is an end."""
_LAYOUT: Final = struct.Struct("<18xH22xH")
"""Where a header page has the version of its layout, and its flags, in the layout of Firebird 4 and 5."""
_ODS: Final = 13
_SHUT_DOWN: Final = 0x0080 | 0x1000
"""The flags of a shutdown: one of them for multi-user, the other one for full, both for single-user maintenance."""
_KEY_SIZE: Final = 16
_FILE: Final = struct.Struct("<QQ")
"""The device and the number of a file; zeros for a database on a server."""
MARK_SIZE: Final = _FILE.size + _KEY_SIZE


class Facts(NamedTuple):
    """The facts of a database."""

    version: float
    """Of the engine that serves it."""
    key: bytes
    """Stands for its GUID, which a restored backup has anew."""
    transaction: int
    """The number of the transaction that began last, of all connections."""
    shut_down: bool
    """Whether it was shut down for maintenance, and lets in its owner and SYSDBA alone."""


def ask(connection: Any) -> Facts:
    """Asks the database of *connection*; in one round trip, instead of the two that the driver's own version takes.

    That it is shut down is read from its header page: MON$DATABASE tells as well, but to read it interrupts all others.
    """
    from firebird.driver.core import CBuffer
    from firebird.driver.types import DbInfoCode as Code

    buffer = CBuffer(_ROOM)
    wanted = (Code.FIREBIRD_VERSION, Code.DB_GUID, Code.NEXT_TRANSACTION, Code.PAGE_CONTENTS)
    connection._att.get_info(bytes(wanted) + _HEADER, buffer.raw)
    answer, at = bytes(buffer.raw.raw), 0
    found = {int(code): b"" for code in wanted}
    while at + 3 <= len(answer) and answer[at] != _END:  # parts: a code, the length of what follows, and that
        end = at + 3 + int.from_bytes(answer[at + 1 : at + 3], "little")
        found[answer[at]] = answer[at + 3 : end]
        at = end
    version, guid, transaction, page = (found[code] for code in wanted)
    ods, flags = _LAYOUT.unpack_from(page.ljust(_LAYOUT.size, b"\0"))
    match = re.search(rb"V(\d+\.\d+)", version)
    return Facts(
        float(match[1]) if match else float(connection.info.engine_version),
        hashlib.blake2b(guid, digest_size=_KEY_SIZE).digest(),
        int.from_bytes(transaction, "little"),
        ods & 0x7FFF == _ODS and flags & _SHUT_DOWN != 0,
    )


def file_of(url: DatabaseURL, otherwise: bytes | None = None) -> bytes | None:
    """The file that is at the path of *url* now, as marks begin with it; None when there is none.

    *otherwise* when that cannot be told: a folder whose permissions were changed says nothing about the file.
    """
    if not url.embedded:
        return bytes(_FILE.size)
    try:
        facts = os.stat(url.database)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return otherwise
    return _FILE.pack(facts.st_dev, facts.st_ino)


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


def file_system(path: str) -> str:
    """Returns the kind of the file system that *path*, without links in it, is on; empty: the system does not tell."""
    mounts = _mount_points()
    while path not in mounts and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return mounts.get(path, "")


def _mount_points() -> dict[str, str]:
    """The kinds of file systems by the places at which they are mounted; none where the system does not tell."""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        found = (line.partition(" - ") for line in mounts)
        return {
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place.split()[4]): kind.split()[0]
            for place, _, kind in found
        }
    return {}


class KnownDatabase:
    """Which database the connections of a process are to, and whether it is still the one at its place."""

    def __init__(self, url: DatabaseURL) -> None:
        self._url = url
        self.mark = b""
        """Stands for the file and the GUID of the database that connections are to; empty before the first. Not for its
        path: with several aliases that is the one which came first."""
        self.transaction = 0
        """The highest number that a transaction of this process is known to have had there: an older copy lacks it."""
        self._told: Callable[[], bytes] | None = None
        self._met_another = False
        self._last = b""
        self.forgets: list[Callable[[], None]] = []
        """Called when connections are to another database than before, by the first of these before it is used."""

    def keep(self, told: Callable[[], bytes] = lambda: b"") -> None:
        """Keeps all connections to one database: that of the first one, or the one whose mark *told* returns, if any.

        For a process that works on what was claimed there. Without this a replaced file is followed: the connections
        to the old one are closed when they are idle, and the new one is made ready as at the first use.
        """
        self._told = told

    @property
    def is_kept(self) -> bool:
        """Whether no other database is followed."""
        return self._told is not None

    @property
    def _expected(self) -> bytes:
        told = self._told() if self._told is not None else b""
        return told if any(told) else self.mark

    def saw(self, transaction: int) -> None:
        """Notes that a transaction with this number was committed."""
        self.transaction = max(transaction, self.transaction)

    def look(self) -> bytes | None:
        """Returns what :func:`file_of` does. Raises :class:`DatabaseReplaced` when connections are to another file."""
        file = self._expected[: _FILE.size]
        found = file_of(self._url, file)
        if file and found != file:
            what = "was deleted" if found is None else "was replaced by another file"
            raise _replaced(f"{self._url.database} {what}")
        return found

    def check(self) -> None:
        """Raises :class:`DatabaseReplaced` when the database of the connections is not the one at its place any more.

        For a database on a server only if a connection has found that out, in any thread.
        """
        self.look()
        if self._met_another:
            raise _replaced(f"{self._url} was restored from a backup, moved or replaced by a copy")

    def meet(self, file: bytes, facts: Facts, seen: int) -> None:
        """Notes the database of a new connection. Raises :class:`DatabaseReplaced` when it must be to another one.

        *seen* is what :attr:`transaction` was before the database was asked: it goes on meanwhile.
        """
        mark = file + facts.key
        if self._told is not None and (expected := self._expected):
            self._met_another |= mark != expected or facts.transaction < seen
        self.check()
        if self._last not in (b"", mark):
            self.transaction = 0
            for forget in self.forgets:
                forget()
        self._last = self.mark = mark


def _replaced(what: str) -> DatabaseReplaced:
    return DatabaseReplaced(
        f"{what} while this process had it open: what is written to the old one is lost to all others. Connect anew, "
        "or start this process again; it tells whether the database has to be adopted (fbtasks adopt)."
    )
