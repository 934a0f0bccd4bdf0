"""All that the command line prints: tables for people, JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fbtasks.call import TaskRow, WorkerRow
from fbtasks.cli.escapes import say, visible, visible_json, visible_line, write
from fbtasks.states import State
from fbtasks.store.adhoc import Answer
from fbtasks.store.results import QueueRow, StatRow

_GAP: Final = 2
"""Columns of the screen between two columns of a table."""
_SHARES: Final = {"name": 2, "line": 3}
"""The kinds of columns that are cut, and their shares of the width that is left."""


def console() -> Console:
    """A console for tables: as wide as the terminal, and 80 columns into a pipe."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False, soft_wrap=False)


def as_json(value: Any, indent: int | None = 2) -> None:
    """Prints records as JSON. A value that JSON does not have becomes text."""
    narrow = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    write(visible_json(json.dumps(value, indent=indent, ensure_ascii=narrow, default=_plain)))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    return str(value)


def as_dict(record: Any) -> dict[str, Any]:
    """The fields of a record, with the names of states instead of their numbers."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value.name.lower() if isinstance(value, State) else value for name, value in fields.items()}


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table. The kind of a column says what becomes of what is longer than its share of the width.

    "number" and "word" are never cut; "text" is folded; of a "name" the middle is left out; of a "line" only the first
    line is shown, as far as it fits.
    """
    cells = [[_cell(cell, kind) for cell, (_, kind) in zip(row, columns, strict=True)] for row in rows]
    screen = console()
    widths = _widths(columns, cells, screen.width)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(title for title, _ in columns))
    for (title, kind), width in zip(columns, widths, strict=True):
        table.add_column(
            title,
            justify="right" if kind == "number" else "left",
            no_wrap=kind != "text",
            width=width,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(_cut(text, kind, w)) for text, (_, kind), w in zip(row, columns, widths, strict=True)))
    # What is never cut may need more than there is: then the lines are longer than the terminal is wide.
    screen.width = max(screen.width, _GAP * (len(columns) - 1) + sum(width or 1 for width in widths))
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        write(line.rstrip())


def _cell(value: object, kind: str) -> str:
    text = "" if value is None else str(value)
    if kind == "line":
        first, _, more = text.strip().partition("\n")
        text = f"{first.rstrip()} …" if more else first
    shown = visible(text.expandtabs(4))
    return shown if kind == "text" else shown.replace("\n", "\\n")


def _widths(columns: Sequence[tuple[str, str]], cells: list[list[str]], room: int) -> list[int | None]:
    """The width of each column, None where the table decides. Those that are cut share what the others leave."""
    whole = [
        max([cell_len(title), *(cell_len(row[place]) for row in cells)]) for place, (title, _) in enumerate(columns)
    ]
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
    """*text* in one line of at most *width* columns, for the kinds that are cut."""
    if kind not in _SHARES or width is None or cell_len(text) <= width:
        return text
    tail = (width - 1) // 2 if kind == "name" else 0
    head = set_cell_size(text, width - 1 - tail).rstrip()
    end = set_cell_size(text[::-1], tail)[::-1].lstrip()
    return f"{head}…{end}"


