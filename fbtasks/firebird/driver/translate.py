"""Errors of the driver as errors of fbtasks: the one place that knows the engine's codes."""

from __future__ import annotations

import re
import socket
from typing import Final

from fbtasks.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    DatabaseShutDown,
    DatabaseUnavailable,
    DuplicateKey,
    DuplicateTask,
    EngineError,
    EnqueueError,
    FBTasksError,
    QueueFull,
    StatementRefused,
)
from fbtasks.firebird.embedded import libraries
from fbtasks.firebird.embedded.root import used_temporary_folder
from fbtasks.url import DatabaseURL

# Numbers of the engine's messages, from its ibase.h.
# The last three: between processes on an embedded file a page's lock is refused now and then to what does not wait, and
# when that happens while a statement is undone, all that is left of its transaction is that it cannot be committed.
_CONFLICT: Final = {335544336, 335544451, 335544878, 335544345, 335544510, 335544348, 336527575, 336527576, 335544469}
# The same with its text alone: the engine took the wait for a page for a deadlock, and chose this statement to end it.
_PAGE_DENIED: Final = re.compile(r"\bpage \d+, page type \d+ lock (?:conversion )?denied\b")
_DUPLICATE: Final = {335544665, 335544349}
_LOGIN: Final = {335544472}
_PERMISSION: Final = {335544352}
_PRIVILEGE: Final = {335545112}
# What a procedure raises by EXCEPTION; and those of the schema: the caller's role does not allow it, a queue is full, a
# workflow or a unique call is refused.
# The lines of a message begin with "-", and where it was raised comes last. To a connection only ON CONNECT does so.
_EXCEPTION: Final = {335544517, 335544848}
_OWN: Final = re.compile(
    r"\b(QUEUE_REFUSED|QUEUE_FULL|QUEUE_BAD_CALL|QUEUE_BAD_EVENT|QUEUE_STEP_REFUSED|QUEUE_DUPLICATE) -?(.*?)"
    r"(?: -?At (?:procedure|function|trigger|block)\b|$)"
)
_ON_CONNECT: Final = re.compile(r"(?:exception \d+ -)?(.*?) ?-At trigger '(.*?)'")
_NETWORK: Final = {335544721, 335544726, 335544727, 335544741, 335544856, 335544648, 335544421}
# A login that failed for no fault of the user's: a server that goes down has closed the list of its users before.
_LOGIN_BROKEN: Final = {335544971, 335545081, 335545105, 335545106}
# Reading from or writing to the connection failed.
_CUT: Final = {335544726, 335544727}
# The database was shut down for maintenance, is being shut down, or was beneath this connection.
_SHUT_DOWN: Final = {335544528, 335544506, 335545132}
# Handles that the library no longer knows: what they stood for went with the connection.
_HANDLE: Final = {335544324, 335544332, 335544485}
# A connection that was killed by name, or had been idle for too long.
_ENDED: Final = {335545130, 335545131}
_IN_USE: Final = 335544453
_METADATA: Final = 335544351
# "Database already opened with engine instance, incompatible with current": the lock on the file is another engine's.
_OTHER_ENGINE: Final = {335545107}
_FILE: Final = {335544344, 335544375}
_WRITE: Final = {335544737}
_NO_ROOM: Final = "operating system directive fallocate failed"
# The whole database is read-only: by its mode, or since it is a replica.
_READ_ONLY_DATABASE: Final = {335544765}
# One that has no name yet, or one of its names.
_TEMPORARY_FILE: Final = re.compile(r"operation for file \"(?:[^\"]*/fb_\w+)?\"")
_READ_ONLY: Final = {335544361}
_CANCELLED: Final = {335544794}
# "Dynamic SQL Error": a name that is unknown, a wrong type, something that cannot be parsed.
_TEXT: Final = {335544569}
# The configuration of the server allows no database at this place.
_PLACE: Final = {335544831}
_CHARSET: Final = {335544509, 335544854}
# A plugin, such as the engine, or ICU could not be loaded.
_LIBRARY: Final = {335545004, 335545167}
# Of gbak: there is such a database already; what is restored is no backup, or ends before its end.
_THERE: Final = {336330766}
_NO_BACKUP: Final = {336330797, 336330972}
_GBAK_ENDS: Final = " -Exiting before completion due to errors"
_GRANT: Final = "Who owns the database can allow it: fbtasks grant ROLE USER"
_GRANT_CREATE: Final = "SYSDBA can allow it: GRANT CREATE DATABASE TO USER NAME"
_DRIVERS: Final = {"firebird", "builtins", "ctypes", "decimal", "struct"}
"""Where the errors that the driver raises come from: beside its own, those of what it converts values with."""


