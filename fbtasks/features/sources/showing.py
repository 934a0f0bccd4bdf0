"""Subscriptions in words and tables, for those who deploy and operate them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fbtasks.cli.output import ago, stamp
from fbtasks.cli.render import say_problems
from fbtasks.cli.tables import Column, column, table
from fbtasks.features.sources.managing import Connection, Step
from fbtasks.features.sources.operations import LoadedSource, SourceRow
from fbtasks.queue.results import QueueRow
from fbtasks.system.showing import command_line, count, span
from fbtasks.tasks.call import WorkerRow


def _state(row: SourceRow) -> str:
    return f"{row.state} (ends)" if row.ends else row.state


def _numbered(row: SourceRow) -> str:
    return row.name if row.id is None else f"{row.name} ({row.id})"


_SOURCE: Final[list[Column]] = [
    ("TASK", "key", lambda r: r.name or "-"),  # whole, for the commands that take it
    column("SOURCE", "name"),
    ("STATE", "word", _state),
]
_NO_SOURCE: Final = "No task is fed by the database. Define one with @app.on_change, on_event or poll_table, then: " + (
    "fbtasks subscriptions apply -A MODULE"
)


def sources(rows: list[SourceRow]) -> None:
    """Prints subscriptions, one line for each."""
    more: list[Column] = [column("APP", "name"), column("QUEUE", "name"), column("DEPLOYED", "ago", "active_since")]
    table([column("ID", "number"), column("KIND", "word"), *_SOURCE, *more], rows, _NO_SOURCE)
    say_problems((_numbered(row), row.problems) for row in rows)


_LOADED: Final[list[Column]] = [
    ("WAITING", "number", lambda r: "-" if r.waiting is None else r.waiting),
    ("LAG", "word", lambda r: None if r.lag is None else span(r.lag)),
    *(column(title, "number") for title in ("READY", "RUNNING", "HELD", "FAILED", "TAKEN")),
]
_LOADED_NOTHING_HELD: Final = [column for column in _LOADED if column[0] != "HELD"]


def loaded_sources(rows: list[LoadedSource], queues: Mapping[str, QueueRow]) -> None:
    """Prints subscriptions with what they have; and of *queues*, by their names, why they keep something waiting."""
    table([*_SOURCE, *(_LOADED if any(row.held for row in rows) else _LOADED_NOTHING_HELD)], rows, _NO_SOURCE)
    for row in rows:
        kept = _kept(row, queues.get(row.queue, QueueRow(queue=row.queue)))
        say_problems([(row.name or f"event {row.source}", [*row.problems, *_halted(row), *kept])])


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
            f"{command_line('fbtasks inspect failed --name {}', row.name)}"
        )
    if row.held:
        what = "1 task is held until its turn" if row.held == 1 else f"{row.held} tasks are held until their turn"
        said.append(f"{what} in the lane comes (fbtasks inspect held)")
    return said


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


def steps(found: Iterable[Step], *, done: bool) -> list[str]:
    """Returns a line for each step of a deployment: what was *done*, or is to be done."""
    return [
        f"{_DONE[step.action] if done else f'to {_TO_DO.get(step.action, step.action)}'}: "
        f"{step.name} ({step.kind} of {step.source})" + (f": {step.reason}" if step.reason else "")
        for step in found
    ]


END_THEM: Final = "Restart the programs that have {}."
WAIT: Final = "To wait for {0}: --wait SECONDS; to end {0}: --disconnect."


def older(found: Sequence[Connection], remedy: str, workers: Iterable[WorkerRow]) -> str:
    """Returns what is to be said of connections that are older than a trigger."""
    they, them, end = ("it", "it", "ends") if len(found) == 1 else ("they", "them", "end")
    goes_on = f"until {they} {end}, what {they} prepared before may go on without that trigger"
    what = f"{count(len(found), 'connection')} older than a trigger; {goes_on}. {remedy.format(them)}"
    return "\n".join([what, *connections(found, workers)])


def connections(found: Iterable[Connection], workers: Iterable[WorkerRow]) -> list[str]:
    """Returns a line for the connections of each process.

    A server says which program that is; of the embedded engine, whose processes see each other, one of *workers* is
    known by its pid.
    """
    names: dict[int | None, str] = {row.pid: f"worker {row.name}" for row in workers if row.alive}
    processes: dict[tuple[int | None, str, str | None, str | None], list[Connection]] = {}
    for each in found:
        address = each.address and each.address.partition("/")[0]  # without its port
        processes.setdefault((each.pid, each.user, each.program, address), []).append(each)
    return [
        f"  {', '.join(str(each.id) for each in several)}: {user}, {program or names.get(pid, 'unknown program')}, "
        f"pid {pid}, since {stamp(min(each.since for each in several))}" + (f", from {address}" if address else "")
        for (pid, user, program, address), several in processes.items()
    ]
