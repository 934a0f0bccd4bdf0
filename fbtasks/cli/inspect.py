"""``fbtasks inspect``: tasks, queues and workers, shown and not changed."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fbtasks.cli import render
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
from fbtasks.serialize import Payload, show_json
from fbtasks.states import State
from fbtasks.store import results, workers


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
    @click.option("--limit", type=click.IntRange(1), default=50, help="At most so many.")
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
            rows = results.listing(session, state, wanted)
        if as_json:
            render.as_json(rows)
        else:
            render.tasks(rows, state, nothing)


list_command("failed", State.FAILED, "Tasks that failed for good, newest first.", "No failed tasks.")
list_command("succeeded", State.SUCCEEDED, "Tasks that returned, newest first.", "No results are kept.")
list_command("cancelled", State.CANCELLED, "Tasks that were cancelled or expired, newest first.", "None was cancelled.")
list_command("active", State.RUNNING, "Tasks that run now.", "Nothing runs.")
list_command("ready", State.READY, "Tasks that wait for a worker.", "Nothing waits.")
list_command("scheduled", State.SCHEDULED, "Tasks that wait for their time.", "Nothing is scheduled.")
list_command("parked", State.PARKED, "Tasks whose name no worker knew.", "Nothing is parked.")


@inspect.command("queues")
@database_options
@json_option
@click.option("--queue", help="Only this queue.")
def inspect_queues(url: str | None, app_path: str | None, as_json: bool, queue: str | None) -> None:
    """What waits and runs in each queue."""
    with DatabaseArgs(url, app_path).session() as session:
        rows = results.queues(session)
        if queue is not None:
            check_queue(session, queue)
            rows = [row for row in rows if row.queue == queue] or [results.QueueRow(queue=queue)]
        served = {queue for worker in workers.listing(session) for queue in worker.queues}
    if as_json:
        render.as_json(rows)
    else:
        render.queues(rows, served)


@inspect.command("workers")
@database_options
@json_option
def inspect_workers(url: str | None, app_path: str | None, as_json: bool) -> None:
    """The workers that are registered."""
    with DatabaseArgs(url, app_path).session() as session:
        rows = workers.listing(session)
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
    """One task: arguments, times, tries, traceback."""
    with DatabaseArgs(url, app_path).session() as session:
        number = find(session, task_id)
        row = results.find(session, number)
        if row is None:
            raise not_found(task_id)
        call = results.call_of(session, number)
        stored = results.outcome(session, number)
    arguments = "(no longer kept)"
    if call is not None and call[1] is not None:
        arguments = show_json(Payload(call[0], call[1]))
    trace = None if stored is None else stored.traceback
    if as_json:
        render.as_json({"task": row, "arguments": arguments, "traceback": trace})
    else:
        render.task(row, arguments, trace)