def translate(error: Exception, url: DatabaseURL | None = None, *, connecting: bool = False) -> FBTasksError:
    """The error of fbtasks that *error* stands for; its message names the database, never the password.

    Raises *error* itself when it is not the driver's: the handler of a signal may raise anything at any moment. An
    :class:`OSError` is the system's while *connecting*, if it has a number.
    """
    if not _is_drivers(error, connecting):
        raise error
    codes = set(getattr(error, "gds_codes", None) or ())
    text = " ".join(str(error).split()).removesuffix(_GBAK_ENDS)
    where = str(url) if url else "the database"
    if isinstance(error, UnicodeEncodeError):
        return StatementRefused(
            f"{where}: {error.object!r:.100} has letters that the connection's character set does not have. "
            "Use a connection of UTF8: leave charset out of the URL, or call app.connect(charset='UTF8')."
        )
    if isinstance(error, OSError):
        return DatabaseUnavailable(f"{where} cannot be reached ({text}). {_advice(error, url)}")
    if codes & _THERE:
        return StatementRefused(
            f"{where} is there already, and is not overwritten. Name another one; or delete it on the server, if a "
            "restore that was cut has left it."
        )
    if codes & _NO_BACKUP:
        return StatementRefused(f"no backup, or not a whole one ({text})")
    if codes & _LIBRARY and (advice := libraries.explain()):
        return EngineError(advice)
    if connecting and codes & _CHARSET:
        return ConfigurationError(f"{where} cannot be opened ({text}). Correct charset, or leave it out for UTF8.")
    if (codes & _WRITE or _NO_ROOM in text) and not _TEMPORARY_FILE.search(text):
        return DatabaseUnavailable(f"{where} cannot be written ({text}). Make room on its disk.")
    if codes & (_FILE | _PLACE) and url is not None and url.rooted is not None:
        return DatabaseUnavailable(
            f"{where} cannot be opened ({text}). A path on the server has a slash of its own: {url.rooted}"
        )
    if codes & _LOGIN:
        return AuthenticationError(f"{where} does not accept this user and password. Correct the URL.")
    if codes & _PERMISSION:
        advice = _GRANT_CREATE if "access to DATABASE" in text else _GRANT
        return AuthenticationError(f"{where}: the user may not do this: {text}. {advice}")
    if codes & _PRIVILEGE:
        return AuthenticationError(
            f"{where}: the user may not do this: {text}. Use the login of SYSDBA or of the owner."
        )
    if codes & _EXCEPTION and (own := _OWN.search(text)):
        name, said = own.groups()
        if name == "QUEUE_FULL":
            return QueueFull(said)
        if name == "QUEUE_DUPLICATE":
            return DuplicateTask(
                f"the task {said} has the same key, and has not begun yet (or not ended, as the task's until= and "
                "period= say). Nothing was enqueued by this call.",
                existing=said,
            )
        if name in ("QUEUE_BAD_CALL", "QUEUE_BAD_EVENT"):
            return EnqueueError(f"{said}.")
        if name == "QUEUE_STEP_REFUSED":
            return EnqueueError(f"the workflow cannot be enqueued: {said}. Nothing of it was enqueued.")
        return AuthenticationError(f"{where}: the user may not do this: {said}. {_GRANT}")
    if connecting and (raised := _ON_CONNECT.match(text)):
        return DatabaseUnavailable(
            f"{where} refuses the connection: its trigger {raised[2]} ON CONNECT has raised "
            f"{raised[1].replace(' -', ': ')!r}. Connect when it lets you in, or change it (isql -nodbtriggers)."
        )
    if codes & _READ_ONLY_DATABASE:
        return StatementRefused(
            f"{where} is read-only, and the queue has to be written. gfix -mode read_write makes a database writable, "
            "and gfix -replica none a replica."
        )
    if codes & _SHUT_DOWN:
        return shut_down(url)
    if codes & (_NETWORK | _HANDLE | _LOGIN_BROKEN) or ("closed" in text and not codes):
        return DatabaseUnavailable(f"{where} cannot be reached ({text}). Check host, port and server.")
    if codes & _DUPLICATE:
        return DuplicateKey(text)
    if {_METADATA, _IN_USE} <= codes:
        return ConflictError(text)
    if codes & _OTHER_ENGINE:
        return DatabaseUnavailable(
            f"{where} is open in the engine of another program (isql, FlameRobin, another client library, a Firebird "
            "server), which keeps all others out: close it there. Beside fbtasks use `fbtasks sql` for statements and "
            "app.connect() in programs, or put a server in front of the file and use its URL."
        )
    if _IN_USE in codes:
        said = f"{where}: another connection uses what is needed here alone ({text}). Wait for its end."
        return EngineError(said) if connecting else StatementRefused(said)
    if codes & _FILE and url is not None and url.embedded and _TEMPORARY_FILE.search(text):
        return DatabaseUnavailable(
            f"{where}: the engine cannot write to its folder for temporary files, {used_temporary_folder()} ({text}). "
            "Make room there, or set TMPDIR to a folder that this user may write to and start the process again."
        )
    if codes & _FILE:
        return DatabaseUnavailable(f"{where} cannot be opened ({text}). Check the path and its permissions.")
    if codes & _CONFLICT or _PAGE_DENIED.search(text):
        return ConflictError(text)
    return StatementRefused(f"{where}: {text}")


