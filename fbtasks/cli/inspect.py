"""``fbtasks inspect``: tasks, queues and workers, shown and not changed."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import click

from fbtasks.call import TaskRow
from fbtasks.cli import render
from fbtasks.cli.escapes import say
from fbtasks.cli.habits import HabitGroup
from fbtasks.cli.options import (
    DatabaseArgs,
    check_queue,
    database_options,
    find,
    json_option,
    not_found,
    since_option,
    since_time,
)
from fbtasks.serialize import JSON_TYPE, Payload, show_json
from fbtasks.states import State
from fbtasks.store import processes, results


@click.group(cls=HabitGroup)
def inspect() -> None:
    """Look at tasks, queues and workers."""


def list_command(name: str, state: State, help_text: str, nothing: str) -> None:
    """Adds a command that lists the tasks in one state."""

    @inspect.command(name, help=help_text)
    @database_options
    @json_option
    @click.option("--queue", help="Only this queue.")
    @click.option("--name", "task_name", help="Only tasks of this name.")
    @since_option
    @click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, help="At most so many.")
    def command(
        url: str | None,
        app_path: str | None,
        as_json: bool,
        queue: str | None,
        task_name: str | None,
        since: str | None,
        limit: int,
    ) -> None:
        with DatabaseArgs(url, app_path).session() as session:
            if queue is not None:
                check_queue(session, queue)
            wanted = results.Filter(queue=queue, name=task_name, since=since_time(since), limit=limit)
            rows = results.listing(session, state, dataclasses.replace(wanted, limit=limit + 1))
        if as_json:
            render.as_json(rows[:limit])
            return
        filtered = (queue, task_name, since) != (None, None, None)
        render.tasks(rows[:limit], state, f"No {name} task matches the filters." if filtered else nothing)
        if len(rows) > limit:
            say(f"Only the first {limit} are shown. For more: --limit {10 * limit}", err=True)


list_command("failed", State.FAILED, "Tasks that failed for good, newest first.", "No failed tasks.")
list_command("succeeded", State.SUCCEEDED, "Tasks that returned, newest first.", "No results are kept.")
list_command("cancelled", State.CANCELLED, "Tasks that were cancelled or expired, newest first.", "None was cancelled.")
list_command("active", State.RUNNING, "Tasks that run now.", "Nothing runs. What waits: fbtasks inspect queues")
list_command("ready", State.READY, "Tasks that wait for a worker.", "Nothing waits.")
list_command("scheduled", State.SCHEDULED, "Tasks that wait for their time.", "Nothing is scheduled.")
list_command("parked", State.PARKED, "Tasks whose name no worker knew: start one that does.", "Nothing is parked.")


@inspect.command("queues")
@database_options
@json_option
@click.option("--queue", help="Only this queue.")
def inspect_queues(url: str | None, app_path: str | None, as_json: bool, queue: str | None) -> None:
    """What waits and runs in each queue, and who serves it."""
    with DatabaseArgs(url, app_path).session() as session:
        rows = results.queues(session, processes.serving(processes.workers(session)))
        if queue is not None:
            check_queue(session, queue)
            rows = [row for row in rows if row.queue == queue] or [results.QueueRow(queue=queue)]
    if as_json:
        render.as_json(rows)
    else:
        render.queues(rows)


@inspect.command("workers")
@database_options
@json_option
def inspect_workers(url: str | None, app_path: str | None, as_json: bool) -> None:
    """The workers that are registered."""
    with DatabaseArgs(url, app_path).session() as session:
        rows = processes.workers(session)
    if as_json:
        render.as_json(rows)
    else:
        render.workers(rows)


@inspect.command("stats")
@database_options
@json_option
@click.option("--queue", help="Only this queue; conflicts belong to none.")
@click.option(
    "--since", default="1d", metavar="AGE|TIME", help="Since the hour of then: 90s, 15m, 2h, 7d, or an ISO time."
)
def inspect_stats(url: str | None, app_path: str | None, as_json: bool, queue: str | None, since: str) -> None:
    """Counters of tasks, errors, times and conflicts."""
    start = since_time(since) or datetime.now(UTC)
    with DatabaseArgs(url, app_path).session() as session:
        rows = results.stats(session, datetime.now(UTC) - start)
        live = results.queues(session)
        if queue is not None:
            check_queue(session, queue)
            rows = [row for row in rows if row.queue == queue]
            live = [row for row in live if row.queue == queue]
    if as_json:
        render.as_json({"counters": rows, "queues": live})
    else:
        render.stats(rows, live)


@inspect.command("task")
@click.argument("task_id", metavar="ID")
@database_options
@json_option
def inspect_task(task_id: str, url: str | None, app_path: str | None, as_json: bool) -> None:
    """One task: arguments, times, tries, result, traceback."""
    with DatabaseArgs(url, app_path).session() as session:
        number = find(session, task_id)
        row = results.find(session, number)
        if row is None:
            raise not_found(task_id)
        call = results.call_of(session, number)
        stored = results.outcome(session, number)
    arguments = None if call is None or call[1] is None else Payload(call[0], call[1])
    returned = None
    if stored is not None and stored.state is State.SUCCEEDED:
        returned = Payload(stored.content_type or JSON_TYPE, stored.result or b"null")
    trace = None if stored is None else stored.traceback
    if as_json:
        render.as_json(_whole(row, arguments, returned, trace))
    else:
        shown = "(no longer kept)" if arguments is None else show_json(arguments)
        render.task(row, shown, None if returned is None else show_json(returned), trace)


def _whole(row: TaskRow, arguments: Payload | None, returned: Payload | None, trace: str | None) -> dict[str, Any]:
    """What the lists have of a task, and the rest of it."""
    call = _value(arguments)
    pair = call if isinstance(call, list) and len(call) == 2 else (None, None)
    return {
        **render.as_dict(row),
        "args": pair[0],
        "kwargs": pair[1],
        "content_type": None if arguments is None else arguments.content_type,
        "result": _value(returned),
        "result_type": None if returned is None else returned.content_type,
        "traceback": trace,
    }


def _value(payload: Payload | None) -> Any:
    """What is in a payload of JSON. None for another one, which is not unpickled here."""
    if payload is None or payload.content_type != JSON_TYPE:
        return None
    try:
        return json.loads(payload.data)
    except (ValueError, RecursionError):
        return None
