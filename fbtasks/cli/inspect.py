"""The commands of ``fbtasks inspect``: tasks, queues and workers, shown and not changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from fbtasks.cli import render
from fbtasks.cli.commands import COMMANDS
from fbtasks.cli.options import Command, command, since_time
from fbtasks.cli.output import as_dict, print_json, print_json_list, say
from fbtasks.queue.operations import pausing
from fbtasks.queue.operations import queues as queue_service
from fbtasks.queue.operations import tasks as task_service
from fbtasks.queue.operations.workers import list_workers
from fbtasks.states import State
from fbtasks.tasks.serialize import json_value


def _list_command(name: str, state: State, nothing: str) -> click.Command:
    """Returns the command that lists the tasks in one state; *nothing* is what it says of an empty list."""

    @click.option("--queue", help="Only this queue.")
    @click.option("--name", "task_name", help="Only tasks of this name.")
    @click.option("--since", metavar="AGE|TIME", help="Only since then: 90s, 15m, 2h, 7d, or an ISO time.")
    @click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, help="At most so many.")
    def show(command: Command, queue: str | None, task_name: str | None, since: str | None, limit: int) -> None:
        filtered = (queue, task_name, since) != (None, None, None)
        wanted = task_service.Filter(queue=queue, name=task_name, since=since_time(since), limit=limit)
        with task_service.list_tasks(command.database, state, wanted, command.code) as (rows, more):
            if command.as_json:
                print_json_list(rows)
                return
            render.tasks(rows, state, f"No {name} task matches the filters." if filtered else nothing)
            if state is State.PARKED and rows:
                names = {task.name for task in rows}
                _say_paused([each for each in command.database.use(pausing.paused_names) if each in names])
            _say_all(_beside(command, asked=not rows and not filtered))
            if more:
                say(f"Only the first {limit} are shown. For more: --limit {10 * limit}", err=True)

    show.__name__, show.__doc__ = name, COMMANDS[__name__][f"inspect {name}"]
    return command(show)


def _say_paused(names: list[str]) -> None:
    """Says which names of tasks are paused, and how to go on."""
    if names:
        remedy = pausing.how_to_resume(names=names)
        say(f"Paused tasks, which are parked: {', '.join(names)}. Go on: {remedy}")


def _beside(command: Command, *, asked: bool) -> list[str]:
    """Returns what the database holds that others than workers run, where people are to be told of it."""
    return queue_service.list_beside(command.database) if asked and not command.as_json else []


def _say_all(sentences: list[str]) -> None:
    for each in sentences:
        say(each)


failed = _list_command("failed", State.FAILED, "No failed tasks.")
succeeded = _list_command("succeeded", State.SUCCEEDED, "No results are kept.")
cancelled = _list_command("cancelled", State.CANCELLED, "None was cancelled.")
active = _list_command("active", State.RUNNING, "Nothing runs. What waits: fbtasks inspect queues")
ready = _list_command("ready", State.READY, "Nothing waits.")
scheduled = _list_command("scheduled", State.SCHEDULED, "Nothing is scheduled.")
parked = _list_command("parked", State.PARKED, "Nothing is parked.")
held = _list_command("held", State.HELD, "Nothing is held.")
awaiting = _list_command("awaiting", State.AWAITING, "Nothing is awaiting.")


@command
@click.argument("task_id", metavar="ID")
def task(command: Command, task_id: str) -> None:
    """One task: arguments, times, tries, result, traceback."""
    found = task_service.get_task(command.database, task_id)
    if command.as_json:
        print_json(_as_dict(found))
    else:
        render.task(found)


def _as_dict(found: task_service.TaskDetail) -> dict[str, Any]:
    """Returns what the lists have of a task, and the rest of it."""
    call = json_value(found.arguments)
    args, kwargs, headers = [*call, {}][:3] if isinstance(call, list) and 2 <= len(call) <= 3 else (None,) * 3
    return {
        **as_dict(found.row),
        "args": args,
        "kwargs": kwargs,
        "headers": headers,
        "content_type": None if found.arguments is None else found.arguments.content_type,
        "result": json_value(found.result),
        "result_type": None if found.result is None else found.result.content_type,
        "traceback": found.traceback,
        **{name: value for name, (_, value) in found.facts.items()},
        "asked_for": found.asked_for,
        "why": found.why,
    }


@command
@click.option("--queue", help="Only this queue.")
def queues(command: Command, queue: str | None) -> None:
    """What waits and runs in each queue, and who serves it."""
    rows = queue_service.list_queues(command.database, queue, command.code)
    names = [] if command.as_json or queue else command.database.use(pausing.paused_names)
    beside = _beside(command, asked=queue is None)
    command.show(rows, render.queues)
    _say_paused(names)
    _say_all(beside)


@command
@click.option("--queue", help="Only this queue; conflicts belong to none.")
@click.option(
    "--since", default="1d", metavar="AGE|TIME", help="Since the hour of then: 90s, 15m, 2h, 7d, or an ISO time."
)
def stats(command: Command, queue: str | None, since: str) -> None:
    """Counters of tasks, errors, times and conflicts."""
    start = since_time(since)
    window = timedelta(0) if start is None else datetime.now(UTC) - start
    found = queue_service.get_statistics(command.database, window, queue, command.code)
    command.show(found, render.stats)


@command
def workers(command: Command) -> None:
    """The workers that are registered."""
    rows = list_workers(command.database)
    beside = _beside(command, asked=not rows)
    command.show(rows, render.workers)
    _say_all(beside)
