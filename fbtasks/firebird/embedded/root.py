"""The engine's root folder, with our configuration, and the folder for its temporary files.

The wheel's own configuration lets one process open a database. Ours (SuperClassic) lets several, so the engine is given
a root of its own: links to the wheel's files, and our firebird.conf.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from fbtasks.errors import EngineError
from fbtasks.firebird.embedded.lockdir import user_name

_CONFIGURATION: Final = """\
# Several processes open one database; each has an engine of its own.
ServerMode = SuperClassic
DefaultDbCachePages = 4096
# Seconds after which a process that waits for a lock looks whether its owner has died, and whether there is a deadlock.
# After one second it took a page that was only given up late for a deadlock.
DeadlockTimeout = 2
# Only what runs in this process is configured here.
RemoteServicePort = 0
"""
_OWN: Final = ("firebird.conf", "firebird.log")
_TEMPORARY: Final = "FIREBIRD_TMP"
"""Where the engine finds its folder for temporary files; /tmp without it."""


def engine_root(runtime: Path) -> Path:
    """The root for the engine in *runtime*, whole: what is missing in it, as in a cleaned /tmp, is made again.

    Raises :class:`EngineError` when no folder can be written for it.
    """
    key = hashlib.sha256(f"{runtime}\0{_CONFIGURATION}".encode()).hexdigest()[:16]
    root = cache_folder() / f"engine-{key}"
    try:
        root.mkdir(exist_ok=True)
        there = {entry.name for entry in root.iterdir()}
        for entry in runtime.iterdir():
            if entry.name not in there and entry.name not in _OWN:
                with suppress(FileExistsError):  # another process was first
                    (root / entry.name).symlink_to(entry)
        (root / "firebird.log").touch()
        _write_configuration(root / "firebird.conf")
    except OSError as error:
        raise _refused(root, error) from error
    return root


def _write_configuration(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.read_text() == _CONFIGURATION:
            return
    draft, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(draft, "w") as file:
        file.write(_CONFIGURATION)
    os.replace(name, path)  # at once: another process may be reading it


def cache_folder() -> Path:
    """A folder of this user's for what can be made again; in the temporary folder where the user has no home.

    Raises :class:`EngineError` when neither can be written.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(home):  # a user without a home has "~", which would be a name in the working folder
        folder = Path(home) / "fbtasks"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if _can_write(folder) and folder.stat().st_uid == os.getuid():
                return folder
    folder = temporary_folder() / f"fbtasks-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise _refused(folder, error) from error
    if owner != os.getuid():
        raise EngineError(f"{folder} belongs to another user; set XDG_CACHE_HOME to a folder of yours.")
    return folder


def temporary_folder() -> Path:
    """The folder that ``tempfile`` uses, but never the working folder. Raises :class:`EngineError` if there is none."""
    if sys.platform == "win32":
        return Path(tempfile.gettempdir())
    named = [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
    folders = [Path(name).absolute() for name in (*named, "/tmp", "/var/tmp", "/usr/tmp")]  # noqa: S108
    for folder in folders:
        if _can_write(folder):
            return folder
    raise EngineError(
        f"user {user_name()!r} can write to no folder for temporary files, which the Firebird engine needs: "
        f"{', '.join(map(str, folders))}. Set TMPDIR to a folder that this user may write to, or make /tmp one "
        "(docker run --tmpfs /tmp)."
    )


def set_temporary_folder() -> None:
    """Makes the engine use our folder for temporary files, unless the user has named another one that will do."""
    named = os.environ.get(_TEMPORARY)
    if not (named and _can_write(Path(named))):
        os.environ[_TEMPORARY] = str(temporary_folder())


def used_temporary_folder() -> str:
    """The folder that the engine of this process has for temporary files."""
    return os.environ.get(_TEMPORARY, "/tmp")  # noqa: S108


def _can_write(folder: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


def _refused(path: Path, error: OSError) -> EngineError:
    return EngineError(
        f"{error.filename or path} cannot be written: {error.strerror}. The Firebird engine needs a folder of its own "
        "there. Set XDG_CACHE_HOME or TMPDIR to a folder that this user may write to."
    )
