"""The answers to statements of ``fbtasks sql``: tables for people, JSON for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

from rich.cells import cell_len

from fbtasks.cli.output import print_json, say, visible_line
from fbtasks.cli.tables import PAIRS, screen_width, table
from fbtasks.database.adhoc import Answer
from fbtasks.system.showing import count

_NULL: Final = "<null>"
_LONGEST: Final = 1000
"""Characters of a text that are shown in a table."""
_BYTES: Final = 16
"""Bytes of what is binary that are shown in a table."""
_NARROW: Final = 20
"""Characters that a column of texts needs at least, if it has as many."""


def show(found: Answer, *, as_json: bool) -> None:
    """Prints what the database answered to a statement."""
    shown = count(len(found.rows), "row")
    if found.total != len(found.rows):
        shown = f"the first {shown}" if found.total is None else f"{len(found.rows)} of {count(found.total, 'row')}"
        shown += "; --limit N shows more, --limit 0 all"
    if as_json:
        _print_json(found)
        if found.total != len(found.rows):
            say(f"({shown})", err=True)
        return
    if found.columns:
        _records(found)
        say(f"({shown})")
    if found.changed or not found.columns:
        say("Done." if found.changed is None else f"{count(found.changed, 'row')} changed.")


def _print_json(found: Answer) -> None:
    """Prints the rows as objects; or, where there are none, how many were changed."""
    if not found.columns:
        print_json({"changed": found.changed})
        return
    names: list[str] = []
    for name in found.columns:
        times = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{times + 1}" if name in names else name)
    print_json([dict(zip(names, map(_json_value, row), strict=True)) for row in found.rows])


def _json_value(value: Any) -> Any:
    """Returns *value* for JSON: decimals and times as strings, which lose nothing, and bytes as hex digits."""
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _records(found: Answer) -> None:
    """Prints a table; or, where that would be too wide, a list for each row."""
    cells = [[_shown(value) for value in row] for row in found.rows]
    kinds = [_kind([row[place] for row in found.rows]) for place in range(len(found.columns))]
    titles = [visible_line(title) for title in found.columns]
    width = 2 * (len(titles) - 1)
    for place, kind in enumerate(kinds):
        widest = max([0, *(cell_len(row[place]) for row in cells)])
        width += max(cell_len(titles[place]), widest if kind != "text" else min(widest, _NARROW))
    screen = screen_width()
    if screen is None or width <= screen or not cells:
        table([(*each, itemgetter(place)) for place, each in enumerate(zip(titles, kinds, strict=True))], cells)
        return
    for number, row in enumerate(cells, 1):
        table([(f"-- row {number}", "word", itemgetter(0)), PAIRS[1]], zip(titles, row, strict=True))


def _kind(values: Sequence[object]) -> str:
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in there):
        return "number"
    return "text" if any(isinstance(value, str | bytes) for value in there) else "word"


def _shown(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bytes):
        more = f"... ({len(value)} bytes)" if len(value) > _BYTES else ""
        return f"x'{value[:_BYTES].hex().upper()}'{more}"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    more = f"... ({len(text)} characters)" if len(text) > _LONGEST else ""
    return visible_line(text[:_LONGEST]) + more