def shut_down(url: DatabaseURL | None) -> DatabaseShutDown:
    """The error for a database that was shut down."""
    return DatabaseShutDown(
        f"{url or 'the database'} is shut down for maintenance (gfix -shut). It can be used again when an "
        "administrator has brought it online (gfix -online)."
    )


def _may_be_path(error: OSError, url: DatabaseURL) -> bool:
    """Returns True when nobody knows the host of *url*, which names no user: it may be the first folder of a path."""
    return url.user is None and isinstance(error, socket.gaierror)


def _advice(error: OSError, url: DatabaseURL | None) -> str:
    advice = "Check host, port and server."
    if url is None or not _may_be_path(error, url):
        return advice
    file = DatabaseURL(f"/{url.host}/{url.database}", options=url.options)
    return f"{advice} A file on this machine has a third slash: {file}"


def _is_drivers(error: Exception, connecting: bool) -> bool:
    if isinstance(error, OSError):
        return connecting and error.errno is not None
    return type(error).__module__.partition(".")[0] in _DRIVERS


def is_read_only(error: BaseException | None) -> bool:
    """Whether *error* says that something cannot be changed because the transaction is a read-only one."""
    return not _READ_ONLY.isdisjoint(getattr(error, "gds_codes", None) or ())


def was_cancelled(error: BaseException) -> bool:
    """Whether *error* says that the statement was cancelled, or took longer than its timeout."""
    return not _CANCELLED.isdisjoint(getattr(error, "gds_codes", None) or ())


def is_no_backup(error: BaseException | None) -> bool:
    """Whether *error*, or what led to it, says that what is restored is no backup, or not a whole one."""
    return _has(error, _NO_BACKUP)


def is_wrong_text(error: BaseException | None) -> bool:
    """Whether *error*, or what led to it, says that the engine could not compile the text of a statement."""
    return _has(error, _TEXT)


def connection_was_killed(error: BaseException | None) -> bool:
    """Whether *error*, or what led to it, says that the database ended this one connection on purpose."""
    return _has(error, _ENDED)


def connection_was_lost(error: BaseException | None) -> bool:
    """Whether *error*, or what led to it, says that the connection to a server was lost: no disk is full, for one."""
    return _has(error, _CUT)


def server_is_away(error: BaseException, url: DatabaseURL) -> bool:
    """Returns True when *error* says that the server of *url* cannot be reached, or does not answer any more.

    False where it has answered, and refuses something, and where the host of *url* is most likely part of a path.
    """
    if url.embedded or not isinstance(error, DatabaseUnavailable):
        return False
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not _may_be_path(cause, url)
    return _has(error, _NETWORK | _LOGIN_BROKEN)


def was_shut_down(error: BaseException) -> bool:
    """Whether *error*, such as that of a commit, comes of a shutdown of the database for maintenance."""
    return isinstance(error, DatabaseShutDown) or _has(error, _SHUT_DOWN)


def _has(error: BaseException | None, codes: set[int]) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if codes.intersection(getattr(error, "gds_codes", None) or ()):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Translated:
    """Translates what the block raises. A generator would take four times as long, and each statement has one."""

    __slots__ = ("_connecting", "_url")

    def __init__(self, url: DatabaseURL | None = None, *, connecting: bool = False) -> None:
        self._url = url
        self._connecting = connecting

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            raise translate(error, self._url, connecting=self._connecting) from error
