"""The commands that change tasks: ``retry``, ``discard``, ``cancel``, ``purge``, ``prune``."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Final

import click

from fbtasks.call import TaskRow
from fbtasks.cli.options import DatabaseArgs, check_queue, count, database_options, find, since_time
from fbtasks.errors import FBTasksError
from fbtasks.maintenance.prune import prune as prune_now
from fbtasks.states import State
from fbtasks.store import results, tasks
from fbtasks.store.session import Session, Transaction

RETRY_BATCH: Final = 500
"""Tasks that ``retry --all-failed`` puts back in one transaction."""


@click.command()
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="All failed tasks.")
@click.option("--queue", help="With --all-failed: only this queue.")
@click.option("--name", "task_name", help="With --all-failed: only tasks of this name.")
@click.option("--since", metavar="AGE|TIME", help="With --all-failed: only those that failed since then.")
@database_options
def retry(
    task_ids: tuple[str, ...], all_failed: bool, queue: str | None, task_name: str | None, since: str | None,
    url: str | None, app_path: str | None,
) -> None:  # fmt: skip
    """Put failed or cancelled tasks back into their queues."""
    if bool(task_ids) == all_failed:
        raise click.UsageError("give the IDs of tasks, or --all-failed.")
    if not all_failed and (queue, task_name, since) != (None, None, None):
        raise click.UsageError("--queue, --name and --since go with --all-failed.")
    with DatabaseArgs(url, app_path).session() as session:
        if all_failed:
            if queue is not None:
                check_queue(session, queue)
            wanted = results.Filter(queue=queue, name=task_name, since=since_time(since), limit=RETRY_BATCH)
            total = _retry_all(session, wanted)
            click.echo(f"{count(total, 'task')} put back.")
            return
        numbers = [find(session, task_id) for task_id in task_ids]
        done = [session.run(lambda t, n=number: tasks.retry(t, n)) for number in numbers]  # type: ignore[misc]
    _report(done, "put back", "is neither failed nor cancelled", numbers)


def _retry_page(rows: list[TaskRow], transaction: Transaction) -> list[bool]:
    return [tasks.retry(transaction, row.id) for row in rows]


def _retry_all(session: Session, wanted: results.Filter) -> int:
    """Puts failed tasks back, a batch in a transaction. Those that fail again meanwhile are left."""
    wanted = dataclasses.replace(wanted, until=results.now(session))
    total = 0
    while rows := results.listing(session, State.FAILED, wanted):
        done = session.run(partial(_retry_page, rows))
        total += sum(done)
        if not any(done):
            break
    return total


def _report(done: list[bool], what: str, why_not: str, numbers: list[int]) -> None:
    click.echo(f"{count(sum(done), 'task')} {what}.")
    if not all(done):
        left = ", ".join(str(number) for number, ok in zip(numbers, done, strict=True) if not ok)
        raise FBTasksError(f"task {left} {why_not}: nothing was changed for it.")


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
def discard(task_ids: tuple[str, ...], url: str | None, app_path: str | None) -> None:
    """Delete finished tasks for good."""
    with DatabaseArgs(url, app_path).session() as session:
        numbers = [find(session, task_id) for task_id in task_ids]
        done = [session.run(lambda t, n=number: tasks.forget(t, n)) for number in numbers]  # type: ignore[misc]
    _report(done, "discarded", "has not ended (use: fbtasks cancel)", numbers)


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
def cancel(task_ids: tuple[str, ...], url: str | None, app_path: str | None) -> None:
    """Cancel tasks: waiting ones at once; running ones are stopped by their worker."""
    with DatabaseArgs(url, app_path).session() as session:
        numbers = [find(session, task_id) for task_id in task_ids]
        answers = [session.run(lambda t, n=number: tasks.cancel(t, n, terminate=True)) for number in numbers]  # type: ignore[misc]
    for number, answer in zip(numbers, answers, strict=True):
        if answer == "requested":
            click.echo(f"Task {number} runs: its worker was asked to stop it.")
    _report([a is not None for a in answers], "cancelled", "has ended already", numbers)


@click.command()
@click.argument("queue")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
def purge(queue: str, yes: bool, url: str | None, app_path: str | None) -> None:
    """Delete all waiting tasks of a queue."""
    with DatabaseArgs(url, app_path).session() as session:
        check_queue(session, queue)
        counts = {row.queue: row.ready + row.scheduled + row.parked for row in results.queues(session)}
        if not yes:
            click.confirm(f"Delete {count(counts.get(queue, 0), 'waiting task')} of queue {queue!r}?", abort=True)
        total = 0
        while gone := session.run(lambda t: tasks.purge(t, queue)):
            total += gone
    click.echo(f"{count(total, 'task')} deleted.")


@click.command()
@database_options
def prune(url: str | None, app_path: str | None) -> None:
    """Delete results and failures that have been kept long enough."""
    place = DatabaseArgs(url, app_path)
    app = place.app()
    try:
        with app.database.session() as session:
            total = prune_now(session, app.settings, batches=1_000_000)
    finally:
        app.close()
    click.echo(f"{count(total, 'finished task')} deleted.")
