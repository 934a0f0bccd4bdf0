"""The tables of ``fbtasks inspect``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from fbtasks.cli.output import ago, failure, say, since, span, visible, write
from fbtasks.cli.tables import console, table
from fbtasks.errors import FBTasksError
from fbtasks.features.limits.operations import LimitRow, describe_closed
from fbtasks.features.queues.operations import QueueRow, Statistics
from fbtasks.features.schedules.operations import ScheduleRow
from fbtasks.features.sources.managing import Connection, Step
from fbtasks.features.sources.operations import LoadedSource, SourceRow
from fbtasks.features.workflows.operations import ON_FAILURE, FoldedLine
from fbtasks.queue.spool import Spool
from fbtasks.states import State
from fbtasks.system.showing import count, sentence
from fbtasks.tasks.call import TaskRow, WorkerRow

_NARROWEST: Final = 40
"""The fewest columns of the screen that sentences are wrapped to."""
Column = tuple[str, str, Callable[[Any], object]]
"""The title of a column, its kind (see :func:`table`), and its value for a record."""


def _records(columns: Sequence[Column], rows: Iterable[object]) -> None:
    table([column[:2] for column in columns], ([value(row) for *_, value in columns] for row in rows))


def _column(title: str, kind: str, name: str = "") -> Column:
    """Returns the column for the field of that name; without one, for the field named like the column."""
    return title, kind, attrgetter(name or title.lower())


def _error(row: TaskRow) -> str:
    return failure(row.error_type, row.error_msg)


def _elapsed(row: TaskRow) -> str | None:
    return None if row.elapsed_ms is None else span(row.elapsed_ms / 1000)


def _could_run_since(row: TaskRow) -> datetime:
    """Returns when the task was enqueued, or when its time had come."""
    return max(row.raise_time, row.start_time)


_ENDED: Final[Column] = ("ENDED", "word", lambda r: ago(r.finish_time))
_ELAPSED: Final[Column] = ("ELAPSED", "word", _elapsed)
_PRIORITY: Final = _column("PRIORITY", "number")
_LAST_ERROR: Final = _column("LAST ERROR", "line", "error_msg")
_WAITING: Final[list[Column]] = [
    _PRIORITY, ("WAITING", "word", lambda r: since(_could_run_since(r))), _LAST_ERROR
]  # fmt: skip
_LISTS: Final[dict[State, list[Column]]] = {
    State.FAILED: [("FAILED", "word", lambda r: ago(r.finish_time)), ("ERROR", "line", _error)],
    State.SUCCEEDED: [_ENDED, _ELAPSED],
    State.CANCELLED: [_ENDED, _ELAPSED, _column("REASON", "line", "error_msg")],
    State.RUNNING: [_ELAPSED, _column("WORKER", "name")],
    State.READY: _WAITING,
    State.HELD: [_PRIORITY, ("FOR", "word", lambda r: ", then ".join(r.waits_for)), *_WAITING[1:]],
    State.AWAITING: [_PRIORITY],
    State.SCHEDULED: [_PRIORITY, ("DUE", "word", lambda r: ago(r.start_time)), _LAST_ERROR],
    State.PARKED: [_PRIORITY, ("PARKED", "word", lambda r: ago(r.claim_time)), _LAST_ERROR],
}
"""The columns of each list after those that all have."""


def tasks(rows: Spool[TaskRow], state: State, nothing: str) -> None:
    """Prints tasks in one state, one line for each."""
    if not rows:
        say(nothing)
        return
    columns = [_column("NAME", "name"), _column("QUEUE", "name"), _column("TRIES", "number", "try_count")]
    if any(row.task_id for row in rows):
        columns.insert(0, _column("TASK ID", "name", "task_id"))
    tried = _LAST_ERROR in _LISTS[state] and any(row.error_msg for row in rows)
    columns += [each for each in _LISTS[state] if each is not _LAST_ERROR or tried]
    _records([_column("ID", "number"), *columns], rows)


def task(
    row: TaskRow,
    arguments: str,
    result: str | None,
    trace: str | None,
    progress: str | None = None,
    merged: int | None = None,
    why: Sequence[str] = (),
) -> None:
    """Prints one task, whole.

    *merged*: the one that was asked for, and was merged into it; *why*: what keeps it from running.
    """
    error = _error(row)
    if trace and row.error_msg and row.error_msg in trace:
        error = error.partition("\n")[0]  # the rest is below
    facts = {
        "ID": row.id,
        "TASK ID": row.task_id,
        "MERGED": None if merged is None else f"{merged}, into this one",
        "NAME": row.name,
        "STATE": row.state.name.lower(),
        "QUEUE": row.queue,
        "WAITS FOR": _waits_for(row) if row.waits_for else None,
        "PROGRESS": progress,
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
    table([("", "word"), ("", "text")], ((k, v) for k, v in facts.items() if v is not None))
    _say_problems([("It waits", why)])
    if trace:
        say(f"\n{trace.rstrip()}")


def _waits_for(row: TaskRow) -> str:
    return f"{', then '.join(row.waits_for)} (for {since(_could_run_since(row))})"


def _stamp(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    local = moment
    with suppress(OverflowError):
        # In the first and the last hours that a TIMESTAMP holds, some zones have no local time.
        local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S %z} ({ago(moment)})"


_STEP: Final[list[Column]] = [
    ("ID", "number", lambda line: None if line.more else line.node.id),
    ("STEP", "name", lambda line: "  " * line.level + _step(line)),
    _column("STATE", "word", "node.state"),
    ("ERROR", "line", lambda line: "" if line.more else failure(line.node.error_type, line.node.error_msg)),
]


def _step(line: FoldedLine) -> str:
    node = line.node
    name = "end of the group" if node.kind == "group" else node.name or "(no longer kept)"
    name = f"on failure: {name}" if node.runs == ON_FAILURE else name
    return f"{line.more:,} more: {name}" if line.more else name


def workflow(lines: Iterable[FoldedLine]) -> None:
    """Prints a workflow as a tree."""
    _records(_STEP, lines)


_QUEUE: Final[list[Column]] = [
    _column("QUEUE", "text"),
    *(_column(title, "number") for title in ("READY", "SCHEDULED", "RUNNING", "PARKED", "HELD")),
    ("WAITING", "word", lambda r: since(r.waiting_since)),
    ("WORKERS", "word", lambda r: r.workers or "none"),
]
_LIMIT: Final[Column] = ("LENGTH", "word", lambda r: None if r.max_length is None else f"{r.length} of {r.max_length}")
_WINDOW: Final[list[Column]] = [
    ("OPEN", "word", lambda r: None if r.window is None and not r.paused else _is_open(r)),
    _column("WINDOW", "word"),
]
_AGE: Final[Column] = ("AGE", "word", lambda r: None if r.age is None else span(r.age))


def _is_open(row: QueueRow) -> str:
    if row.paused:
        return "paused"
    if row.is_open:
        return "yes"
    return "no" if row.opens is None else f"no, {ago(row.opens)}"


def queues(rows: list[QueueRow]) -> None:
    """Prints queues with what is in them; limits and windows where there are any."""
    columns = list(_QUEUE)
    if any(row.max_length is not None for row in rows):
        columns.append(_LIMIT)
    if any(row.limit is not None for row in rows):
        columns.append(_column("LIMIT", "word"))
    if any(row.window is not None or row.paused for row in rows):
        columns += _WINDOW if any(row.window is not None for row in rows) else _WINDOW[:1]
    if any(row.age is not None for row in rows):
        columns.append(_AGE)
    if len(columns) > len(_QUEUE):  # a name is not folded for their sake
        columns[0] = _column("QUEUE", "word")
    if rows:
        _records(columns, rows)
    else:
        say("No queue holds a task, and no worker serves one. Start one: fbtasks worker -A MODULE")


def _heartbeat(row: WorkerRow) -> str:
    age = f"{span(row.heartbeat_age)} ago"
    if row.lease_left < 0:
        return f"{age} (dead)"
    return f"{age} (draining)" if row.draining else age


_WORKER: Final[list[Column]] = [
    _column("NAME", "text"),
    _column("PID", "number"),
    _column("POOL", "word"),
    ("RUNNING", "word", lambda r: f"{r.running} of {r.concurrency}"),
    ("LONGEST", "word", lambda r: None if r.busy_for is None else span(r.busy_for)),
    ("QUEUES", "text", lambda r: " ".join(r.shares)),
    ("HEARTBEAT", "word", _heartbeat),
]


def workers(rows: list[WorkerRow]) -> None:
    """Prints the workers that are registered."""
    if rows:
        _records(_WORKER, rows)
    else:
        say("No worker is registered. Start one: fbtasks worker -A MODULE")


def stats(found: Statistics) -> None:
    """Prints the statistics, with the names that queue tables have for them."""
    rows, live = found.counters, found.queues
    active = sum(r.running for r in live)
    waiting = sum(r.waiting for r in live)
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
    table([("", "word"), ("", "number")], facts.items())


def _state(row: SourceRow) -> str:
    return f"{row.state} (ends)" if row.ends else row.state


def _deployed(row: SourceRow) -> str:
    """Returns since when a trigger is as it is; events and polls need none."""
    return "" if row.active_since is None else ago(row.active_since)


def _numbered(row: SourceRow) -> str:
    return row.name if row.id is None else f"{row.name} ({row.id})"


_SOURCE: Final[list[Column]] = [
    ("TASK", "word", lambda r: r.name or "-"),  # whole, for the commands that take it
    _column("SOURCE", "name"),
    ("STATE", "word", _state),
]
_NO_SOURCE: Final = "No task is fed by the database. Define one with @app.on_change, on_event or poll_table, then: " + (
    "fbtasks subscriptions apply -A MODULE"
)


def sources(rows: list[SourceRow]) -> None:
    """Prints subscriptions, one line for each."""
    if not rows:
        say(_NO_SOURCE)
        return
    more: list[Column] = [_column("APP", "name"), _column("QUEUE", "name"), ("DEPLOYED", "word", _deployed)]
    _records([_column("ID", "number"), _column("KIND", "word"), *_SOURCE, *more], rows)
    _say_problems((_numbered(row), row.problems) for row in rows)


_LOADED: Final[list[Column]] = [
    ("WAITING", "number", lambda r: "-" if r.waiting is None else r.waiting),
    ("LAG", "word", lambda r: None if r.lag is None else span(r.lag)),
    *(_column(title, "number") for title in ("READY", "RUNNING", "HELD", "FAILED", "TAKEN")),
]
_LOADED_NOTHING_HELD: Final = [column for column in _LOADED if column[0] != "HELD"]


def loaded_sources(rows: list[LoadedSource], queues: Mapping[str, QueueRow]) -> None:
    """Prints subscriptions with what they have; and of *queues*, by their names, why they keep something waiting."""
    if not rows:
        say(_NO_SOURCE)
        return
    _records([*_SOURCE, *(_LOADED if any(row.held for row in rows) else _LOADED_NOTHING_HELD)], rows)
    for row in rows:
        kept = _kept(row, queues.get(row.queue, QueueRow(queue=row.queue)))
        _say_problems([(row.name or f"event {row.source}", [*row.problems, *_halted(row), *kept])])


def _kept(row: LoadedSource, queue: QueueRow) -> list[str]:
    """Returns why the queue of a subscription that is active keeps waiting what it has."""
    if row.state != "active" or row.waiting == row.behind:
        return []
    said = []
    if not queue.workers:
        said.append(f"no worker serves its queue {queue.queue}")
    if row.waiting is None:
        return said
    if queue.max_length is not None and queue.length >= queue.max_length:
        said.append(f"its queue {queue.queue} is full ({queue.length} of {count(queue.max_length, 'task')})")
    if queue.paused:
        said.append(f"its queue {queue.queue} is paused")
    elif not queue.is_open:
        said.append(
            f"its queue {queue.queue} is closed" + ("" if queue.opens is None else f", opens {ago(queue.opens)}")
        )
    return said


def _halted(row: LoadedSource) -> list[str]:
    """Returns what is to be said of lanes that stand still, and of tasks that wait for others."""
    said = []
    if row.halted:
        behind = f", and {row.behind} of WAITING behind {'it' if row.halted == 1 else 'them'}" if row.behind else ""
        said.append(
            f"{count(row.halted, 'lane')} halted since a task failed{behind}. Retry or discard what is listed by: "
            f"fbtasks inspect failed --name {row.name}"
        )
    if row.held:
        what = "1 task is held until its turn" if row.held == 1 else f"{row.held} tasks are held until their turn"
        said.append(f"{what} in the lane comes (fbtasks inspect held)")
    return said


_SIZES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def when(row: ScheduleRow) -> str:
    """Returns when a schedule ticks, in words."""
    if row.every is None:
        return f"{row.cron} {row.tz}"
    size, unit = next((size, unit) for size, unit in _SIZES if row.every % size == 0 or unit == "s")
    return f"every {row.every / size:g} {unit}"


def arguments(row: ScheduleRow) -> str:
    """Returns the call that a schedule makes."""
    if row.args is None or row.kwargs is None:
        return f"{row.task}(...)"
    given = [f"{value!r}" for value in row.args] + [f"{name}={value!r}" for name, value in row.kwargs.items()]
    return f"{row.task}({', '.join(given)})"


_SCHEDULE: Final[list[Column]] = [
    _column("NAME", "word"),
    ("WHEN", "word", lambda r: when(r) + (" (set)" if {"cron", "every", "tz"} & {*r.set} else "")),
    _column("STATE", "word"),
    ("NEXT", "word", lambda r: ago(r.next)),
    ("LAST", "word", lambda r: ago(r.last)),
    ("CALL", "line", arguments),
]


def schedules(rows: list[ScheduleRow]) -> None:
    """Prints schedules, one line for each, and what is wrong with them."""
    if not rows:
        say("There are no schedules: no worker of an app with periodic tasks has started yet.")
        return
    _records(_SCHEDULE, rows)
    for row in rows:
        if row.error:
            say(f"{row.name}: {row.error}")


def lets_in(row: LimitRow) -> str:
    """Returns what a limit lets in, in words; and what the code says where operators have said something else."""
    if row.kind in ("ordered", "unique"):
        return "one at a time, in order" if row.kind == "ordered" else "one of equal calls"
    if row.batch is not None and row.wait is not None:
        return f"{row.batch} together, or after {span(row.wait)}"
    said = _allowed(row.at_once, row.rate, row.burst)
    return f"{said} (set; the code: {_allowed(row.code_at_once, row.code_rate, row.code_burst)})" if row.set else said


def _allowed(at_once: int | None, rate: str | None, burst: int | None) -> str:
    said = [] if at_once is None else [f"{at_once} at once"]
    if rate is not None:
        said.append(f"{rate} (burst {burst or 1})")
    return ", ".join(said) or "any number"


_TASK_LIMIT: Final[list[Column]] = [
    ("NAME", "word", lambda r: r.name or "(not defined)"),
    ("LETS IN", "word", lets_in),
    _column("STATE", "word"),
    ("IN", "number", attrgetter("inside")),
    *(_column(title, "number") for title in ("WAITING", "KEYS")),
]


def limits(rows: list[LimitRow]) -> None:
    """Prints limits, one line for each, and the keys that are closed."""
    if not rows:
        say("There are no limits: no worker of an app with limits has started yet, and no such task was called.")
        return
    _records(_TASK_LIMIT, rows)
    for row in rows:
        _say_problems([(row.name or "", [describe_closed(row.name or "", key) for key in row.closed])])


_TO_DO: Final = {"alter": "change"}
"""What is to be done for a step whose action has another name than that."""
_DONE: Final = {
    "create": "created",
    "alter": "changed",
    "replace": "replaced",
    "repair": "repaired",
    "orphan": "orphaned",
    "none": "unchanged",
}


_REMEDY: Final = re.compile(r"(.*?)(?::? *\(|: )(fbtasks [a-z](?:(?!\. |, )[^()])*?)\)?\.?")
"""A problem that ends with a command."""


def _say_problems(found: Iterable[tuple[str, Iterable[str]]], *, err: bool = False) -> None:
    """Prints each problem in lines of the terminal's width, behind the name of what has it.

    The command with which it ends has a line of its own, whole.
    """
    width = max(_NARROWEST, console().width)
    for name, problems in found:
        for problem in problems:
            text = visible(" ".join(problem.split()))
            remedy = _REMEDY.fullmatch(text)
            text = f"{visible(name)}: " + (f"{remedy[1]}:" if remedy else sentence(text))
            lines = textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
            if remedy:
                lines.append(f"    {remedy[2]}")
            write("\n".join(lines), err=err)


def steps(found: Iterable[Step], *, done: bool) -> list[str]:
    """Returns a line for each step of a deployment: what was *done*, or is to be done."""
    return [
        f"{_DONE[step.action] if done else f'to {_TO_DO.get(step.action, step.action)}'}: "
        f"{step.name} ({step.kind} of {step.source})" + (f": {step.reason}" if step.reason else "")
        for step in found
    ]


END_THEM: Final = "Restart the programs that have them."


def tell_older(found: Sequence[Connection], remedy: str) -> None:
    """Tells on stderr of the connections that are older than a trigger, if there are any."""
    if found:
        what = f"{count(len(found), 'connection')} older than a trigger"
        goes_on = "until it ends, what it prepared before may go on without that trigger"
        say("\n".join([f"{what}; {goes_on}. {remedy}", *connections(found)]), err=True)


def connections(found: Iterable[Connection]) -> list[str]:
    """Returns a line for each connection."""
    return [
        f"  {each.id}: {each.user}, {each.program or 'unknown program'}, pid {each.pid}, since {_stamp(each.since)}"
        + (f", from {each.address}" if each.address else "")
        for each in found
    ]


def raise_problems(problems: Mapping[str, str], *, as_json: bool) -> None:
    """Raises an error for definitions that could not be deployed; for people the problems are told before, wrapped."""
    if not problems:
        return
    if as_json:
        raise FBTasksError("left as it was: " + "; ".join(f"{name}: {said}" for name, said in problems.items()))
    _say_problems(((name, [said]) for name, said in problems.items()), err=True)
    raise FBTasksError(f"{count(len(problems), 'definition')} cannot be deployed, as said above.")
