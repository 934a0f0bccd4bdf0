"""Connections of firebird-driver, to a server or to an embedded file."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from fbtasks.errors import SchemaError
from fbtasks.firebird import fork, letters, library
from fbtasks.firebird.callbacks import no_callback
from fbtasks.firebird.discard import discard
from fbtasks.firebird.embedded import lockdir, mutex_repair
from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
from fbtasks.firebird.facts import Facts, ask
from fbtasks.firebird.signals import preserved_signals
from fbtasks.firebird.translate import translate
from fbtasks.url import DatabaseURL

_PAGE_SIZE: Final = 8192
_NOT_CREATED: Final = 335544733
"""The engine's number for: no file was made. There may be one of that name that is not ours."""
CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server must take a connection."""
_naming = threading.Lock()


def connect(
    url: DatabaseURL,
    *,
    create: bool = False,
    charset: str | None = None,
    page_size: int = _PAGE_SIZE,
    created: Callable[[], None] = lambda: None,
    met: Callable[[Facts], None] = lambda _: None,
) -> Any:
    """A connection of firebird-driver to *url*; with *create*, the embedded file is made when it is missing.

    *created* is called when this call has made it, and *met* with what the database says of itself.

    Raises :class:`EngineError` when the library or the engine cannot be used here, and what the database answers
    as :class:`DatabaseUnavailable`, :class:`AuthenticationError` or :class:`DatabaseError`, and as
    :class:`ConfigurationError` when it does not know the character set.
    """
    fork.refuse_fork()
    letters.make_plain()
    with fork.opening():
        library.load(url, _close_all)
    try:
        if url.host is not None:
            _probe(url.host, url.port)  # nothing of the library's yet: a fork meanwhile does no harm
    except Exception as error:
        raise translate(error, url, connecting=True) from error
    with fork.opening():
        connection, made, facts = _connect(url, create, charset, page_size)
    if made:
        created()
    met(facts)
    return connection


def _connect(url: DatabaseURL, create: bool, charset: str | None, page_size: int) -> tuple[Any, bool, Facts]:
    """The connection, whether the database was created for it, and what it says of itself."""
    try:
        with preserved_signals():
            connection, made = _create(url, page_size) if create else (_attach(url, charset), False)
    except Exception as error:
        raise translate(error, url, connecting=True) from error
    try:
        if url.embedded:
            _enter(connection, url)
        facts = ask(connection)
        _check_version(facts, url)
    except SchemaError:
        connection.close()
        raise
    except Exception as error:
        discard(connection)
        raise translate(error, url, connecting=True) from error
    fork.note(connection)
    return connection, made, facts


def database_exists(url: DatabaseURL) -> bool:
    """Whether the embedded file is there; for a server, True: only a connection can tell.

    Raises :class:`EngineError` when this user may not know.
    """
    return not url.embedded or lockdir.database_exists(url.database)


def keep(url: DatabaseURL) -> None:
    """Has what opening *url* made beside an embedded file stay when this process ends: a queue is there."""
    if url.embedded:
        lockdir.keep(url.database)


def _attach(url: DatabaseURL, charset: str | None) -> Any:
    from firebird.driver import connect as attach

    return attach(
        url.dsn if url.embedded else _patient(url),
        user=url.user or ("SYSDBA" if url.embedded else None),
        password=url.password,
        charset=charset or url.options.get("charset", "UTF8"),
        role=url.options.get("role"),
        auth_plugin_list=url.options.get("auth_plugins"),
    )


def _enter(connection: Any, url: DatabaseURL) -> None:
    """Has this process's engine enter the table of events now: there is a right moment for it."""
    with mutex_repair.entering(library.lock_directory(url)):
        connection._att.que_events(no_callback(), b"\x01")  # for no events; given back when nothing refers to it


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


def _create(url: DatabaseURL, page_size: int) -> tuple[Any, bool]:
    from firebird.driver import DatabaseError, create_database, driver_config

    if not url.embedded:
        return create_database(url.dsn, user=url.user, password=url.password, charset="UTF8"), True
    with exclusive(folder_of(url.database) / "create.lock"):  # of twenty that start at once, one creates it
        if os.path.exists(url.database):
            return _attach(url, None), False
        _check_charset(url)
        driver_config.db_defaults.page_size.value = page_size
        try:
            connection = create_database(url.dsn, user="SYSDBA", charset="UTF8")
        except DatabaseError as error:
            if _NOT_CREATED not in error.gds_codes:  # no room, say: what there is of the file cannot be opened
                with suppress(OSError):
                    os.unlink(url.database)
            raise
        finally:
            driver_config.db_defaults.page_size.value = None
        return connection, True


def _check_charset(url: DatabaseURL) -> None:
    """Raises what the engine says of a character set in *url* that it does not know, before anything is made."""
    from firebird.driver import create_database

    if "charset" in url.options:
        with tempfile.TemporaryDirectory(dir=folder_of(url.database)) as folder:
            create_database(f"{folder}/charset.fdb", user="SYSDBA", charset=url.options["charset"]).drop_database()


def _check_version(facts: Facts, url: DatabaseURL) -> None:
    if facts.version < 5.0:
        raise SchemaError(
            f"{url} is served by Firebird {facts.version}; fbtasks needs Firebird 5 or newer. "
            "Upgrade the server, or keep the queue in an embedded file."
        )


def _close_all() -> None:
    if fork.was_forked():
        return
    for connection in fork.open_connections():
        try:
            connection.close()
        except Exception:  # noqa: BLE001
            discard(connection)
