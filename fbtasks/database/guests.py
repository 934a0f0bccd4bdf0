"""Connections of the application's own, in whose open transaction it enqueues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

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


class Guest:
    """A connection that is kept for calls, or a transaction manager, and the transaction that they are part of.

    That is the one which is open when the connection is given, or else the first that a call begins.
    """

    __slots__ = ("_kept", "given")

    def __init__(self, given: Any) -> None:
        """Raises :class:`EnqueueError` for what :func:`check` refuses."""
        self.given = given
        self._kept: ref[Any] | None = None
        self._keep(check(given)[1])

    def _keep(self, transaction: Any) -> None:
        if transaction._tra is not None:
            self._kept = ref(transaction._tra)  # the driver has an object for each transaction, and drops it at its end

    def refuse_another(self, transaction: Any) -> None:
        """Raises :class:`EnqueueError` when the transaction has ended that calls are part of."""
        if self._kept is not None and (transaction._tra is None or transaction._tra is not self._kept()):
            raise EnqueueError(
                "the transaction that the call was to be part of has ended, and another one would have nobody to "
                "commit it. Call using(connection), or enter in_transaction(connection), anew in each transaction."
            )

    def begin(self, transaction: Transaction) -> None:
        """Begins *transaction*, the connection's, unless it is open."""
        if not transaction.driver.is_active():
            transaction.begin()
        if self._kept is None:
            self._keep(transaction.driver)


def transaction(given: Any, database: Database) -> Transaction:
    """The transaction that *given* stands for, to run queries in: of a connection, a manager, or a :class:`Guest`.

    Raises :class:`EnqueueError` for anything else, and says how to get what is wanted; for one to another database
    than *database*, and for a guest whose transaction has ended.
    """
    guest = given if isinstance(given, Guest) else None
    connection, driver = check(given if guest is None else guest.given)
    if connection.dsn != database.url.dsn:
        _check_database(connection, database)
    if guest is not None:
        guest.refuse_another(driver)
    return Transaction(driver, database.url, queries(database.generation))


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
