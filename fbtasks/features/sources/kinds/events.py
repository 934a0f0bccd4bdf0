"""Events, as handlers see them: raised from SQL or from Python, and handled by tasks of any app."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fbtasks.errors import SerializationError
from fbtasks.system.showing import brief


@dataclass(frozen=True, slots=True)
class Event:
    """An event that was raised, or several of one order key that were made into one.

    A test makes one with what its handler looks at: ``Event(data={"id": 7})``.
    """

    name: str = ""
    data: Any = None
    """What was given with it, read from JSON."""
    user: str = ""
    """The database's user who raised it."""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it was raised: UTC, in milliseconds."""
    id: int = 0
    """The number of the event: of two with one order key, the later one's is higher."""
    order_key: str | None = None
    """Events with one order key are handled one after the other."""
    count: int = 1
    """How many events it was made of."""


def read(members: Any) -> Event:
    """Returns the event of a JSON object that was read. Raises :class:`SerializationError` when it is none.

    Its data is a text in it, which is read here: what was raised with broken JSON fails alone.
    """
    from fbtasks.tasks import formats

    try:
        return Event(
            members["e"],
            formats.load_json(members["d"].encode()),
            members["u"],
            datetime.fromisoformat(members["t"]).replace(tzinfo=UTC),
            members["i"],
            members.get("k"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SerializationError(f"an event cannot be read: {brief(error)} in {members!r:.200}.") from error
