"""Numbers and times in words."""

from __future__ import annotations

from datetime import UTC, datetime


def count(number: int, what: str) -> str:
    """Returns *number* things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """Returns a duration in one short word."""
    for limit, unit, size in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def ago(moment: datetime | None) -> str:
    """Returns how long ago, or in how long, in one short word."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def since(moment: datetime | None) -> str:
    """Returns how long it has lasted since then, in one short word."""
    return "" if moment is None else span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def failure(error_type: str | None, message: str | None) -> str:
    """Returns an exception as Python names it: its type and its message."""
    return ": ".join(part for part in ((error_type or "").removeprefix("builtins."), message) if part)
