"""Tables for people, printed in the width of the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import Any, Final

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from fbtasks.cli.output import ago, say, since, visible, write
from fbtasks.queue.spool import Spool

Column = tuple[str, str, Callable[[Any], object]]
"""The title of a column, its kind (see :func:`table`), and its value for a row."""
PAIRS: Final[Sequence[Column]] = [("", "word", itemgetter(0)), ("", "text", itemgetter(1))]
"""Names and what there is under them."""
_MOMENTS: Final[Mapping[str, Callable[[Any], str]]] = {"ago": ago, "since": since}
_GAP: Final = 2
"""Columns of the screen between two columns of a table."""
_SHARES: Final = {"name": 2, "line": 3, "text": 3}
"""The kinds of columns that may be longer than there is room, and their shares of the width that is left."""


def column(title: str, kind: str, name: str = "") -> Column:
    """Returns the column for the field of that name; without one, for the field named like the column."""
    return title, kind, attrgetter(name or title.lower())


def screen_width() -> int:
    """Returns the width of the terminal, and 80 columns for a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 80


def table(columns: Sequence[Column], rows: Iterable[Any], nothing: str = "") -> None:
    """Prints a table, or *nothing* where it has no rows.

    The kind of a column says what becomes of what is longer than its share of the width. "number" and "word" are never
    cut, nor a moment, of which "ago" is shown how long ago it was, or "since" how long it has lasted; "text" is folded;
    the middle of a "name" is left out; only the first line of a "line" is shown, as far as it fits.
    """
    titles = [title for title, *_ in columns]
    kinds = [kind for _, kind, _ in columns]
    whole = [*map(cell_len, titles)]
    with Spool(_cells(columns, rows, whole)) as cells:
        widths = _widths(titles, kinds, whole)
        if nothing and not cells:
            say(nothing)
        elif any(titles):
            write(click.style("".join(_lines(kinds, widths, titles)), bold=True))
        for row in cells:
            write("\n".join(_lines(kinds, widths, row)))


def _cells(columns: Sequence[Column], rows: Iterable[Any], whole: list[int]) -> Iterator[list[str]]:
    """The texts of a table. *whole* is the widths of its columns so far, which grow."""
    for row in rows:
        texts = [_cell(value(row), kind) for _, kind, value in columns]
        whole[:] = map(max, whole, map(cell_len, texts))
        yield texts


def _cell(value: object, kind: str) -> str:
    text = "" if value is None else _MOMENTS.get(kind, str)(value)
    if kind == "line":
        first, _, more = text.strip().partition("\n")
        text = f"{first.rstrip()} …" if more else first
    shown = visible(text.expandtabs(4))
    return shown if kind == "text" else shown.replace("\n", "\\n")


def _widths(titles: Sequence[str], kinds: Sequence[str], whole: Sequence[int]) -> list[int]:
    """Returns the width of each column. Those that need not be shown whole in one line share what is left.

    *whole* is how wide each column is when it is. What is never cut may need more than there is: then the lines are
    longer than the terminal is wide.
    """
    widths = [0 if kind in _SHARES else width for width, kind in zip(whole, kinds, strict=True)]
    shared = [place for place, kind in enumerate(kinds) if kind in _SHARES]
    left = screen_width() - _GAP * (len(kinds) - 1) - sum(widths)
    parts = sum(_SHARES[kinds[place]] for place in shared)
    # First those that need the smallest part of their share, so that the others get what these leave.
    for place in sorted(shared, key=lambda place: whole[place] / _SHARES[kinds[place]]):
        share = _SHARES[kinds[place]]
        widths[place] = max(1, cell_len(titles[place]), min(whole[place], left * share // parts))
        left -= widths[place]
        parts -= share
    return widths


def _lines(kinds: Sequence[str], widths: Sequence[int], row: Sequence[str]) -> Iterator[str]:
    """The lines of one row: several where a text is folded."""
    cells = [_fit(text, kind, width) for text, kind, width in zip(row, kinds, widths, strict=True)]
    for texts in zip_longest(*cells, fillvalue=""):
        parts = [
            text.rjust(width) if kind == "number" else set_cell_size(text, width)
            for text, kind, width in zip(texts, kinds, widths, strict=True)
        ]
        yield (" " * _GAP).join(parts).rstrip()


def _fit(text: str, kind: str, width: int) -> list[str]:
    """Returns *text* in lines of at most *width* columns: one, unless it is folded."""
    if kind == "text":
        return [line.plain for line in Text(text).wrap(Console(width=width), width, overflow="fold")]
    if cell_len(text) <= width:
        return [text]
    tail = (width - 1) // 2 if kind == "name" else 0
    head = set_cell_size(text, width - 1 - tail).rstrip()
    end = set_cell_size(text[::-1], tail)[::-1].lstrip()
    return [f"{head}…{end}"]
