"""Backup of a database into a file of this machine, and restore from one.

What is not whole never has the final name: it is written under another one beside it, which is given up at the end.
Nothing is overwritten.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fbtasks.database.database import no_queue
from fbtasks.errors import ConfigurationError, DatabaseError, SchemaError, StatementRefused
from fbtasks.firebird import connections, services
from fbtasks.firebird.connections import sync
from fbtasks.firebird.driver.translate import is_no_backup
from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
from fbtasks.url import DatabaseURL

_REMEDIES: Final = {
    "read": "Name a file that this user can read.",
    "written": "Make room there, or name a file in a folder with room in which this user may write.",
}
Told = Callable[[int], object]
"""Called with the number of bytes so far, several times a second."""


def back_up(url: DatabaseURL, file: Path, told: Told = lambda _: None) -> int:
    """Backs up a database into the new *file* while others work on it. Returns the size in bytes.

    The file has what was committed before the backup began, and its owner alone may read it. Raises
    :class:`ConfigurationError` when there is such a file, :class:`SchemaError` when there is no database,
    :class:`DatabaseError` when the file cannot be written, and what the database answers.
    """
    _check_new(file)
    if not connections.database_exists(url):
        raise SchemaError(no_queue(url.database))
    size = 0
    with _draft_of(file) as draft, _using(file, "written"):
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb", buffering=0) as target:

            def write(data: bytes) -> None:
                nonlocal size
                size += len(data)
                while data:
                    data = data[target.write(data) :]
                told(size)

            services.backup(url, write)
            os.fsync(target.fileno())
        _check_new(file)
        os.rename(draft, file)
        sync(str(file.parent))
    return size


def restore(url: DatabaseURL, file: Path, told: Told = lambda _: None) -> int:
    """Makes a database at *url* of the backup *file*. Returns the size of the backup in bytes.

    Raises :class:`ConfigurationError` when there is no such file, or an embedded database already;
    :class:`DatabaseError` when it cannot be read, is no backup or not a whole one, and what the database answers.
    """
    size = 0
    if url.embedded:
        _check_missing(url)
    with _using(file, "read"):
        source = file.open("rb")

    def read(wanted: int) -> bytes:
        nonlocal size
        with _using(file, "read"):
            data = source.read(wanted)
        size += len(data)
        told(size)
        return data

    with source, _named(file):
        if url.embedded:
            _restore_file(url, read)
        else:
            services.restore(url, url.database, read)
    return size


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Names the *file* in the error of the block when that is no backup."""
    try:
        yield
    except StatementRefused as error:
        if not is_no_backup(error):
            raise
        raise StatementRefused(
            f"{file} is {error}. Name a file that fbtasks backup or gbak has made. A database file needs no "
            "restore: name it by --url."
        ) from error


def _restore_file(url: DatabaseURL, read: Callable[[int], bytes]) -> None:
    path = Path(os.path.realpath(url.database))
    with _draft_of(path) as draft, _using(path, "written"):
        services.restore(url, draft, read)
        sync(draft)
        with exclusive(folder_of(url.database) / "create.lock"):  # which a process holds that creates it now
            _check_missing(url)
            os.rename(draft, path)
            sync(str(path.parent))


def _check_new(file: Path) -> None:
    """Raises :class:`ConfigurationError` unless *file* can be made: it is not there, and its folder is."""
    if file.is_dir():
        raise ConfigurationError(f"{file} is a folder. Name a file in it: {file / 'fbtasks.fbk'}")
    if os.path.lexists(file):
        raise ConfigurationError(f"{file} is there already, and is not overwritten. Name another file, or delete it.")
    if not file.parent.is_dir():
        raise ConfigurationError(f"there is no folder {file.parent} for {file.name}. Create it.")


def _check_missing(url: DatabaseURL) -> None:
    if connections.database_exists(url):
        raise ConfigurationError(
            f"{url.database} is there already, and is not overwritten. Restore to another place, or end all processes "
            "that use that database and move it away."
        )


@contextmanager
def _draft_of(file: Path) -> Iterator[str]:
    """For the block, a name beside *file* that nobody else uses. A file of that name is deleted at the end."""
    draft = f"{file}.{secrets.token_hex(4)}.part"
    try:
        yield draft
    finally:
        with suppress(OSError):
            os.unlink(draft)


@contextmanager
def _using(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatabaseError(f"{file} cannot be {what}: {error.strerror}. {_REMEDIES[what]}") from error
