"""Tables for people: as wide as the terminal, and whole in a pipe or a file."""

from __future__ import annotations

import os
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

from fbtasks.cli.output import WIDE, ago, say, since, visible, write
from fbtasks.queue.spool import Spool

Column = tuple[str, str, Callable[[Any], object]]
"""The title of a column, its kind (see :func:`table`), and its value for a row."""
PAIRS: Final[Sequence[Column]] = [("", "word", itemgetter(0)), ("", "text", itemgetter(1))]
"""Names and what there is under them."""
_MOMENTS: Final[Mapping[str, Callable[[Any], str]]] = {"ago": ago, "since": since}
GAP: Final = 2
"""Columns of the screen between two columns of a table."""
_SHARES: Final = {"name": 2, "line": 3, "text": 3}
"""The kinds of columns that may be longer than there is room, and their shares of the width that is left."""


def column(title: str, kind: str, name: str = "") -> Column:
    """Returns the column for the field of that name; without one, for the field named like the column."""
    return title, kind, attrgetter(name or title.lower())


def screen_width() -> int | None:
    """Returns the width of a line: that of the terminal, or what COLUMNS says; None: as wide as it needs to be.

    The latter is so with ``--wide``, and in a pipe or a file where COLUMNS is not set.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(WIDE):
        return None
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if has_width else None


def table(columns: Sequence[Column], rows: Iterable[Any], nothing: str = "") -> None:
    """Prints a table, or *nothing* where it has no rows.

    The kind of a column says what becomes of what is longer than its share of the width. "number" and "word" are never
    cut, nor a moment, of which "ago" is shown how long ago it was, or "since" how long it has lasted; "text" is folded;
    the middle of a "name" is left out; only the first line of a "line" is shown, as far as it fits. A "key" is never
    cut, either: it has a line of its own, above the others, where one line would not do. Where lines have no width (see
    :func:`screen_width`), all is shown whole, but for the other lines of a "line".
    """
    titles = [title for title, *_ in columns]
    kinds = [kind for _, kind, _ in columns]
    whole = [*map(cell_len, titles)]
    with Spool(_cells(columns, rows, whole)) as cells:
        lines = _layout(titles, kinds, whole)
        if nothing and not cells:
            say(nothing)
        elif any(titles):
            write("\n".join(click.style(line, bold=True) for line in lines(titles)))
        for row in cells:
            write("\n".join(lines(row)))


def _layout(
    titles: Sequence[str], kinds: Sequence[str], whole: Sequence[int]
) -> Callable[[Sequence[str]], Iterator[str]]:
    """Returns what makes the lines of a row: with a "key" in a line of its own where all in one would not fit."""
    screen = screen_width()
    fits = screen is None or sum(whole) + GAP * (len(whole) - 1) <= screen
    above = None if fits or "key" not in kinds else kinds.index("key")
    indent = 0 if above is None else GAP
    places = [place for place in range(len(kinds)) if place != above]
    shown = [kinds[place] for place in places]
    rest = [whole[place] for place in places]
    widths = rest if screen is None else _widths([titles[place] for place in places], shown, rest, screen - indent)

    def lines(row: Sequence[str]) -> Iterator[str]:
        if above is not None:
            yield row[above]
        yield from (" " * indent + line for line in _lines(shown, widths, [row[place] for place in places]))

    return lines


def _cells(columns: Sequence[Column], rows: Iterable[Any], whole: list[int]) -> Iterator[list[str]]:
    """The texts of a table. *whole* is the widths of its columns so far, which grow."""
    for row in rows:
        texts = [_cell(value(row), kind) for _, kind, value in columns]
        whole[:] = map(max, whole, map(_widest, texts))
        yield texts


def _widest(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _cell(value: object, kind: str) -> str:
    text = "" if value is None else _MOMENTS.get(kind, str)(value)
    if kind == "line":
        first, _, more = text.strip().partition("\n")
        text = f"{first.rstrip()} …" if more else first
    shown = visible(text.expandtabs(4))
    return shown if kind == "text" else shown.replace("\n", "\\n")


def _widths(titles: Sequence[str], kinds: Sequence[str], whole: Sequence[int], screen: int) -> list[int]:
    """Returns the width of each column. Those that need not be shown whole in one line share what is left of *screen*.

    *whole* is how wide each column is when it is. What is never cut may need more than there is: then the lines are
    longer than the terminal is wide.
    """
    widths = [0 if kind in _SHARES else width for width, kind in zip(whole, kinds, strict=True)]
    shared = [place for place, kind in enumerate(kinds) if kind in _SHARES]
    left = screen - GAP * (len(kinds) - 1) - sum(widths)
    parts = sum(_SHARES[kinds[place]] for place in shared)
    # First those that need the smallest part of their share, so that the others get what these leave.
    for place in sorted(shared, key=lambda place: whole[place] / _SHARES[kinds[place]]):
        share = _SHARES[kinds[place]]
        widths[place] = max(1, cell_len(titles[place]), min(whole[place], left * share // parts))
        left -= widths[place]
        parts -= share
    return widths


def fitted(columns: Sequence[Column], rows: Iterable[Any], screen: int | None) -> Iterator[list[str]]:
    """Yields the titles of a table, and the cells of each row, as wide as they are shown in lines of *screen* columns.

    Each row is one line: none of its columns is a "text" or a "key". *screen* None: all is whole.
    """
    titles = [title for title, *_ in columns]
    kinds = [kind for _, kind, _ in columns]
    whole = [*map(cell_len, titles)]
    cells = [titles, *_cells(columns, rows, whole)]
    widths = whole if screen is None else _widths(titles, kinds, whole, screen)
    for row in cells:
        yield from _parts(kinds, widths, row)


def _lines(kinds: Sequence[str], widths: Sequence[int], row: Sequence[str]) -> Iterator[str]:
    """The lines of one row: several where a text is folded."""
    return ((" " * GAP).join(parts).rstrip() for parts in _parts(kinds, widths, row))


def _parts(kinds: Sequence[str], widths: Sequence[int], row: Sequence[str]) -> Iterator[list[str]]:
    """The cells of each line of a row, as wide as their columns."""
    cells = [_fit(text, kind, width) for text, kind, width in zip(row, kinds, widths, strict=True)]
    for texts in zip_longest(*cells, fillvalue=""):
        yield [
            text.rjust(width) if kind == "number" else set_cell_size(text, width)
            for text, kind, width in zip(texts, kinds, widths, strict=True)
        ]


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
