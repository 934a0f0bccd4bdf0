"""Values as the columns hold them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def as_utc(value: datetime) -> datetime: ...
@overload
def as_utc(value: None) -> None: ...
def as_utc(value: datetime | None) -> datetime | None:
    """A TIMESTAMP column, which holds UTC, as an aware datetime."""
    return None if value is None else value.replace(tzinfo=UTC)


def visible(text: str) -> str:
    """*text* on one line, with what a terminal would obey, or not show, written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
