"""Values as the columns hold them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

from fbtasks.firebird.session import Transaction


@overload
def as_utc(value: datetime) -> datetime: ...
@overload
def as_utc(value: None) -> None: ...
def as_utc(value: datetime | None) -> datetime | None:
    """A TIMESTAMP column, which holds UTC, as an aware datetime."""
    return None if value is None else value.replace(tzinfo=UTC)


def as_naive_utc(value: datetime | None) -> datetime | None:
    """An aware datetime as a TIMESTAMP column holds it."""
    return None if value is None else value.astimezone(UTC).replace(tzinfo=None)


def now(transaction: Transaction) -> datetime:
    """The database's clock."""
    moment: datetime = transaction.value("now")
    return as_utc(moment)
