"""Tables for people, printed in the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fbtasks.cli.output import visible, write
from fbtasks.queue.spool import Spool

_GAP: Final = 2
"""Columns of the screen between two columns of a table."""
_SHARES: Final = {"name": 2, "line": 3}
"""The kinds of columns that are cut, and their shares of the width that is left."""


def console() -> Console:
    """Returns a console for tables: as wide as the terminal, and 80 columns into a pipe."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False, soft_wrap=False)


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table. The kind of a column says what becomes of what is longer than its share of the width.

    "number" and "word" are never cut; "text" is folded; the middle of a "name" is left out; only the first line of a
    "line" is shown, as far as it fits.
    """
    whole = [cell_len(title) for title, _ in columns]
    with Spool(_cells(columns, rows, whole)) as cells:
        screen = console()
        widths = _widths(columns, whole, screen.width)
        # What is never cut may need more than there is: then the lines are longer than the terminal is wide.
        screen.width = max(screen.width, _GAP * (len(columns) - 1) + sum(width or 1 for width in widths))
        if None in widths:
            _print_folded(screen, columns, widths, cells)
        else:
            _print_lines(screen, columns, [width or 0 for width in widths], cells)


def _cells(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]], whole: list[int]
) -> Iterator[list[str]]:
    """The texts of a table. *whole* is the widths of its columns so far, which grow."""
    for row in rows:
        texts = [_cell(cell, kind) for cell, (_, kind) in zip(row, columns, strict=True)]
        whole[:] = map(max, whole, map(cell_len, texts))
        yield texts


def _print_folded(
    screen: Console, columns: Sequence[tuple[str, str]], widths: Sequence[int | None], cells: Iterable[Sequence[str]]
) -> None:
    """Prints a table some of whose columns are folded."""
    shown = Table(box=None, pad_edge=False, header_style="bold", show_header=any(title for title, _ in columns))
    for (title, kind), width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if kind == "number" else "left"
        shown.add_column(title, justify=justify, no_wrap=kind != "text", width=width, overflow="fold")
    for row in cells:
        shown.add_row(*(Text(_cut(text, kind, w)) for text, (_, kind), w in zip(row, columns, widths, strict=True)))
    with screen.capture() as captured:
        screen.print(shown)
    for line in captured.get().splitlines():
        write(line.rstrip())


def _print_lines(
    screen: Console, columns: Sequence[tuple[str, str]], widths: list[int], cells: Iterable[list[str]]
) -> None:
    """Prints a table that has a line for each row, of which there may be many."""
    if any(title for title, _ in columns):
        _print_folded(screen, columns, widths, ())
    for row in cells:
        write(_line(columns, widths, row))


def _line(columns: Sequence[tuple[str, str]], widths: list[int], row: Sequence[str]) -> str:
    texts = []
    for text, (_, kind), width in zip(row, columns, widths, strict=True):
        cut = _cut(text, kind, width)
        blanks = " " * (width - cell_len(cut))
        texts.append(blanks + cut if kind == "number" else cut + blanks)
    return (" " * _GAP).join(texts).rstrip()


def _cell(value: object, kind: str) -> str:
    text = "" if value is None else str(value)
    if kind == "line":
        first, _, more = text.strip().partition("\n")
        text = f"{first.rstrip()} …" if more else first
    shown = visible(text.expandtabs(4))
    return shown if kind == "text" else shown.replace("\n", "\\n")


def _widths(columns: Sequence[tuple[str, str]], whole: Sequence[int], room: int) -> list[int | None]:
    """Returns the width of each column, None where the table decides. Columns that are cut share what is left.

    *whole* is how wide each column is when nothing of it is cut.
    """
    widths: list[int | None] = [
        width if kind in ("number", "word") else None for width, (_, kind) in zip(whole, columns, strict=True)
    ]
    shared = [place for place, (_, kind) in enumerate(columns) if kind in _SHARES]
    left = room - _GAP * (len(columns) - 1) - sum(width or 0 for width in widths)
    parts = sum(_SHARES[columns[place][1]] for place in shared)
    # First those that need the smallest part of their share, so that the others get what these leave.
    for place in sorted(shared, key=lambda place: whole[place] / _SHARES[columns[place][1]]):
        title, kind = columns[place]
        width = max(cell_len(title), min(whole[place], left * _SHARES[kind] // parts))
        widths[place] = width
        left -= width
        parts -= _SHARES[kind]
    return widths


def _cut(text: str, kind: str, width: int | None) -> str:
    """Returns *text* in one line of at most *width* columns, for the kinds that are cut."""
    if kind not in _SHARES or width is None or cell_len(text) <= width:
        return text
    tail = (width - 1) // 2 if kind == "name" else 0
    head = set_cell_size(text, width - 1 - tail).rstrip()
    end = set_cell_size(text[::-1], tail)[::-1].lstrip()
    return f"{head}…{end}"
