"""The lists of ``fbtasks top``: queues, running tasks and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from fbtasks.cli.tables import GAP, Column, column, fitted
from fbtasks.cli.top.sight import MOST_FAILED, MOST_RUNNING, Rates, Sight
from fbtasks.queue.operations.workers import MAX_AGE
from fbtasks.queue.results import QueueRow
from fbtasks.sheet import MOST
from fbtasks.system.showing import failure, span
from fbtasks.tasks.call import TaskRow

WRONG: Final = "bold red"
ODD: Final = "yellow"
_NAME: Final = 14
"""Columns of the screen that names have at least."""


class Part(NamedTuple):
    """A column of a list."""

    column: Column
    style: Callable[[Any], str] = lambda _: ""
    spare: int = 0
    """Of several those with the highest number are left out where there is no room."""


@dataclass(frozen=True, slots=True)
class List:
    """One of the lists."""

    title: str
    rows: Sequence[Any]
    parts: Sequence[Part]
    orders: Mapping[str, Callable[[Any], Any]]
    """What it can be sorted by: keys by their words."""
    nothing: str
    """What is said when there is nothing in it."""
    most: int | None = None
    """How many rows are read at the most."""

    def chosen(self, needle: str, order: int) -> list[Any]:
        """Returns the rows that have the text *needle*, sorted by that one of the orders."""
        found = [row for row in self.rows if not needle or needle.lower() in self._text(row)]
        return sorted(found, key=[*self.orders.values()][order])

    def _text(self, row: Any) -> str:
        return " ".join(str(part.column[2](row)) for part in self.parts).lower()

    def lines(self, rows: Sequence[Any], order: int, width: int | None, height: int, at: int | None) -> Iterator[Text]:
        """Yields the title, the heads of the columns, and as many *rows* as there is room for, with that *at* a place.

        *height* is that of the rows. All other lines are as they are where *width* is None.
        """
        first = max(0, min(len(rows) - height, (at or 0) - height // 2))
        shown = rows[first : first + height]
        count = f"{len(rows)}{'+' if len(self.rows) == self.most else ''}"
        part = count if len(shown) == len(rows) else f"{first + 1}-{first + len(shown)} of {count}"
        yield Text.assemble((self.title, "bold"), f"  {part}, {[*self.orders][order]}" if rows else "")
        if not rows:
            yield Text(f"  {'Nothing matches the filter.' if self.rows else self.nothing}", "dim")
            return
        parts, (heads, *cells) = self._fitted(shown, width)
        yield Text("  " + (" " * GAP).join(heads).rstrip(), "dim")
        for number, (row, texts) in enumerate(zip(shown, cells, strict=True), first):
            line = Text("> " if number == at else "  ", "reverse" if number == at else "")
            for each, text in zip(parts, texts, strict=True):
                line.append(text, each.style(row)).append(" " * GAP)
            line.rstrip()
            if number == at:
                line.pad_right(max(0, (width or 0) - line.cell_len))
            yield line

    def _fitted(self, rows: Sequence[Any], width: int | None) -> tuple[list[Part], list[list[str]]]:
        parts = [*self.parts]
        room = None if width is None else width - 2
        while True:
            cells = [*fitted([part.column for part in parts], rows, room)]
            if room is None or len(parts) == 1 or sum(map(cell_len, cells[0])) + GAP * (len(parts) - 1) <= room:
                return parts, cells
            parts.remove(max(parts, key=lambda part: part.spare))


def lists(sight: Sight) -> list[List]:
    """Returns the lists of one look."""
    return [_queues(sight), _running(sight), _failed(sight)]


def age(sight: Sight, moment: datetime | None) -> float:
    """Returns how many seconds ago a moment was at the time of the look."""
    return 0.0 if moment is None else max(0.0, (sight.overview.time - moment).total_seconds())


def _queues(sight: Sight) -> List:
    def number(title: str, state: str, style: str = "", spare: int = 0) -> Part:
        def text(row: QueueRow) -> str:
            count = getattr(row, state)
            return f"{MOST}+" if count > MOST else str(count)

        return Part((title, "number", text), lambda row: style if getattr(row, state) else "dim", spare)

    def oldest(row: QueueRow) -> float:
        return age(sight, row.waiting_since)

    def rate(row: QueueRow) -> float:
        return sight.rates.get(row.queue, Rates()).finished

    return List(
        "Queues",
        sight.overview.queues,
        [
            Part(column("QUEUE".ljust(_NAME), "name", "queue")),
            number("READY", "ready"),
            number("SCHED", "scheduled", spare=5),
            number("RUNNING", "running", spare=2),
            number("HELD", "held", spare=6),
            number("AWAITING", "awaiting", spare=8),
            number("PARKED", "parked", ODD, spare=4),
            Part(
                ("OLDEST", "number", lambda row: span(oldest(row)) if row.waiting_since else ""),
                lambda row: WRONG if oldest(row) > MAX_AGE and row.is_open else "",
                3,
            ),
            Part(("DONE/S", "number", lambda row: per_second(rate(row))), lambda row: "" if rate(row) else "dim", 7),
            Part(("WORKERS", "word", _served), _of_service, 1),
        ],
        {
            "by name": lambda row: row.queue,
            "most ready first": lambda row: -row.ready,
            "longest wait first": lambda row: -oldest(row),
            "most running first": lambda row: -row.running,
            "busiest first": lambda row: -rate(row),
        },
        "No queue holds a task, and no worker serves one.",
    )


def unserved(row: QueueRow) -> bool:
    """Whether tasks wait that no worker serves."""
    return bool(row.ready or row.held) and not row.workers


def _served(row: QueueRow) -> str:
    return f"{row.workers or 'none'}{', paused' if row.paused else '' if row.is_open else ', closed'}"


def _of_service(row: QueueRow) -> str:
    return WRONG if unserved(row) else ODD if row.paused else "dim" if not row.workers else ""


def _task_list(title: str, rows: Sequence[TaskRow], parts: Sequence[Part], first: str, nothing: str, most: int) -> List:
    ids: Part = Part(column("ID", "number"))
    name, queue = Part(column("NAME".ljust(_NAME), "name", "name")), Part(column("QUEUE", "name"), spare=3)
    orders = {first: lambda _: 0, "by name": lambda row: row.name, "by queue": lambda row: row.queue}
    return List(title, rows, [ids, name, queue, *parts], orders, nothing, most)


_TRIES: Final = Part(column("TRIES", "number", "try_count"), lambda row: "" if row.try_count else "dim", 4)


def _running(sight: Sight) -> List:
    alive = {worker.name for worker in sight.overview.workers if worker.alive}
    parts = [
        *([_TRIES] if any(row.try_count for row in sight.running) else ()),
        Part(("FOR", "number", lambda row: span((row.elapsed_ms or 0) / 1000)), spare=1),
        Part(
            ("WORKER", "name", lambda row: row.worker if row.worker in alive else f"{row.worker or 'none'} (dead)"),
            lambda row: "" if row.worker in alive else WRONG,
            2,
        ),
    ]
    return _task_list("Running", sight.running, parts, "longest first", "Nothing runs.", MOST_RUNNING)


def _failed(sight: Sight) -> List:
    parts = [
        Part(("AGO", "number", lambda row: span(age(sight, row.finish_time))), spare=2),
        Part(("ERROR", "line", lambda row: failure(row.error_type, row.error_msg)), spare=1),
    ]
    return _task_list("Failed", sight.failed, parts, "newest first", "No task has failed for good.", MOST_FAILED)


def per_second(rate: float) -> str:
    """Returns a rate in one short word."""
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.1f}"
