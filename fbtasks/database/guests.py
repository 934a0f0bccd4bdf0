"""Connections of the application's own, in whose open transaction it enqueues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from fbtasks.database.database import Database
from fbtasks.database.packages import queries
from fbtasks.errors import DatabaseError, EnqueueError
from fbtasks.firebird.session import Transaction
from fbtasks.system.checks import shown
from fbtasks.url import DatabaseURL

_WANTED: Final = (
    "Give the connection whose open transaction the call is to be part of: app.connect(), or your own connection of "
    "firebird-driver"
)
_ALONE: Final = "delay() without using() enqueues in a transaction of its own"
_HOST: Final = re.compile(r"(?P<host>\[[^]]*\]|[^/:\\]{2,})(?:/(?P<port>\d+))?:(?P<database>.*)")
"""A server as the driver may name it: ``host:path`` or ``host/port:path``."""
_SAVEPOINT: Final = "FBTASKS_ENQUEUE"
_accepted: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""For connections whose name of the database is another than the app's: the databases that theirs is."""


def transaction_of(given: Any, database: Database) -> Any:
    """The driver's transaction that *given* stands for, a connection or a transaction manager of *database*.

    Raises :class:`EnqueueError` for anything else, and says how to get what is wanted.
    """
    connection, transaction = check(given)
    if connection.dsn != database.url.dsn:
        _check_database(connection, database)
    return transaction


def transaction(given: Any, database: Database) -> Transaction:
    """The transaction that *given* stands for, to run queries in. Raises :class:`EnqueueError` like the others."""
    return Transaction(transaction_of(given, database), database.url, queries(database.generation))


@contextmanager
def all_or_nothing(transaction: Transaction) -> Iterator[None]:
    """For the block: what it writes is undone when it raises, and the rest of the application's transaction stays."""
    transaction.script(f"SAVEPOINT {_SAVEPOINT}")
    try:
        yield
    except BaseException:
        with suppress(DatabaseError):  # the connection is lost, and all of it is undone
            transaction.script(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        raise
    transaction.script(f"RELEASE SAVEPOINT {_SAVEPOINT} ONLY")


def check(given: Any) -> tuple[Any, Any]:
    """The connection of *given* and its transaction. Raises :class:`EnqueueError` unless it is an open one."""
    from firebird.driver.core import Connection, DistributedTransactionManager, TransactionManager

    if isinstance(given, Connection):
        if given.is_closed():
            raise EnqueueError(f"the connection is closed. {_WANTED}.")
        return given, given.main_transaction
    if isinstance(given, TransactionManager) and not isinstance(given, DistributedTransactionManager):
        connection = given._connection() if given._connection is not None else None
        if connection is None or connection.is_closed():
            raise EnqueueError(f"the transaction manager is closed. {_WANTED}.")
        return connection, given
    raise EnqueueError(f"{_remedy(given)}.")


def _remedy(given: Any) -> str:
    """What is wrong with *given*, and how to get a connection from it."""
    from firebird.driver.core import Cursor, DistributedTransactionManager

    kind = type(given)
    home = kind.__module__.partition(".")[0]
    if given is None:
        return f"None is no connection. {_WANTED}; {_ALONE}"
    if isinstance(given, str):  # not shown: a url may hold a password
        return f"text is no connection. {_WANTED}"
    if isinstance(given, Cursor):
        return "a cursor is no connection. Give its connection: cursor.connection"
    if isinstance(given, DistributedTransactionManager):
        return "a call cannot be part of a distributed transaction. Give one of its connections"
    if home == "sqlalchemy":
        return (
            f"{kind.__name__} of SQLAlchemy is not the driver's connection. Give that: {_of_sqlalchemy(kind.__name__)}"
        )
    if home == "django":
        return "a connection of Django is not the driver's. Give that: connection.connection"
    if kind.__name__ == "Connection":
        return f"a connection of {home} is not one of firebird-driver. {_WANTED}"
    return f"{shown(given)} is no connection. {_WANTED}"


def _of_sqlalchemy(kind: str) -> str:
    """How to get the driver's connection from an object of SQLAlchemy's."""
    if kind == "Engine":
        return "engine.connect() gives a connection, and connection.connection.dbapi_connection the driver's"
    if kind in ("Session", "scoped_session"):
        return "session.connection().connection.dbapi_connection"
    if kind == "_ConnectionFairy":
        return "connection.dbapi_connection"
    return "connection.connection.dbapi_connection"


def _check_database(connection: Any, database: Database) -> None:
    """Raises :class:`EnqueueError` when *connection* has another database open than *database*.

    The names may differ and mean one database: then both are asked which they are, once for each connection.
    """
    url = database.url
    accepted = _accepted.setdefault(connection, set())
    if url.dsn in accepted:
        return
    if not _same_name(connection.dsn, url):
        with suppress(DatabaseError):  # what cannot be told is not refused
            if not database.is_one(connection):
                raise EnqueueError(
                    f"the connection is one to {connection.dsn}, and the app's database is {url}, where its workers "
                    "look. Use app.connect(), or give FBTasks the url of that database."
                )
    accepted.add(url.dsn)


def _same_name(dsn: str, url: DatabaseURL) -> bool:
    """Whether *dsn* is another way to write the server and the database of *url*."""
    match = _HOST.fullmatch(dsn)
    if match is None:
        return False
    return (match["host"].strip("[]"), int(match["port"] or 3050), match["database"]) == (
        url.host,
        url.port,
        url.database,
    )
