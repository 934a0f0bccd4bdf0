"""The commands that change tasks: ``retry``, ``discard``, ``cancel``, ``purge``, ``prune``."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

import click

from fbtasks.cli.options import DatabaseArgs, json_option, queues_of, since_time, with_database
from fbtasks.cli.output import answer, print_json, say, write
from fbtasks.errors import FBTasksError
from fbtasks.queue.operations import queues, tasks
from fbtasks.system.showing import count


def _report(changes: tasks.TaskChanges, what: str, as_json: bool, hint: str = "") -> None:
    """Prints what was changed. Raises an error that names the tasks that were refused, with the reason and *hint*."""
    if as_json:
        print_json({"count": changes.count, "tasks": changes.tasks})
    else:
        for change in changes.requested:
            say(f"Task {change.given} runs: its worker was asked to stop it.")
        if changes.count or not changes.requested:
            say(f"{count(changes.count, 'task')} {what}.")
    left = ", ".join(f"{change.given} ({change.state or 'gone'})" for change in changes.refused)
    if left:
        raise FBTasksError(f"nothing was changed for {left}: {changes.condition}{hint}.")


@click.command()
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="All failed tasks.")
@click.option("--queue", help="With --all-failed: only this queue.")
@click.option("--name", "task_name", help="With --all-failed: only tasks of this name.")
@click.option("--since", metavar="AGE|TIME", help="With --all-failed: only those that failed since then.")
@with_database
@json_option
def retry(
    database: DatabaseArgs, task_ids: tuple[str, ...], all_failed: bool, queue: str | None, task_name: str | None,
    since: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Put failed or cancelled tasks back into their queues."""
    if bool(task_ids) == all_failed:
        raise click.UsageError("give the IDs of tasks, or --all-failed.")
    if not all_failed and (queue, task_name, since) != (None, None, None):
        raise click.UsageError("--queue, --name and --since go with --all-failed.")
    with database.opened() as app:
        if not all_failed:
            _report(tasks.retry(app.database, task_ids), "put back", as_json)
            return
        wanted = tasks.Filter(queue=queue, name=task_name, since=since_time(since))
        total = tasks.retry_failed(app.database, wanted, queues_of(database, app))
    answer({"count": total}, f"{count(total, 'task')} put back.", as_json=as_json)


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@with_database
@json_option
def discard(database: DatabaseArgs, task_ids: tuple[str, ...], as_json: bool) -> None:
    """Delete finished tasks for good."""
    with database.opened() as app:
        _report(tasks.discard(app.database, task_ids), "discarded", as_json, hint="; see: fbtasks cancel")


@click.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@with_database
@json_option
def cancel(database: DatabaseArgs, task_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel tasks: waiting ones at once; running ones are stopped by their worker."""
    with database.opened() as app:
        _report(tasks.cancel(app.database, task_ids), "cancelled", as_json)


@click.command()
@click.argument("queue")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@with_database
@json_option
def purge(database: DatabaseArgs, queue: str, yes: bool, as_json: bool) -> None:
    """Delete all waiting tasks of a queue."""
    with database.opened() as app:
        in_code = queues_of(database, app)
        if not yes:
            waiting = count(queues.count_waiting(app.database, queue, in_code), "waiting task")
            click.confirm(f"Delete {waiting} of queue {queue!r}?", abort=True, err=as_json)
        with Progress("task", "deleted") as progress:
            total = queues.purge(app.database, queue, in_code, progress)
    answer({"queue": queue, "count": total}, f"{count(total, 'task')} deleted.", as_json=as_json)


@click.command()
@with_database
@json_option
def prune(database: DatabaseArgs, as_json: bool) -> None:
    """Delete results and failures that have been kept long enough."""
    with database.opened() as app, Progress("finished task", "deleted") as progress:
        total = tasks.prune(app.database, progress)
    answer({"count": total}, f"{count(total, 'finished task')} deleted.", as_json=as_json)


_PAUSE: Final = 0.2
"""Seconds between two looks of a terminal."""


class Progress:
    """Adds up what has been done; on a terminal, the standard error shows it in one line that changes."""

    def __init__(self, what: str, done: str) -> None:
        """*what* is the word for one of them, and *done* what has been done: "task", "deleted"."""
        self._what, self._done = what, done
        self._total = 0
        self._shown = 0.0
        self._width = 0

    def __call__(self, number: int) -> None:
        """Adds *number*, which is committed."""
        self._total += number
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown > _PAUSE:
            self._shown = now
            self._replace(self._text())

    def __enter__(self) -> Self:
        """Returns it; the end of the block takes the line away. Of one that is interrupted it is said what was done."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the line away."""
        self._replace("")
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            say(f"Interrupted: {self._text()}.", err=True)

    def _text(self) -> str:
        return f"{count(self._total, self._what)} {self._done}"

    def _replace(self, text: str) -> None:
        """Writes *text* in the place of what this line of the terminal shows."""
        if text or self._width:
            write(f"\r{text:{self._width}}" + ("" if text else "\r"), err=True, end="")
            self._width = len(text)
