"""Connections of the application's own, in whose open transaction it enqueues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from fbtasks.database.database import Database
from fbtasks.database.packages import queries
from fbtasks.errors import DatabaseError, EnqueueError
from fbtasks.firebird.session import Transaction
from fbtasks.system.checks import shown

_WANTED: Final = (
    "Give the connection whose open transaction the call is to be part of: app.connect(), or your own connection of "
    "firebird-driver, which SQLAlchemy has as connection.connection.dbapi_connection, and Django as "
    "connection.connection. delay() without using() enqueues in a transaction of its own."
)
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

    what = "text" if isinstance(given, str) else shown(given)  # a url may hold a password
    if isinstance(given, Connection):
        if not given.is_closed():
            return given, given.main_transaction
        what = "what is closed"
    elif isinstance(given, TransactionManager) and not isinstance(given, DistributedTransactionManager):
        connection = given._connection() if given._connection is not None else None
        if connection is not None and not connection.is_closed():
            return connection, given
        what = "what is closed"
    raise EnqueueError(f"{what} is no connection that a call can be part of. {_WANTED}")


def _check_database(connection: Any, database: Database) -> None:
    """Raises :class:`EnqueueError` when *connection* has another database open than *database*.

    The names may differ and mean one database: then both are asked which they are, once for each connection.
    """
    url = database.url
    accepted = _accepted.setdefault(connection, set())
    if url.dsn in accepted:
        return
    with suppress(DatabaseError):  # what cannot be told is not refused
        if not database.is_one(connection):
            raise EnqueueError(
                f"the connection is one to {connection.dsn}, and the app's database is {url}, where its workers "
                "look. Use app.connect(), or give FBTasks the url of that database."
            )
    accepted.add(url.dsn)
