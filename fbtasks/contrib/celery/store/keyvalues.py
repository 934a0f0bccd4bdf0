"""Values by name, as the result backend of Celery keeps them: states, results and groups."""

from __future__ import annotations

from typing import Final

from fbtasks.contrib.celery.store.names import key
from fbtasks.firebird.session import Session, Transaction

INLINE: Final = 8_000
"""The longest value, in bytes, that stays in its row."""
EVENTS: Final = tuple(f"fbtasks:celery:{number}" for number in range(15))
"""Posted when a value was stored."""
BATCH: Final = 500


def store(transaction: Transaction, name: str, value: bytes, *, final: bool, expires: float | None) -> None:
    """Stores *value* for *expires* seconds, unless a final value stands there: that one stays."""
    transaction.call("FBTASKS_CELERY_API.PUT_VALUE", key(name), int(final), milliseconds(expires), *columns(value))


def columns(value: bytes) -> tuple[bytes | None, bytes | None]:
    """Returns a value for the two columns that keep one: in the row, or beside it."""
    return (None, value) if len(value) > INLINE else (value, None)


def fetch(transaction: Transaction, name: str) -> bytes | None:
    """Returns a value; None when there is none, or it has expired."""
    short, large = transaction.call("FBTASKS_CELERY_API.GET_VALUE", key(name))
    value = large if short is None else short
    return None if value is None else bytes(value)


def delete(transaction: Transaction, name: str) -> None:
    """Deletes a value."""
    transaction.call("FBTASKS_CELERY_API.DELETE_VALUE", key(name))


def milliseconds(seconds: float | None) -> int | None:
    """Seconds, of which None are no limit, as the procedures take them."""
    return None if seconds is None else int(seconds * 1000)


def prune(session: Session) -> bool:
    """Forgets saved groups whose time is over, and what Celery has stored. Returns whether there may be more."""
    return bool(session.call("FBTASKS_CELERY.PRUNE", BATCH) >= BATCH)
