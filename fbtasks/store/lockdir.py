"""The lock directory of an embedded database, on which all who open the file must agree.

Two processes with different lock directories lose each other's commits without an error. So the directory follows
from the database's real path, and a guard file beside the database names it: each process that has the database open
holds a shared lock on the guard, and one that would disagree is refused.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from fbtasks.errors import EngineError

try:
    import fcntl
except ImportError:  # Windows: the engine there has no lock directory to disagree on
    fcntl = None  # type: ignore[assignment]

FOLDER: Final = ".fbtasks"
_MODE: Final = 0o2770


def folder_of(database: str) -> Path:
    """The folder beside the database's real file, made when it is missing. Raises :class:`EngineError`."""
    real = Path(os.path.realpath(database))
    folder = real.parent / FOLDER
    try:
        _make(folder, real.parent)
    except OSError as error:
        raise _refused(folder, error) from error
    return folder


def open_lock_file(path: Path) -> int:
    """Opens a file to lock, made when it is missing and shared with the group whatever the umask says.

    Raises :class:`EngineError`.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    except OSError as error:
        raise _refused(path, error) from error
    with suppress(OSError):  # only its owner may; then it has been done
        os.fchmod(file, 0o660)
    return file


def _make(folder: Path, parent: Path) -> None:
    try:
        folder.mkdir(mode=_MODE)
    except FileExistsError:
        return
    with suppress(OSError):  # the group of the database's folder, where this user may give it
        os.chown(folder, -1, parent.stat().st_gid)
    folder.chmod(_MODE)


def _refused(path: Path, error: OSError) -> EngineError:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        user = str(os.getuid())
    return EngineError(
        f"user {user!r} cannot use {path}: {error.strerror}. Give the folder to a group that all users "
        f"of the database are in: chgrp -R GROUP {path}; chmod -R g+rwX {path}; chmod g+s {path}"
    )


class Guard:
    """This process's share in the guard of one database; kept open as long as the process may use it."""

    def __init__(self, database: str, loaded: Path | None) -> None:
        """Joins the guard of *database*. *loaded* is the lock directory that this process has already fixed."""
        self._real = Path(os.path.realpath(database))
        self._folder = folder_of(database)
        self._path = self._folder / f"{self._real.name}.guard"
        self.directory = self._folder / "lock"
        if sys.platform == "win32":
            return
        self._file = open_lock_file(self._path)
        self._join(loaded)

    def _join(self, loaded: Path | None) -> None:
        if loaded is not None and not loaded.is_dir():
            raise EngineError(f"{loaded}, the lock directory of this process, was deleted. Restart the process.")
        alone = self._try_exclusive()
        named = self._read()
        if alone and (named is None or (loaded is not None and not _same(named, loaded))):
            named = loaded or self._default()
            self._write(named)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        named = self._read()
        if named is None:
            raise EngineError(f"{self._path} cannot be read. With no process using the database, delete it.")
        if loaded is not None and not _same(named, loaded):
            raise EngineError(
                f"{self._real} is in use with the lock directory {named}, and this process uses {loaded}: they would "
                "lose each other's commits. Open this database first, or in a process of its own."
            )
        if not os.access(named, os.R_OK | os.W_OK | os.X_OK):
            raise _refused(named, PermissionError(13, "Permission denied"))
        self.directory = named

    def _try_exclusive(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._file, fcntl.LOCK_SH)  # waits for one that is writing it
            return False
        return True

    def _default(self) -> Path:
        directory = self._folder / "lock"
        try:
            _make(directory, self._folder)
        except OSError as error:
            raise _refused(directory, error) from error
        return directory

    def _read(self) -> Path | None:
        try:
            facts = json.loads(os.pread(self._file, 65536, 0))
            path = Path(os.path.join(self._folder, facts["directory"]))
            found = path.stat()
        except (ValueError, KeyError, TypeError):
            return None
        except OSError:
            return self._default() if self._is_default(facts) else path
        if facts.get("inode") != found.st_ino and not self._is_default(facts):
            raise EngineError(
                f"{path}, the lock directory of {self._real}, is not the one that other processes use: they see "
                "another file system. Share the folder between them."
            )
        return path

    @staticmethod
    def _is_default(facts: object) -> bool:
        return isinstance(facts, dict) and facts.get("directory") == "lock"

    def _write(self, directory: Path) -> None:
        inside = directory.parent == self._folder
        facts = {"directory": directory.name if inside else str(directory), "inode": directory.stat().st_ino}
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(facts).encode(), 0)


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False
