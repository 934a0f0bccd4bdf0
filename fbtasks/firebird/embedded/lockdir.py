"""The lock directory of an embedded database, on which all processes that open the file must agree.

Two processes with different lock directories lose each other's commits without an error. So the directory follows
from the database's real path, and a guard file beside the database names it: each process that has the database open
holds a shared lock on the guard, and one that would disagree is refused.

So is a process of another PID namespace, while one of the first lives: the engine asks the system by their numbers
whether the others on the file live, takes those of another namespace for dead, and gives their locks away. The guard
names the namespace as well. What it says counts only while a process holds the lock, so a container that is started
again, in a new namespace each time, writes its own.

Others of the database's group may write into the folder beside it, and what lies there may be a link that one of them
has put in the place of a file: to another file, which would then be opened, changed or made accessible with the rights
of this process. So nothing is followed or used there but regular files and real folders, and no folder of a stranger.
The engine follows links. It is kept from doing so by a look into the lock directory before each connection.
"""

from __future__ import annotations

import errno
import getpass
import json
import logging
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.errors import EngineError
from fbtasks.firebird.embedded.namespace import pid_namespace

try:
    import fcntl
except ImportError:  # Windows: the engine there has no lock directory to disagree on
    fcntl = None  # type: ignore[assignment]

FOLDER: Final = ".fbtasks"
_MODE: Final = 0o2770
_FILE_MODE: Final = 0o660
_HAS_OWNERS: Final = hasattr(os, "chown")
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER_ONLY: Final = _NO_LINK | getattr(os, "O_DIRECTORY", 0)
_ELSEWHERE: Final = "Put the database into a folder that this user may write to"
_LOOK: Final = 0.01
_log = logging.getLogger(__name__)
_used: dict[Path, tuple[int, int]] = {}
"""The devices and numbers of the lock directories that this process uses."""


def folder_of(database: str) -> Path:
    """The folder beside the database's real file, made when it is missing. Raises :class:`EngineError`."""
    real = Path(os.path.realpath(database))
    if not os.path.isdir(real.parent):
        raise EngineError(f"there is no folder {real.parent} for the database {database}. Create it.")
    folder = real.parent / FOLDER
    like = real if os.path.exists(real) else real.parent
    if not _make(folder, like):
        _check_folder(folder, like)
    return folder


def database_exists(database: str) -> bool:
    """Whether there is a file *database*. Raises :class:`EngineError` when this user may not know."""
    try:
        os.stat(database)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refused(Path(os.path.realpath(database)), error) from error
    return True


def _make(folder: Path, like: Path) -> bool:
    """Makes *folder* for the owner and the group of *like*. False when it is there. Raises :class:`EngineError`."""
    try:
        folder.mkdir(mode=_MODE)
    except FileExistsError:
        return False
    except OSError as error:
        raise _refused(folder, error) from error
    if not _HAS_OWNERS:
        return True
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY | _FOLDER_ONLY)  # not by name, which may lead elsewhere
        try:
            facts = like.stat()
            # What root makes goes to the database's owner, who could not open it otherwise.
            owner = facts.st_uid if os.geteuid() == 0 else -1
            with suppress(OSError):  # a group that this user is not in cannot be given
                os.fchown(file, owner, facts.st_gid)
            os.fchmod(file, _MODE)  # past the umask; and chown has cleared the set-group-id bit
        finally:
            os.close(file)
    return True


def _check_folder(folder: Path, like: Path) -> None:
    """Raises :class:`EngineError` unless *folder* is a real one, and one that the owner of *like* may have made.

    That is this user, root, or the owner or a member of the group of *like* or of the folder that it is in.
    """
    if not _HAS_OWNERS:
        return
    try:
        facts = folder.lstat()
        others = [like.stat(), like.parent.stat()]
    except OSError:  # it has just been deleted, or may not be looked at: its next user is told
        return
    if not stat.S_ISDIR(facts.st_mode):
        raise EngineError(f"{folder} is {_kind(facts.st_mode)}, and has to be a folder: it is not used. Delete it.")
    owners = {0, os.geteuid(), *(other.st_uid for other in others)}
    if facts.st_uid not in owners and facts.st_gid not in {other.st_gid for other in others}:
        raise EngineError(
            f"{folder} belongs to uid {facts.st_uid}, who has nothing to do with {like}: it is not used. Delete it "
            "while no process uses a database there, or give it to the database's owner."
        )


