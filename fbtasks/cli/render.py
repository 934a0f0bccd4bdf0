"""The tables of ``fbtasks inspect``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Final

from fbtasks.cli.output import ago, given_app, say, since, stamp, visible, write
from fbtasks.cli.tables import PAIRS, Column, column, screen_width, table
from fbtasks.errors import FBTasksError
from fbtasks.queue.operations.queues import QueueRow, Statistics
from fbtasks.queue.operations.tasks import TaskDetail
from fbtasks.queue.spool import Spool
from fbtasks.states import State
from fbtasks.system.showing import count, failure, sentence, span, split_remedy, with_app
from fbtasks.tasks.call import TaskRow, WorkerRow
from fbtasks.tasks.serialize import show_json

_NARROWEST: Final = 40
"""The fewest columns of the screen that sentences are wrapped to."""
_READABLE: Final = 80
"""The columns that they are wrapped to where lines have no width."""


def _error(row: TaskRow) -> str:
    return failure(row.error_type, row.error_msg)


def _elapsed(row: TaskRow) -> str | None:
    return None if row.elapsed_ms is None else span(row.elapsed_ms / 1000)


def _lanes(row: TaskRow) -> str:
    return ", then ".join(row.waits_for)


def _could_run_since(row: TaskRow) -> datetime:
    """Returns when the task was enqueued, or when its time had come."""
    return max(row.raise_time, row.start_time)


_ENDED: Final = column("ENDED", "ago", "finish_time")
_ELAPSED: Final[Column] = ("ELAPSED", "word", _elapsed)
_PRIORITY: Final = column("PRIORITY", "number")
_LAST_ERROR: Final = column("LAST ERROR", "line", "error_msg")
_WAITING: Final[list[Column]] = [
    _PRIORITY, ("WAITING", "since", _could_run_since), _LAST_ERROR
]  # fmt: skip
_LISTS: Final[dict[State, list[Column]]] = {
    State.FAILED: [column("FAILED", "ago", "finish_time"), ("ERROR", "line", _error)],
    State.SUCCEEDED: [_ENDED, _ELAPSED],
    State.CANCELLED: [_ENDED, _ELAPSED, column("REASON", "line", "error_msg")],
    State.RUNNING: [_ELAPSED, column("WORKER", "name")],
    State.READY: _WAITING,
    State.HELD: [_PRIORITY, ("FOR", "word", _lanes), *_WAITING[1:]],
    State.AWAITING: [_PRIORITY],
    State.SCHEDULED: [_PRIORITY, column("DUE", "ago", "start_time"), _LAST_ERROR],
    State.PARKED: [_PRIORITY, column("PARKED", "ago", "claim_time"), _LAST_ERROR],
}
"""The columns of each list after those that all have."""


def tasks(rows: Spool[TaskRow], state: State, nothing: str) -> None:
    """Prints tasks in one state, one line for each."""
    columns = [column("NAME", "name"), column("QUEUE", "name"), column("TRIES", "number", "try_count")]
    if any(row.task_id for row in rows):
        columns.insert(0, column("TASK ID", "name", "task_id"))
    tried = _LAST_ERROR in _LISTS[state] and any(row.error_msg for row in rows)
    columns += [each for each in _LISTS[state] if each is not _LAST_ERROR or tried]
    table([column("ID", "number"), *columns], rows, nothing)


def facts(found: TaskDetail) -> dict[str, object]:
    """Returns what is to be told of one task, by the names of what it is."""
    row = found.row
    error = _error(row)
    if found.traceback and row.error_msg and row.error_msg in found.traceback:
        error = error.partition("\n")[0]  # the rest is below
    told = {
        "ID": row.id,
        "TASK ID": row.task_id,
        "MERGED": None if found.asked_for is None else f"{found.asked_for}, into this one",
        "NAME": row.name,
        "STATE": row.state.name.lower(),
        "QUEUE": row.queue,
        "WAITS FOR": f"{_lanes(row)} (for {since(_could_run_since(row))})" if row.waits_for else None,
        **{name.upper(): text or None for name, (text, _) in found.facts.items()},
        "PRIORITY": row.priority,
        "ARGUMENTS": "(no longer kept)" if found.arguments is None else show_json(found.arguments),
        "ENQUEUED": stamp(row.raise_time),
        "BY": row.enqueued_by,
        "DUE": stamp(row.start_time),
        "CLAIMED": stamp(row.claim_time),
        "FINISHED": stamp(row.finish_time),
        "ELAPSED": _elapsed(row),
        "TRIES": row.try_count if not row.max_tries else f"{row.try_count} of {row.max_tries}",
        "CRASHES": row.crash_count or None,
        "WORKER": row.worker,
        "RESULT": None if found.result is None else show_json(found.result),
        "ERROR": error or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def task(found: TaskDetail) -> None:
    """Prints one task, whole."""
    table(PAIRS, facts(found).items())
    say_problems([("It waits", found.why)])
    if found.traceback:
        say(f"\n{found.traceback.rstrip()}")


_QUEUE: Final[list[Column]] = [
    column("QUEUE", "text"),
    *(column(title, "number") for title in ("READY", "SCHEDULED", "RUNNING", "PARKED", "HELD")),
    column("OLDEST", "since", "waiting_since"),
    ("WORKERS", "word", lambda r: r.workers or "none"),
]
_LENGTH: Final[Column] = ("LENGTH", "word", lambda r: None if r.max_length is None else f"{r.length} of {r.max_length}")


def _is_open(row: QueueRow) -> str | None:
    if row.paused:
        return "paused"
    if not row.is_bounded_in_time:
        return None
    if row.is_open:
        return "yes"
    return "no" if row.opens is None else f"no, {ago(row.opens)}"


_OPEN: Final[Column] = ("OPEN", "word", _is_open)


def _shown(title: str) -> Column:
    return title, "word", lambda row: row.shown.get(title)


def queues(rows: list[QueueRow]) -> None:
    """Prints queues with what is in them, and what features say of them, where there is anything."""
    columns = [*_QUEUE, *(each for each in (_LENGTH, _OPEN) if any(each[2](row) for row in rows))]
    columns += map(_shown, dict.fromkeys(title for row in rows for title in row.shown))
    if len(columns) > len(_QUEUE):  # a name is not folded for their sake
        columns[0] = column("QUEUE", "word")
    table(columns, rows, "No queue holds a task, and no worker serves one. Start one: fbtasks worker -A MODULE")


def _heartbeat(row: WorkerRow) -> str:
    age = f"{span(row.heartbeat_age)} ago"
    if not row.alive:
        return f"{age} (dead)"
    return f"{age} (draining)" if row.draining else age


_WORKER: Final[list[Column]] = [
    column("NAME", "text"),
    column("APP", "text"),
    column("PID", "number"),
    column("POOL", "word"),
    ("RUNNING", "word", lambda r: f"{r.running} of {r.concurrency}"),
    ("LONGEST", "word", lambda r: None if r.busy_for is None else span(r.busy_for)),
    ("QUEUES", "text", lambda r: " ".join(r.shares)),
    ("HEARTBEAT", "word", _heartbeat),
]


def workers(rows: list[WorkerRow]) -> None:
    """Prints the workers that are registered."""
    table(_WORKER, rows, "No worker is registered. Start one: fbtasks worker -A MODULE")


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
    table([PAIRS[0], ("", "number", itemgetter(1))], facts.items())


def problem_lines(name: str, problem: str, width: int, remedy: str | None = None) -> list[str]:
    """Returns a problem in lines of *width*, behind the *name* of what has it.

    The *remedy*, or the command with which it ends, has a line of its own, whole.
    """
    problem, command = split_remedy(with_app(problem, given_app()))
    remedy = with_app(remedy, given_app()) if remedy else command
    text = visible(f"{name}: " + (f"{problem}:" if remedy else sentence(problem)))
    lines = textwrap.wrap(text, max(_NARROWEST, width), subsequent_indent="  ", break_on_hyphens=False)
    return [*lines, f"    {visible(remedy)}"] if remedy else lines


def say_problem(name: str, problem: str, remedy: str | None = None, *, err: bool = False) -> None:
    """Prints a problem as :func:`problem_lines` has it, in lines of the terminal's width, or of 80 columns."""
    write("\n".join(problem_lines(name, problem, screen_width() or _READABLE, remedy)), err=err)


def say_problems(found: Iterable[tuple[str, Iterable[str]]], *, err: bool = False) -> None:
    """Prints problems as :func:`say_problem` does, behind the names of what has them."""
    for name, problems in found:
        for problem in problems:
            say_problem(name, problem, err=err)


def raise_problems(problems: Mapping[str, str], *, as_json: bool) -> None:
    """Raises an error for definitions that could not be deployed; for people the problems are told before, wrapped."""
    if not problems:
        return
    if as_json:
        raise FBTasksError("left as it was: " + "; ".join(f"{name}: {said}" for name, said in problems.items()))
    say_problems(((name, [said]) for name, said in problems.items()), err=True)
    raise FBTasksError(f"{count(len(problems), 'definition')} cannot be deployed, as said above.")
