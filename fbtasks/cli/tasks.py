"""The commands that change tasks: ``retry``, ``discard``, ``cancel``, ``move``, ``purge``, ``prune``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click

from fbtasks import timing as clock
from fbtasks.cli.options import Command, command, since_time, yes_option
from fbtasks.cli.output import print_json, say, write
from fbtasks.errors import FBTasksError, QueueFull
from fbtasks.queue.operations import moving, queues, tasks
from fbtasks.system.showing import count
from fbtasks.system.threads import answering


def done_lines(changes: tasks.TaskChanges, what: str) -> list[str]:
    """Returns what was changed, in words."""
    lines = [f"Task {change.given} runs: its worker was asked to stop it." for change in changes.requested]
    return lines + ([f"{count(changes.count, 'task')} {what}."] if changes.count or not lines else [])


def refusal(changes: tasks.TaskChanges, hint: str = "") -> str:
    """Returns which tasks were refused, with the reason and *hint*; empty: none."""
    left = ", ".join(f"{change.given} ({change.state or 'gone'})" for change in changes.refused)
    return f"nothing was changed for {left}: {changes.condition}{hint}." if left else ""


def _report(command: Command, changes: tasks.TaskChanges, what: str, hint: str = "") -> None:
    """Prints what was changed. Raises an error that names the tasks that were refused, with the reason and *hint*."""
    if command.as_json:
        print_json({"count": changes.count, "tasks": changes.tasks})
    else:
        for line in done_lines(changes, what):
            say(line)
    if refused := refusal(changes, hint):
        raise FBTasksError(refused)


@command
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="All failed tasks.")
@click.option("--queue", help="With --all-failed: only this queue.")
@click.option("--name", "task_name", help="With --all-failed: only tasks of this name.")
@click.option("--since", metavar="AGE|TIME", help="With --all-failed: only those that failed since then.")
def retry(
    command: Command, task_ids: tuple[str, ...], all_failed: bool, queue: str | None, task_name: str | None,
    since: str | None,
) -> None:  # fmt: skip
    """Put failed or cancelled tasks back into their queues."""
    if bool(task_ids) == all_failed:
        raise click.UsageError("give the IDs of tasks, or --all-failed.")
    if not all_failed and (queue, task_name, since) != (None, None, None):
        raise click.UsageError("--queue, --name and --since go with --all-failed.")
    if not all_failed:
        _report(command, tasks.retry(command.database, task_ids), "put back")
        return
    wanted = tasks.Filter(queue=queue, name=task_name, since=since_time(since))
    total = tasks.retry_failed(command.database, wanted, command.code)
    command.answer({"count": total}, f"{count(total, 'task')} put back.")


@command
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
def discard(command: Command, task_ids: tuple[str, ...]) -> None:
    """Delete finished tasks for good."""
    _report(command, tasks.discard(command.database, task_ids), "discarded", "; see: fbtasks cancel")


@command
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
def cancel(command: Command, task_ids: tuple[str, ...]) -> None:
    """Cancel tasks: waiting ones at once; running ones are stopped by their worker."""
    _report(command, tasks.cancel(command.database, task_ids), "cancelled")


@command
@click.option("--from", "queue", metavar="QUEUE", required=True, help="Where they wait.")
@click.option("--to", metavar="QUEUE", required=True, help="Where they are to run.")
@click.option("--task", "task_name", metavar="NAME", help="Only tasks of this name.")
@yes_option
def move(command: Command, queue: str, to: str, task_name: str | None, yes: bool) -> None:
    """Move the waiting tasks of a queue, or those of a name, into another queue."""
    with moving.moving(command.database, queue, to, task_name, command.code) as found:
        if not yes and (waiting := len(found)):
            command.confirm(f"Move {count(waiting, 'waiting task')} from queue {queue!r} to {to!r}?")
        total = _done(found.run(), "task", "moved")
        left = found.left()
    text = f"{count(total, 'task')} moved." + (f" Left in {queue}: {left.text}." if left.tasks else "")
    command.answer({"from": queue, "to": to, "count": total, "left": left.tasks}, text)
    if found.is_full:
        raise QueueFull(moving.full(to, total, left))


@command
@click.argument("queue", required=False, metavar="QUEUE")
@yes_option
def purge(command: Command, queue: str | None, yes: bool) -> None:
    """Delete all waiting tasks of a queue."""
    if queue is None:
        raise click.UsageError(
            "Missing argument 'QUEUE'. One queue is purged at a time; they are in: fbtasks inspect queues"
        )
    if not yes:
        (row,) = queues.list_queues(command.database, queue, command.code)
        if not row.waiting:
            command.answer({"queue": queue, "count": 0}, f"Nothing to delete: no task waits in queue {queue!r}.")
            return
        command.confirm(f"Delete {count(row.waiting, 'waiting task')} of queue {queue!r}?")
    total = _done(queues.purge(command.database, queue, command.code), "task")
    command.answer({"queue": queue, "count": total}, f"{count(total, 'task')} deleted.")


@command
def prune(command: Command) -> None:
    """Delete results and failures that have been kept long enough."""
    total = _done(tasks.prune(command.database), "finished task")
    command.answer({"count": total}, f"{count(total, 'finished task')} deleted.")


_PAUSE: Final = 0.2
"""Seconds between two looks of a terminal."""
_REST: Final = "\x1b[K"
"""Empties the rest of a terminal's line."""


def _done(numbers: Iterable[int], what: str, done: str = "deleted") -> int:
    """Returns the sum of *numbers*, each of which is committed; a terminal shows it in one line that changes.

    When it is interrupted, it says what was done: Ctrl-C waits for the next number, and a second one does not.
    """
    total, shown = 0, 0.0
    try:
        with _noted() as interrupted:
            for number in numbers:
                total += number
                if sys.stderr.isatty() and clock.monotonic() - shown > _PAUSE:
                    shown = clock.monotonic()
                    write(f"\r{count(total, what)} {done}", err=True, end=_REST)
                if interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        if shown:
            write("\r", err=True, end=_REST)
        say(f"Interrupted: {count(total, what)} {done}.", err=True)
        raise
    if shown:
        write("\r", err=True, end=_REST)
    return total


@contextmanager
def _noted() -> Iterator[list[int]]:
    """For the block, the first Ctrl-C is put into the list that is yielded. Raised behind a commit it would hide it."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            signal.default_int_handler(number, frame)
        noted.append(number)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    with answering((signal.SIGINT,), note):
        yield noted
