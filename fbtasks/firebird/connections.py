"""Connections of firebird-driver, to a server or to an embedded file."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from typing import Any, Final

from fbtasks.errors import SchemaError
from fbtasks.firebird import fork, library, watchdog
from fbtasks.firebird.driver.discard import discard
from fbtasks.firebird.driver.ending import keep_others_out
from fbtasks.firebird.driver.translate import Translated
from fbtasks.firebird.embedded import lockdir, mutex_repair
from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
from fbtasks.firebird.events import no_callback
from fbtasks.firebird.identity import Facts, ask
from fbtasks.firebird.signals import held_signals, preserved_signals
from fbtasks.url import DatabaseURL

_PAGE_SIZE: Final = 8192
OWN_CHARSET: Final = "UTF8"
"""Of the connections that fbtasks uses itself, whatever the URL says: its texts may have any letters."""
_DRAFT: Final = ".fbtasks-new"
"""Behind the name of a file that is being made."""
CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server must take a connection."""
_naming = threading.Lock()


def connect(
    url: DatabaseURL,
    *,
    create: bool = False,
    charset: str | None = None,
    page_size: int = _PAGE_SIZE,
    fill: Callable[[Any], None] = lambda _: None,
    met: Callable[[Facts], None] = lambda _: None,
) -> Any:
    """A connection of firebird-driver to *url*; with *create*, the embedded file is made when it is missing.

    *fill* is called with a connection to what is to be that file, before others can open it, and *met* with what the
    database says of itself. *charset* is for a connection that the application works with: ``url.charset``.

    Raises :class:`EngineError` when the library or the engine cannot be used here, and what the database answers
    as :class:`DatabaseUnavailable`, :class:`AuthenticationError` or :class:`DatabaseError`, and as
    :class:`ConfigurationError` when it does not know the character set.
    """
    prepare(url)
    with Translated(url, connecting=True), fork.opening():
        with preserved_signals():
            connection = _create(url, page_size, fill) if create else _attach(url, charset)
        try:
            facts = _enter(connection, url)
        except BaseException:
            discard(connection)
            raise
        if facts.version < 5.0:
            connection.close()
            raise SchemaError(
                f"{url} is served by Firebird {facts.version}; fbtasks needs Firebird 5 or newer. "
                "Upgrade the server, or keep the queue in an embedded file."
            )
        fork.note(connection)
    met(facts)
    return connection


def prepare(url: DatabaseURL) -> None:
    """Loads the client library for *url*, and finds out whether its server can be reached.

    Raises as :func:`connect` does.
    """
    fork.refuse_fork()
    with fork.opening():
        library.load(url, _close_all)
    if url.host is not None:
        with Translated(url, connecting=True):
            _probe(url.host, url.port)  # nothing of the library's yet: a fork meanwhile does no harm


def _enter(connection: Any, url: DatabaseURL) -> Facts:
    """Returns the facts of the database of a new connection."""
    with watchdog.guard(connection, embedded=url.embedded):
        if url.embedded:
            with mutex_repair.entering(library.lock_directory(url)):  # the right moment for this process's engine
                connection._att.que_events(no_callback(), b"\x01")  # no events; given back as nothing refers to it
        return ask(connection)


def database_exists(url: DatabaseURL) -> bool:
    """Whether the embedded file is there; for a server, True: only a connection can tell.

    Raises :class:`EngineError` when this user may not know.
    """
    return not url.embedded or lockdir.database_exists(url.database)


def find_the_dead(url: DatabaseURL) -> None:
    """Lets the embedded engine find out which processes with connections have died; a server knows.

    Who has died stays in MON$ATTACHMENTS until somebody wants a lock that he had, as each new connection does. With
    what only reads MON$ that may be never.
    """
    if url.embedded:
        connect(url).close()


def _attach(url: DatabaseURL, charset: str | None) -> Any:
    from firebird.driver import connect as attach

    with watchdog.guard(None, embedded=True) if url.embedded else nullcontext():  # a server has its own time for it
        return attach(
            url.dsn if url.embedded else _patient(url),
            user=url.user or ("SYSDBA" if url.embedded else None),
            password=url.password,
            charset=charset or OWN_CHARSET,
            role=url.options.get("role"),
            auth_plugin_list=url.options.get("auth_plugins"),
        )


def _probe(host: str, port: int) -> None:
    """Raises :class:`OSError` unless something listens there: the client library would wait for minutes."""
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except TimeoutError as error:  # of the socket, which numbers all its errors but this one
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error


def _patient(url: DatabaseURL) -> str:
    """The name under which the driver finds *url* with our connection timeout; its defaults are the application's."""
    from firebird.driver import driver_config

    name = f"fbtasks {url.dsn}"
    with _naming:
        if driver_config.get_database(name) is None:
            config = driver_config.register_database(name)
            config.dsn.value = url.dsn
            config.timeout.value = CONNECT_TIMEOUT
    return name


def _create(url: DatabaseURL, page_size: int, fill: Callable[[Any], None]) -> Any:
    from firebird.driver import create_database

    if not url.embedded:
        return create_database(url.dsn, user=url.user, password=url.password, charset="UTF8")
    with exclusive(folder_of(url.database) / "create.lock"):  # of twenty that start at once, one creates it
        if os.path.exists(url.database):
            return _attach(url, None)
        file = os.path.realpath(url.database)
        with held_signals():
            try:
                _make_file(file + _DRAFT, page_size, fill)
                os.rename(file + _DRAFT, file)
                sync(os.path.dirname(file))  # tasks that are acknowledged are in a file of that name
            except BaseException:
                with suppress(OSError):
                    os.unlink(file + _DRAFT)
                raise
        return _attach(url, None)


def _make_file(path: str, page_size: int, fill: Callable[[Any], None]) -> None:
    """Makes a database file under a name that is given up when it is whole; what was left there is deleted.

    A file whose making was cut cannot be opened. Until it is whole, nothing waits for the disk.
    """
    from firebird.driver import DbWriteMode, connect_server, create_database, driver_config

    with suppress(FileNotFoundError):
        os.unlink(path)
    defaults = driver_config.db_defaults
    defaults.page_size.value, defaults.forced_writes.value = page_size, False
    try:
        connection = create_database(path, user="SYSDBA", charset="UTF8")
    finally:
        defaults.page_size.value = defaults.forced_writes.value = None
    with closing(connection):
        fill(connection)
    with connect_server("", user="SYSDBA", encoding="utf-8") as server:
        server.database.set_write_mode(database=path, mode=DbWriteMode.SYNC)
    sync(path)


def sync(path: str) -> None:
    """Waits until the file, or the names in the folder, are on the disk."""
    if os.name == "nt" and os.path.isdir(path):  # where a folder cannot be opened
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _close_all() -> None:
    connections = fork.open_connections()
    if fork.was_forked() or not keep_others_out(connections):
        return
    for connection in connections:
        try:
            connection.close()
        except Exception:  # noqa: BLE001
            discard(connection)
