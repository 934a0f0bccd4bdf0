"""The lock directory of an embedded database, on which all who open the file must agree.

Two processes with different lock directories lose each other's commits without an error. So the directory follows
from the database's real path, and a guard file beside the database names it: each process that has the database open
holds a shared lock on the guard, and one that would disagree is refused.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fbtasks import clock
from fbtasks.errors import EngineError

try:
    import fcntl
except ImportError:  # Windows: the engine there has no lock directory to disagree on
    fcntl = None  # type: ignore[assignment]

FOLDER: Final = ".fbtasks"
_MODE: Final = 0o2770
_FILE_MODE: Final = 0o660
_HAS_OWNERS: Final = hasattr(os, "chown")
_LOOK: Final = 0.01
_log = logging.getLogger(__name__)


def folder_of(database: str) -> Path:
    """The folder beside the database's real file, made when it is missing. Raises :class:`EngineError`."""
    real = Path(os.path.realpath(database))
    if not real.parent.is_dir():
        raise EngineError(f"there is no folder {real.parent} for the database {database}. Create it.")
    folder = real.parent / FOLDER
    _make(folder, real if real.exists() else real.parent)
    return folder


def _make(folder: Path, like: Path | None = None) -> None:
    """Makes *folder* for the owner and the group of *like*, when it is missing. Raises :class:`EngineError`."""
    try:
        folder.mkdir(mode=_MODE)
    except FileExistsError:
        return
    except OSError as error:
        raise _refused(folder, error) from error
    if _HAS_OWNERS and like is not None:
        facts = like.stat()
        # What root makes goes to the database's owner, who could not open it otherwise.
        owner = facts.st_uid if os.geteuid() == 0 else -1
        with suppress(OSError):  # a group that this user is not in cannot be given
            os.chown(folder, owner, facts.st_gid)
    with suppress(OSError):
        folder.chmod(_MODE)  # past the umask; and chown has cleared the set-group-id bit


def open_lock_file(path: Path) -> int:
    """A descriptor of the lock file *path*, which others of its group may open too. Raises :class:`EngineError`."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), _FILE_MODE)
    except OSError as error:
        raise _refused(path, error) from error
    if hasattr(os, "fchmod"):
        with suppress(OSError):  # past the umask, where the file is this user's
            os.fchmod(file, _FILE_MODE)
    return file


@contextmanager
def exclusive(path: Path, *, patience: float | None = None) -> Iterator[None]:
    """Holds the lock file *path* for the block, which one at a time does; without it after *patience* seconds."""
    file = open_lock_file(path)
    try:
        if fcntl is not None and patience is None:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif fcntl is not None:
            until = clock.monotonic() + patience
            while not _try_exclusive(file) and clock.monotonic() < until:
                time.sleep(_LOOK)
        yield
    finally:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it locked by a fork's copy
        os.close(file)


def _refused(path: Path, error: OSError) -> EngineError:
    """The error for a *path* that this user cannot use: it names user, path and remedy."""
    return EngineError(
        f"user {_user()!r} cannot use {path}: {error.strerror}. Run as the database's owner, or give the folder to "
        f"a group that all its users are in: chgrp -R GROUP {path.parent}; chmod -R g+rwX {path.parent}; "
        f"find {path.parent} -type d -exec chmod g+s {{}} +"
    )


def warn_root(database: str) -> None:
    """Logs a warning when root opens somebody else's database: what it creates may shut the owner out."""
    if not _HAS_OWNERS or os.geteuid() != 0:
        return
    with suppress(OSError):
        owner = os.stat(database).st_uid
        if owner != 0:
            _log.warning(
                "root opens %s, which belongs to uid %d: lock files made by root can shut that user out. "
                "Run as that user instead.",
                database,
                owner,
            )


def _user() -> str:
    try:
        return getpass.getuser() if not _HAS_OWNERS or os.geteuid() == os.getuid() else str(os.geteuid())
    except (OSError, KeyError):  # a uid without a name, as in containers
        return str(os.geteuid())


class Guard:
    """This process's share in the guard of one database; kept as long as the process has it open."""

    directory: Path
    """The lock directory that all who have the database open use."""

    def __init__(self, database: str, loaded: Path | None) -> None:
        """Joins the guard of *database*. *loaded* is the lock directory that this process has already fixed.

        Raises :class:`EngineError` when other processes use another one, or when permission is missing.
        """
        self._real = Path(os.path.realpath(database))
        self._folder = folder_of(database)
        self._path = self._folder / f"{self._real.name}.guard"
        self._file: int | None = None
        if sys.platform == "win32":
            self.directory = self._folder
            return
        self._file = open_lock_file(self._path)
        try:
            self._join(self._file, loaded)
        except OSError as error:
            self.close()
            raise _refused(self._path, error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives up the share. In a forked child this leaves the parent's share as it is."""
        if self._file is not None:
            os.close(self._file)  # never LOCK_UN: that would unlock for the parent of a fork as well
            self._file = None

    def _join(self, file: int, loaded: Path | None) -> None:
        if loaded is not None and not loaded.is_dir():
            raise EngineError(f"{loaded}, the lock directory of this process, was deleted. Restart the process.")
        if _try_exclusive(file):
            # Nobody has the database open, so whatever the guard said before binds nobody.
            self._write(file, loaded or self._default())
        # Going from exclusive to shared may let another process in between, so what counts is read afterwards.
        fcntl.flock(file, fcntl.LOCK_SH)
        named = self._read(file)
        if loaded is not None and not _same(named, loaded):
            raise EngineError(
                f"{self._real} is in use by processes with the lock directory {named}, and this process uses "
                f"{loaded}: they would lose each other's commits. Open {self._real} before any other database, or "
                "in a process of its own."
            )
        if not os.access(named, os.R_OK | os.W_OK | os.X_OK):
            raise _refused(named, PermissionError(13, "Permission denied"))
        self.directory = named

    def _default(self) -> Path:
        directory = self._folder / "lock"
        _make(directory, self._folder)
        return directory

    def _read(self, file: int) -> Path:
        try:
            facts: Any = json.loads(os.pread(file, 65536, 0))
            named = Path(os.path.join(self._folder, facts["directory"]))
            identity = (facts["device"], facts["inode"])
        except (ValueError, KeyError, TypeError):
            raise EngineError(
                f"{self._path} cannot be read. Stop all processes that use the database, then delete that file."
            ) from None
        try:
            found = named.stat()
        except PermissionError as error:
            raise _refused(named, error) from error
        except OSError:
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode) or identity != (found.st_dev, found.st_ino):
            raise EngineError(
                f"{named}, the lock directory that other processes use for {self._real}, is not the same folder "
                "here: this process sees another file system (a container, or systemd's PrivateTmp). Share the "
                "database's whole folder between them, or stop those processes."
            )
        return named

    def _write(self, file: int, directory: Path) -> None:
        facts = directory.stat()
        inside = directory.parent == self._folder
        text = json.dumps(
            {
                "directory": directory.name if inside else str(directory),
                "device": facts.st_dev,
                "inode": facts.st_ino,
            }
        )
        data = text.encode()
        if os.pread(file, 65536, 0) != data:
            os.ftruncate(file, 0)
            os.pwrite(file, data, 0)


def _try_exclusive(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False