def refuse_links(directory: Path) -> None:
    """Raises :class:`EngineError` when the engine would open something else than files of its own in *directory*."""
    with suppress(FileNotFoundError, PermissionError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                _check_regular(Path(entry.path), entry.stat(follow_symlinks=False))


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of the file *path*, itself and no link to it. Raises :class:`EngineError`, or :class:`OSError`."""
    try:
        file = os.open(path, flags | _NO_LINK, _FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            _check_regular(path, path.lstat())
        raise
    try:
        _check_regular(path, os.fstat(file))
    except EngineError:
        os.close(file)
        raise
    return file


def _check_regular(path: Path, facts: os.stat_result) -> None:
    if not _HAS_OWNERS or (stat.S_ISREG(facts.st_mode) and facts.st_nlink <= 1):
        return
    kind = f"a file with {facts.st_nlink} names" if stat.S_ISREG(facts.st_mode) else _kind(facts.st_mode)
    raise EngineError(
        f"{path} is {kind}, and has to be a file that is nowhere else: it is not used. Find out who of the database's "
        "group has put it there, and delete it."
    )


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a pipe, a socket or a device")


def open_lock_file(path: Path) -> int:
    """A descriptor of the lock file *path*, which others of its group may open too. Raises :class:`EngineError`."""
    try:
        file = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _refused(path, error) from error
    if _HAS_OWNERS and os.fstat(file).st_uid == os.geteuid():
        with suppress(OSError):
            os.fchmod(file, _FILE_MODE)  # past the umask
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
                clock.sleep(_LOOK)
        yield
    finally:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it locked by a fork's copy
        os.close(file)


def _refused(path: Path, error: OSError) -> EngineError:
    """The error for a *path* that this user cannot use: it names the user, what is in the way, and the remedy."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return EngineError(f"{path} cannot be used: {error.strerror}. {_ELSEWHERE}.")
    barrier = path
    while not os.path.exists(barrier):  # nor what is in a folder that this user may not look into
        barrier = barrier.parent
    return EngineError(f"user {user_name()!r} cannot use {barrier}: {error.strerror}. {_remedy(path, barrier)}")


def _remedy(wanted: Path, barrier: Path) -> str:
    """Returns the remedy for a user who may not use *barrier*, and so not *wanted* in it.

    Only fbtasks's own folder is changed with all that is in it.
    """
    group = "give it to a group that all users of the database are in"
    path = shlex.quote(str(barrier))
    if FOLDER in barrier.parts:
        own = shlex.quote(str(next(each for each in (barrier, *barrier.parents) if each.name == FOLDER)))
        return (
            f"Run as the database's owner, or {group}: chgrp -R GROUP {own}; chmod -R g+rwX {own}; "
            f"find {own} -type d -exec chmod g+s {{}} +"
        )
    if not barrier.is_dir():
        return f"Run as its owner, or {group}: chgrp GROUP {path}; chmod g+rw {path}"
    if barrier != wanted.parent or barrier.stat().st_uid == 0:  # a home, or most likely a folder of the system
        return f"{_ELSEWHERE}."
    return f"{_ELSEWHERE}, or {group}: chgrp GROUP {path}; chmod g+rwxs {path}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def warn_root(database: str) -> None:
    """Logs a warning when root opens another user's database: what it creates may shut the owner out."""
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


def user_name() -> str:
    """The name of the user that this process runs as, or the number of one without a name."""
    if not _HAS_OWNERS:
        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a uid without a name, as in containers
        return str(os.geteuid())


class Guard:
    """This process's share in the guard of one database; kept as long as the process has it open."""

    directory: Path
    """The lock directory that all processes with the database open use."""

    def __init__(self, database: str, loaded: Path | None) -> None:
        """Joins the guard of *database*. *loaded* is the lock directory that this process has already fixed.

        Raises :class:`EngineError` when other processes use another one, or when permission is missing.
        """
        self._real = Path(os.path.realpath(database))
        if database_exists(database) and not _may(self._real, os.R_OK | os.W_OK):
            raise _refused(self._real, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        self._folder = folder_of(database)
        self._path = self._folder / f"{self._real.name}.guard"
        if sys.platform == "win32":
            self.directory = self._folder
            return
        file = open_lock_file(self._path)  # which stays open, and locked, while this process lives
        try:
            self.directory = self._agree(file, loaded)
        except BaseException as error:
            os.close(file)  # never LOCK_UN: that would unlock for the parent of a fork as well
            if isinstance(error, OSError) and error.errno is not None:  # else the handler of a signal has raised it
                raise _refused(self._path, error) from error
            raise

    def _agree(self, file: int, loaded: Path | None) -> Path:
        """The lock directory that the guard names; it is written there when no other process has the database open."""
        if _try_exclusive(file):
            # No process has the database open, so what the guard said before binds none.
            self._write(file, loaded or self._default())
        # Going from exclusive to shared may let another process in between, so what counts is read afterwards.
        fcntl.flock(file, fcntl.LOCK_SH)
        named = self._read(file, loaded)
        if loaded is not None and not _same(named, loaded):
            raise EngineError(
                f"{self._real} is in use by processes with the lock directory {named}, and this process uses "
                f"{loaded}: they would lose each other's commits. Open {self._real} before any other database, or "
                "in a process of its own."
            )
        if not _may(named, os.R_OK | os.W_OK | os.X_OK):
            raise _refused(named, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        return named

    def _default(self) -> Path:
        directory = self._folder / "lock"
        if not _make(directory, self._folder):
            _check_folder(directory, self._folder)
        return directory

    def _check_named(self, named: Path, loaded: Path | None) -> None:
        """Raises :class:`EngineError` when the lock directory *named* may be a stranger's.

        A lock directory beside another database is named when the processes that have this one open had opened that
        one before. Root accepts only an owner that fits this database; other users accept one that fits the other.
        """
        if loaded is not None and named == loaded:
            return
        if named.parent == self._folder or os.geteuid() == 0:
            _check_folder(named, self._real if self._real.exists() else self._folder)
        else:
            _check_folder(named, named.parent)

    def _read(self, file: int, loaded: Path | None) -> Path:
        try:
            facts: Any = json.loads(os.pread(file, 65536, 0))
            named = Path(os.path.join(self._folder, facts["directory"]))
            identity = (facts["device"], facts["inode"])
            space = facts["space"]
        except (ValueError, KeyError, TypeError):
            raise EngineError(
                f"{self._path} cannot be read. Stop all processes that use the database, then delete that file."
            ) from None
        if space != _space():
            raise self._elsewhere(space)
        self._check_named(named, loaded)
        try:
            found = named.lstat()
        except PermissionError as error:
            raise _refused(named, error) from error
        except OSError:
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode) or identity != (found.st_dev, found.st_ino):
            raise EngineError(
                f"{named}, the lock directory that other processes use for {self._real}, is not the same folder "
                "here: this process sees other file systems than they do (as with systemd's PrivateTmp). Share the "
                "database's whole folder between them, or stop those processes."
            )
        if _used.setdefault(named, identity) != identity:
            raise EngineError(f"{named}, the lock directory of this process, was deleted. Restart the process.")
        return named

    def _elsewhere(self, space: str) -> EngineError:
        """The error for a database that is open in processes of the PID namespace *space*, which is not ours."""
        unknown = " Which one this process is in cannot be told without /proc: mount it." if _space() == "?" else ""
        return EngineError(
            f"{self._real} is open in processes of another PID namespace ({space}; here it is {_space()}), as a "
            "container, its host and another machine have each their own. The engine would take them for dead, and "
            f"destroy the file.{unknown} Stop those processes; or run all that open the file in one container, or in "
            "containers with one PID namespace (docker run --pid=container:NAME); or use a Firebird server "
            "(firebird://USER:PASSWORD@HOST/DATABASE)."
        )

    def _write(self, file: int, directory: Path) -> None:
        facts = directory.stat()
        name = directory.name if directory.parent == self._folder else str(directory)
        data = json.dumps(
            {"directory": name, "device": facts.st_dev, "inode": facts.st_ino, "space": _space()}
        ).encode()
        if os.pread(file, 65536, 0) != data:
            os.ftruncate(file, 0)
            os.pwrite(file, data, 0)


def _space() -> str:
    return pid_namespace() or "?"


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
