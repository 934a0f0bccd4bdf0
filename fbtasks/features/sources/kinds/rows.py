"""Rows of polled tables, as handlers see them, and as tasks carry them: one JSON object each.

The statements of :mod:`fbtasks.features.sources.store.poll_statements` write these members;
docs/reference/payloads.md describes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fbtasks.errors import SerializationError
from fbtasks.system.showing import brief

_PLACE: Final = re.compile(r"\s*-?At block line: \d+, col: \d+")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a polled table, as it was when it was taken.

    A test makes one with what its handler looks at: ``Row(values={"ID": 7, "TEXT": "hello"})``.
    """

    table: str = ""
    """The table, by the name that the definition gives it."""
    key: Mapping[str, Any] = field(default_factory=dict)
    """The key's columns and their values; empty for a table without a key."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The columns that the definition names and those of the key, and their values."""


def read(table: str, members: Any) -> Row:
    """Returns the row of a JSON object that was read.

    Raises :class:`SerializationError` when it is none, and for a row of which a value could not be read when it was
    taken.
    """
    try:
        key = members["k"]
        row = Row(table, key, {**key, **members["v"]})
        unread = members.get("e")
    except (KeyError, TypeError, AttributeError) as error:
        raise SerializationError(f"a row of {table!r} cannot be read: {brief(error)} in {members!r:.200}.") from error
    if unread is not None:
        raise SerializationError(f"a row of {table!r} cannot be read (key: {_shown(key)}): {reason(unread)}")
    return row


def _shown(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{column}={value!r:.200}" for column, value in key.items()) or "none"


def reason(message: str) -> str:
    """Returns the engine's *message* in one line, without the places in generated statements."""
    lines = (line.strip().removeprefix("-") for line in _PLACE.sub("", message).splitlines())
    return ": ".join(line for line in lines if line)
