"""Publishing in a transaction of the caller's: the messages are there when it commits, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fbtasks.database import guests
from fbtasks.database.database import Database
from fbtasks.firebird.session import Transaction

_connection: ContextVar[Any] = ContextVar("fbtasks_kombu_connection", default=None)


@contextmanager
def in_transaction(connection: Any) -> Iterator[None]:
    """For the block, what this thread publishes is part of the main transaction of *connection*.

    *connection* is one of firebird-driver, to the database that the messages are in (``FBTasks.connect()`` gives one
    that works for the embedded engine as well); anything else raises :class:`~fbtasks.errors.EnqueueError`. The
    caller commits or rolls back. Exchanges and queues are declared outside of it, and are there either way. In a
    transaction of isolation SNAPSHOT, what was declared after it began is not seen, and a message to it goes nowhere.
    """
    guests.check(connection)
    token = _connection.set(connection)
    try:
        yield
    finally:
        _connection.reset(token)


def current(database: Database) -> Transaction | None:
    """The transaction of the caller's that is to be published in; None: in one of its own."""
    connection = _connection.get()
    if connection is None:
        return None
    transaction = guests.transaction(connection, database)
    if not transaction.driver.is_active():
        transaction.driver.begin()
    return transaction
