"""Values by name, as the result backend of Celery keeps them: states, results and groups."""

from __future__ import annotations

from typing import Final

from fbtasks.firebird.session import Transaction

INLINE: Final = 8_000
"""The longest value, in bytes, that stays in its row."""
EVENTS: Final = tuple(f"fbtasks:celery:{number}" for number in range(15))
"""Posted when a value was stored."""
BATCH: Final = 500


def store(transaction: Transaction, name: str, value: bytes, *, final: bool, expires: float | None) -> bool:
    """Stores *value* for *expires* seconds. False when a final value stands there: that one stays."""
    large = len(value) > INLINE
    return bool(
        transaction.value(
            "celery_set", name, int(final), milliseconds(expires), None if large else value, value if large else None
        )
    )


def fetch(transaction: Transaction, name: str) -> bytes | None:
    """A value; None when there is none, or it has expired."""
    rows = transaction.rows("celery_get", name)
    if not rows:
        return None
    value = rows[0][0] if rows[0][0] is not None else rows[0][1]
    return None if value is None else bytes(value)


def delete(transaction: Transaction, name: str) -> bool:
    """Deletes a value. False when there was none."""
    return bool(transaction.value("celery_delete", name))


def prune(transaction: Transaction, most: int = BATCH) -> int:
    """Deletes up to *most* values and chords that have expired. Returns how many."""
    return int(transaction.value("celery_prune", most))


def milliseconds(seconds: float | None) -> int | None:
    """Seconds, of which None are no limit, as the procedures take them."""
    return None if seconds is None else int(seconds * 1000)
