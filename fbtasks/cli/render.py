"""All that the command line prints: tables for people, JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fbtasks.call import TaskRow, WorkerRow
from fbtasks.states import State
from fbtasks.store.adhoc import Answer
from fbtasks.store.results import QueueRow, StatRow
from fbtasks.store.values import visible


def console() -> Console:
    """A console for tables: as wide as the terminal, and 80 columns into a pipe."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False, soft_wrap=False)


def as_json(value: Any) -> None:
    """Prints records as JSON."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, State):
        return value.name.lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    cells = [["" if cell is None else _escape(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, (title, kind) in enumerate(columns):
        short = kind in ("number", "word")
        # What is short keeps its width: an ID that was cut off would be of no use.
        width = max([cell_len(title), *(cell_len(row[place]) for row in cells)]) if short else None
        table.add_column(
            title, justify="right" if kind == "number" else "left", no_wrap=short, width=width, overflow="fold"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _escape(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def ago(moment: datetime | None) -> str:
    """How long ago, or in how long, in one short word."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in one short word."""
    for limit, unit, size in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def tasks(rows: list[TaskRow], state: State, nothing: str) -> None:
    """A list of tasks in one state."""
    if not rows:
        print(nothing)
        return
    common = [("ID", "number"), ("NAME", "text"), ("QUEUE", "text"), ("TRIES", "number")]
    if state is State.FAILED:
        columns = [*common, ("FAILED", "word"), ("ERROR", "text")]
        _table(columns, ([*_common(r), ago(r.finish_time), _error(r)] for r in rows))
    elif state in (State.SUCCEEDED, State.CANCELLED):
        columns = [*common, ("ENDED", "word"), ("ELAPSED", "word")]
        reason = state is State.CANCELLED
        columns += [("REASON", "text")] if reason else []
        _table(columns, ([*_common(r), ago(r.finish_time), _elapsed(r), *([r.error_msg] * reason)] for r in rows))
    elif state is State.RUNNING:
        columns = [*common, ("SINCE", "word"), ("WORKER", "text")]
        _table(columns, ([*_common(r), ago(r.claim_time), r.worker] for r in rows))
    else:
        columns = [*common, ("PRIORITY", "number"), ("START", "word"), ("LAST ERROR", "text")]
        _table(columns, ([*_common(r), r.priority, ago(r.start_time), r.error_msg] for r in rows))


def _common(row: TaskRow) -> list[object]:
    return [row.id, row.name, row.queue, row.try_count]


def _error(row: TaskRow) -> str:
    kind = (row.error_type or "").removeprefix("builtins.")
    return f"{kind}: {row.error_msg}" if kind else row.error_msg or ""


def _elapsed(row: TaskRow) -> str | None:
    return None if row.elapsed_ms is None else span(row.elapsed_ms / 1000)


def task(row: TaskRow, arguments: str, trace: str | None) -> None:
    """One task, whole."""
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
        "START": _stamp(row.start_time),
        "CLAIMED": _stamp(row.claim_time),
        "FINISHED": _stamp(row.finish_time),
        "ELAPSED": _elapsed(row),
        "TRIES": row.try_count,
        "CRASHES": row.crash_count or None,
        "WORKER": row.worker,
        "ERROR": _error(row) or None,
    }
    _table([("", "word"), ("", "text")], ((k, v) for k, v in facts.items() if v is not None))
    if trace:
        print(f"\n{trace.rstrip()}")


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S %z} ({ago(moment)})"


def queues(rows: list[QueueRow], served: set[str]) -> None:
    """Queues with what is in them."""
    if not rows:
        print("No queue holds a task.")
        return
    columns = [("QUEUE", "text"), *((t, "number") for t in ("READY", "SCHEDULED", "RUNNING", "PARKED"))]
    columns += [("OLDEST", "word"), ("WORKERS", "word")]
    _table(
        columns,
        (
            [
                r.queue,
                r.ready,
                r.scheduled,
                r.running,
                r.parked,
                ago(r.waiting_since),
                "yes" if r.queue in served else "none",
            ]
            for r in rows
        ),
    )


def workers(rows: list[WorkerRow]) -> None:
    """Workers that are registered."""
    if not rows:
        print("No worker is registered.")
        return
    columns = [("ID", "number"), ("NAME", "text"), ("PID", "number"), ("POOL", "word"), ("RUNNING", "number")]
    columns += [("QUEUES", "text"), ("HEARTBEAT", "word")]
    _table(
        columns,
        ([r.id, r.name, r.pid, f"{r.pool} {r.concurrency}", r.running, " ".join(r.queues), _health(r)] for r in rows),
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


def benchmark(found: dict[str, Any]) -> None:
    """The figures of a run of the benchmark, and what they say of the targets."""
    for name, value in found["machine"].items():
        print(f"{name:16} {value}")
    print()
    _table(
        [("FIGURE", "text"), ("VALUE", "number"), ("UNIT", "word")],
        [(figure["label"], amount(figure["value"]), figure["unit"]) for figure in found["figures"]],
    )
    print()
    _table(
        [("TARGET", "text"), ("WANTED", "text"), ("FOUND", "number"), ("", "text"), ("REACHED", "word")],
        [
            (target["what"], target["wanted"], amount(target["found"]), target["unit"], verdict(target["reached"]))
            for target in found["targets"]
        ],
    )
    for note in found["notes"]:
        print(note)


def amount(value: float | None) -> str:
    """A figure with as many digits as mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def verdict(reached: bool | None) -> str:
    """Whether a target was reached."""
    return {True: "yes", False: "NO", None: "not measured"}[reached]


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
            print(f"({shown})", file=sys.stderr)
        return
    if found.columns:
        _records(found)
        print(f"({shown})")
    if found.changed or not found.columns:
        print("Done." if found.changed is None else f"{_rows(found.changed)} changed.")


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
    titles = [visible(title) for title in found.columns]
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
    return visible(text[:_LONGEST]) + more