def ago(moment: datetime | None) -> str:
    """How long ago, or in how long, in one short word."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def since(moment: datetime | None) -> str:
    """How long it has lasted since then, in one short word."""
    return "" if moment is None else span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def span(seconds: float) -> str:
    """A duration in one short word."""
    for limit, unit, size in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def tasks(rows: list[TaskRow], state: State, nothing: str) -> None:
    """A list of tasks in one state, one line for each."""
    if not rows:
        say(nothing)
        return
    named = any(row.task_id for row in rows)
    columns = [
        ("ID", "number"),
        *([("TASK ID", "name")] * named),
        ("NAME", "name"),
        ("QUEUE", "name"),
        ("TRIES", "number"),
    ]
    own, values = _LISTS[state]
    _table(
        [*columns, *own],
        ([r.id, *([r.task_id] * named), r.name, r.queue, r.try_count, *values(r)] for r in rows),
    )


def due(row: TaskRow) -> datetime:
    """Since when a task could run: it was enqueued then, or its time had come."""
    return max(row.raise_time, row.start_time)


def failure(error_type: str | None, message: str | None) -> str:
    """An exception as Python names it: its type and its message."""
    return ": ".join(part for part in ((error_type or "").removeprefix("builtins."), message) if part)


def _error(row: TaskRow) -> str:
    return failure(row.error_type, row.error_msg)


def _elapsed(row: TaskRow) -> str | None:
    return None if row.elapsed_ms is None else span(row.elapsed_ms / 1000)


_Columns = list[tuple[str, str]]
_LISTS: Final[dict[State, tuple[_Columns, Callable[[TaskRow], list[object]]]]] = {
    State.FAILED: (
        [("FAILED", "word"), ("ERROR", "line")],
        lambda r: [ago(r.finish_time), _error(r)],
    ),
    State.SUCCEEDED: (
        [("ENDED", "word"), ("ELAPSED", "word")],
        lambda r: [ago(r.finish_time), _elapsed(r)],
    ),
    State.CANCELLED: (
        [("ENDED", "word"), ("ELAPSED", "word"), ("REASON", "line")],
        lambda r: [ago(r.finish_time), _elapsed(r), r.error_msg],
    ),
    State.RUNNING: (
        [("ELAPSED", "word"), ("WORKER", "name")],
        lambda r: [_elapsed(r), r.worker],
    ),
    State.READY: (
        [("PRIORITY", "number"), ("WAITING", "word"), ("LAST ERROR", "line")],
        lambda r: [r.priority, since(due(r)), r.error_msg],
    ),
    State.SCHEDULED: (
        [("PRIORITY", "number"), ("DUE", "word"), ("LAST ERROR", "line")],
        lambda r: [r.priority, ago(r.start_time), r.error_msg],
    ),
    State.PARKED: (
        [("PRIORITY", "number"), ("PARKED", "word"), ("LAST ERROR", "line")],
        lambda r: [r.priority, ago(r.claim_time), r.error_msg],
    ),
}
"""The columns of each list behind those that all have, and their values."""


def task(row: TaskRow, arguments: str, result: str | None, trace: str | None) -> None:
    """One task, whole."""
    error = _error(row)
    if trace and row.error_msg and row.error_msg in trace:
        error = error.partition("\n")[0]  # the rest is below
    facts = {
        "ID": row.id,
        "TASK ID": row.task_id,
        "NAME": row.name,
        "STATE": row.state.name.lower(),
        "QUEUE": row.queue,
        "PRIORITY": row.priority,
        "ARGUMENTS": arguments,
        "ENQUEUED": _stamp(row.raise_time),
        "BY": row.enqueued_by,
        "DUE": _stamp(row.start_time),
        "CLAIMED": _stamp(row.claim_time),
        "FINISHED": _stamp(row.finish_time),
        "ELAPSED": _elapsed(row),
        "TRIES": row.try_count if not row.max_tries else f"{row.try_count} of {row.max_tries}",
        "CRASHES": row.crash_count or None,
        "WORKER": row.worker,
        "RESULT": result,
        "ERROR": error or None,
    }
    _table([("", "word"), ("", "text")], ((k, v) for k, v in facts.items() if v is not None))
    if trace:
        say(f"\n{trace.rstrip()}")


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S %z} ({ago(moment)})"


def queues(rows: list[QueueRow]) -> None:
    """Queues with what is in them."""
    if not rows:
        say("No queue holds a task, and no worker serves one. Start one: fbtasks worker -A MODULE")
        return
    columns = [("QUEUE", "text"), *((t, "number") for t in ("READY", "SCHEDULED", "RUNNING", "PARKED"))]
    columns += [("WAITING", "word"), ("WORKERS", "word")]
    _table(
        columns,
        (
            [r.queue, r.ready, r.scheduled, r.running, r.parked, since(r.waiting_since), r.workers or "none"]
            for r in rows
        ),
    )


def workers(rows: list[WorkerRow]) -> None:
    """Workers that are registered."""
    if not rows:
        say("No worker is registered. Start one: fbtasks worker -A MODULE")
        return
    columns = [("NAME", "text"), ("PID", "number"), ("POOL", "word"), ("RUNNING", "word"), ("LONGEST", "word")]
    columns += [("QUEUES", "text"), ("HEARTBEAT", "word")]
    _table(
        columns,
        (
            [
                r.name,
                r.pid,
                r.pool,
                f"{r.running} of {r.concurrency}",
                None if r.busy_for is None else span(r.busy_for),
                " ".join(r.queues),
                _health(r),
            ]
            for r in rows
        ),
    )


def _health(row: WorkerRow) -> str:
    age = f"{span(row.heartbeat_age)} ago"
    if row.lease_left < 0:
        return f"{age} (dead)"
    return f"{age} (draining)" if row.draining else age


def stats(rows: list[StatRow], live: list[QueueRow]) -> None:
    """The statistics, with the names that queue tables have for them."""
    active = sum(r.running for r in live)
    waiting = sum(r.ready + r.scheduled + r.parked for r in live)
    success, error = sum(r.succeeded for r in rows), sum(r.failed for r in rows)
    elapsed = sum(r.elapsed_ms for r in rows) / 1000
    finished = success + error + sum(r.cancelled for r in rows)
    facts: dict[str, object] = {
        "TASKS": finished + active + waiting,
        "ACTIVE_TASKS": active,
        "WAITING_TASKS": waiting,
        "FINISHED_TASKS": finished,
        "SUCCESS": success,
        "ERROR": error,
        "CANCELLED": sum(r.cancelled for r in rows),
        "RETRIED": sum(r.retried for r in rows),
        "AVG_ELAPSED_TIME": f"{elapsed / finished if finished else 0:.3f} s",
        "SUM_ELAPSED_TIME": f"{elapsed:.3f} s",
        "CONFLICTS": sum(r.conflicts for r in rows),
    }
    _table([("", "word"), ("", "number")], facts.items())


_NULL: Final = "<null>"
_LONGEST: Final = 1000
"""Characters of a text that are shown in a table."""
_BYTES: Final = 16
"""Bytes of what is binary that are shown in a table."""
_NARROW: Final = 20
"""Characters that a column of texts needs at least, if it has as many."""


def answer(found: Answer, *, as_json: bool) -> None:
    """What the database answered to a statement."""
    shown = _rows(len(found.rows))
    if found.total != len(found.rows):
        shown = f"the first {shown}" if found.total is None else f"{len(found.rows)} of {_rows(found.total)}"
        shown += "; --limit N shows more, --limit 0 all"
    if as_json:
        _as_json_answer(found)
        if found.total != len(found.rows):
            say(f"({shown})", err=True)
        return
    if found.columns:
        _records(found)
        say(f"({shown})")
    if found.changed or not found.columns:
        say("Done." if found.changed is None else f"{_rows(found.changed)} changed.")


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _as_json_answer(found: Answer) -> None:
    """The rows as objects; or, where there are none, how many were changed."""
    if not found.columns:
        as_json({"changed": found.changed})
        return
    names: list[str] = []
    for name in found.columns:
        times = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{times + 1}" if name in names else name)
    as_json([dict(zip(names, map(_json_value, row), strict=True)) for row in found.rows])


def _json_value(value: Any) -> Any:
    """*value* for JSON: decimals and times as strings, which lose nothing, and bytes as hex digits."""
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, date | time_of_day):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _records(found: Answer) -> None:
    """A table; or, where that would be too wide, a list for each row."""
    cells = [[_shown(value) for value in row] for row in found.rows]
    kinds = [_kind([row[place] for row in found.rows]) for place in range(len(found.columns))]
    titles = [visible_line(title) for title in found.columns]
    width = 2 * (len(titles) - 1)
    for place, kind in enumerate(kinds):
        widest = max([0, *(cell_len(row[place]) for row in cells)])
        width += max(cell_len(titles[place]), widest if kind != "text" else min(widest, _NARROW))
    if width <= console().width or not cells:
        _table(list(zip(titles, kinds, strict=True)), cells)
        return
    for number, row in enumerate(cells, 1):
        _table([(f"-- row {number}", "word"), ("", "text")], zip(titles, row, strict=True))


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
