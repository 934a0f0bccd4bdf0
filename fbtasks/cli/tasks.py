"""The commands that change tasks: ``retry``, ``discard``, ``cancel``, ``purge``, ``prune``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import click

from fbtasks.call import TaskRow
from fbtasks.cli import render
from fbtasks.cli.escapes import say
from fbtasks.cli.options import DatabaseArgs, check_queue, count, database_options, find, json_option, since_time
from fbtasks.errors import FBTasksError
from fbtasks.firebird.session import Session, Transaction
from fbtasks.maintenance.prune import prune as prune_now
from fbtasks.states import State
from fbtasks.store import results, tasks

RETRY_BATCH: Final = 500
"""Tasks that ``retry --all-failed`` puts back in one transaction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a command did to one task. ``given`` is the id as the user wrote it."""

    given: str
    id: int
    outcome: str
    """A participle such as "retried", "requested" for a task that its worker will stop, or "unchanged"."""
    state: str | None
    """The task's state afterwards. None when it is no longer there."""


def _change(
    session: Session, task_ids: Iterable[str], change: Callable[[Transaction, int], str | None]
) -> list[Change]:
    """Changes tasks one after the other. An id that does not exist is an error before any is changed."""
    numbers = {task_id: find(session, task_id) for task_id in task_ids}
    changes = []
    for given, number in numbers.items():

        def work(transaction: Transaction, number: int = number) -> str | None:
            return change(transaction, number)

        outcome = session.run(work) or "unchanged"
        found = results.state(session, number)
        changes.append(Change(given, number, outcome, None if found is None else found[0].name.lower()))
    return changes


def _report(changes: list[Change], what: str, why_not: str, as_json: bool) -> None:
    """Prints what was done. Raises an error for what was left as it is."""
    done = sum(change.outcome not in ("unchanged", "requested") for change in changes)
    if as_json:
        render.as_json({"count": done, "tasks": changes})
    else:
        for change in changes:
            if change.outcome == "requested":
                say(f"Task {change.given} runs: its worker was asked to stop it.")
        if done or not any(change.outcome == "requested" for change in changes):
            say(f"{count(done, 'task')} {what}.")
    left = [f"{change.given} ({change.state or 'gone'})" for change in changes if change.outcome == "unchanged"]
    if left:
        raise FBTasksError(f"nothing was changed for {', '.join(left)}: {why_not}.")


def _count(total: int, text: str, as_json: bool, **more: Any) -> None:
    """Prints how many tasks were changed."""
    if as_json:
        render.as_json({**more, "count": total})
    else:
        say(text)


@click.command()
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="All failed tasks.")
@click.option("--queue", help="With --all-failed: only this queue.")
@click.option("--name", "task_name", help="With --all-failed: only tasks of this name.")
@click.option("--since", metavar="AGE|TIME", help="With --all-failed: only those that failed since then.")
@database_options
@json_option
def retry(
    task_ids: tuple[str, ...], all_failed: bool, queue: str | None, task_name: str | None, since: str | None,
    url: str | None, app_path: str | None, as_json: bool,
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
            _count(total, f"{count(total, 'task')} put back.", as_json)
            return
        changes = _change(session, task_ids, lambda t, task: "retried" if tasks.retry(t, task) else None)
    _report(changes, "put back", "only failed and cancelled tasks are put back", as_json)


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


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
@json_option
def discard(task_ids: tuple[str, ...], url: str | None, app_path: str | None, as_json: bool) -> None:
    """Delete finished tasks for good."""
    with DatabaseArgs(url, app_path).session() as session:
        changes = _change(session, task_ids, lambda t, task: "discarded" if tasks.forget(t, task) else None)
    _report(changes, "discarded", "only tasks that have ended are discarded; see: fbtasks cancel", as_json)


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
@json_option
def cancel(task_ids: tuple[str, ...], url: str | None, app_path: str | None, as_json: bool) -> None:
    """Cancel tasks: waiting ones at once; running ones are stopped by their worker."""
    with DatabaseArgs(url, app_path).session() as session:
        changes = _change(session, task_ids, partial(tasks.cancel, terminate=True))
    _report(changes, "cancelled", "only tasks that have not ended are cancelled", as_json)


@click.command()
@click.argument("queue")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
@json_option
def purge(queue: str, yes: bool, url: str | None, app_path: str | None, as_json: bool) -> None:
    """Delete all waiting tasks of a queue."""
    with DatabaseArgs(url, app_path).session() as session:
        check_queue(session, queue)
        counts = {row.queue: row.ready + row.scheduled + row.parked for row in results.queues(session)}
        if not yes:
            click.confirm(
                f"Delete {count(counts.get(queue, 0), 'waiting task')} of queue {queue!r}?", abort=True, err=as_json
            )
        total = 0
        while gone := session.run(lambda t: tasks.purge(t, queue)):
            total += gone
    _count(total, f"{count(total, 'task')} deleted.", as_json, queue=queue)


@click.command()
@database_options
@json_option
def prune(url: str | None, app_path: str | None, as_json: bool) -> None:
    """Delete results and failures that have been kept long enough."""
    place = DatabaseArgs(url, app_path)
    app = place.app()
    try:
        with app.database.session() as session:
            total = prune_now(session, app.settings, batches=1_000_000)
    finally:
        app.close()
    _count(total, f"{count(total, 'finished task')} deleted.", as_json)
