"""Events in the database: raised, in the caller's transaction."""

from __future__ import annotations

from datetime import timedelta

from fbtasks.database.values import as_naive_utc
from fbtasks.firebird.session import Transaction
from fbtasks.tasks.call import When


def raise_event(transaction: Transaction, event: str, data: str, start: When, order_key: str | None) -> int:
    """Raises *event* with *data*, which is JSON. Returns the number of the transaction, for ``settlement``."""
    delay = start // timedelta(milliseconds=1) if isinstance(start, timedelta) else None
    moment = None if start is None or isinstance(start, timedelta) else as_naive_utc(start)
    key = order_key and order_key.encode()  # bytes: the connection may be of any character set; DATA is JSON in ASCII
    return int(transaction.value("raise_event", event, data, moment, delay, key))
