"""The commands that make calls and show what they returned: ``call``, ``result``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from fbtasks import FBTasks
from fbtasks.cli.options import Command, Seconds, announce, command
from fbtasks.cli.output import print_json, say
from fbtasks.errors import (
    ConfigurationError,
    DuplicateTask,
    EnqueueError,
    FBTasksError,
    QueueFull,
    ResultTimeout,
    SerializationError,
    StatementRefused,
    TaskDefinitionError,
    UnknownQueueError,
    UnknownTaskError,
)
from fbtasks.queue import results
from fbtasks.queue.operations.tasks import find_number
from fbtasks.queue.register.processes import task_names
from fbtasks.states import State
from fbtasks.system.checks import did_you_mean, json_argument
from fbtasks.system.showing import command_line, failure
from fbtasks.tasks.call import Stored
from fbtasks.tasks.options import task_name


def _refuse_words(_context: click.Context, _argument: click.Parameter, words: tuple[str, ...]) -> None:
    """Raises :class:`click.UsageError` for arguments of the task that stand behind its name, as in a shell."""
    if not words:
        return
    match [_meant(word) for word in words]:
        case [list() as args]:
            meant: list[tuple[str, Any]] = [("--args", args)]
        case [dict() as kwargs]:
            meant = [("--kwargs", kwargs)]
        case [list() as args, dict() as kwargs]:
            meant = [("--args", args), ("--kwargs", kwargs)]
        case args:
            meant = [("--args", args)]
    options = [word for name, value in meant for word in (name, json.dumps(value, ensure_ascii=False))]
    raise click.UsageError(f"the arguments of the task are given in JSON: {command_line('{}', options)}")


def _meant(word: str) -> Any:
    """Returns the value that *word* is in JSON; else the text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


@command
@click.argument("name")
@click.argument("words", nargs=-1, metavar="", callback=_refuse_words, expose_value=False)
@click.option("--args", "args_text", default="[]", metavar="JSON", help="Positional arguments, a list.")
@click.option("--kwargs", "kwargs_text", default="{}", metavar="JSON", help="Keyword arguments, an object.")
@click.option("--queue", help="The queue; default: the task's or the app's.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--countdown", type=float, help="Seconds to wait before it may start.")
@click.option("--task-id", help="An id of your own; one id is enqueued once.")
@click.option("--unknown", is_flag=True, help="With -A: also a name that the app does not know.")
def call(
    command: Command, name: str, args_text: str, kwargs_text: str, queue: str | None, priority: int | None,
    countdown: float | None, task_id: str | None, unknown: bool,
) -> None:  # fmt: skip
    """Enqueue a task by its name and print its id."""
    args: list[Any] = json_argument(args_text, [], "--args")
    kwargs: dict[str, Any] = json_argument(kwargs_text, {}, "--kwargs")
    announce(command.app)
    if command.code is not None and not unknown:
        _check_known(command.app, name)
    with _wrong_use():
        sent = command.app.send_task(
            name, args, kwargs, queue=queue, priority=priority, countdown=countdown, task_id=task_id
        )
    number = command.database.use(partial(results.find_id, task=sent.id)) if command.as_json else None
    if sent.duplicate and task_id is None:
        say(f"{name} is unique, and task {sent.id} stands for this call; nothing was enqueued.", err=True)
    elif sent.duplicate:
        say(f"task_id {sent.id!r} was enqueued before; nothing was enqueued.", err=True)
    else:
        _say_unknown(command, name, sent.id)
    command.answer({"id": number, "task_id": task_id, "duplicate": sent.duplicate}, sent.id)


def _say_unknown(command: Command, name: str, task: str) -> None:
    """Says so when no worker that is alive knows the task, or when nobody could tell."""
    try:
        known = command.database.use(task_names)
    except StatementRefused:  # a user with the role of a producer may not read it
        return
    if not known and command.code is None:
        say(f"Note: no worker is alive, and the name {name!r} is not checked. With -A MODULE it is.", err=True)
    elif known and name not in known:
        remedy = did_you_mean(name, known) + f" To take it back: {command_line('fbtasks cancel {}', task)}"
        say(f"Note: no worker that is alive knows a task named {name!r}, so it waits.{remedy}", err=True)


@contextmanager
def _wrong_use() -> Iterator[None]:
    """For the block: a call that cannot be made as it was given is wrong use, and one that the database refuses is not.

    Raises :class:`ConfigurationError` for the former.
    """
    try:
        yield
    except (QueueFull, DuplicateTask):
        raise
    except (EnqueueError, SerializationError, TaskDefinitionError, UnknownQueueError) as error:
        raise ConfigurationError(str(error)) from error


def _check_known(app: FBTasks, name: str) -> None:
    """Raises :class:`ConfigurationError` unless *app* has a task of that name."""
    try:
        with _wrong_use():
            app.find_task(task_name("name", name))
    except UnknownTaskError as error:
        raise ConfigurationError(f"{error} With --unknown it is enqueued for the worker of another app.") from error


@command
@click.argument("task_id", metavar="ID")
@click.option("--timeout", type=Seconds(0), default=0.0, help="Seconds to wait for it.")
def result(command: Command, task_id: str, timeout: float) -> None:
    """Print the result of a task as JSON."""
    number = find_number(command.database, task_id)
    try:
        value = command.app.AsyncResult(task_id).get(timeout=timeout)
    except Exception as error:
        found = command.database.use(partial(results.state, task=number))
        stored = command.database.use(partial(results.outcome, task=number))
        state = None if found is None else found[0]
        # A result that cannot be read is an error alone.
        if command.as_json and state is not None and state is not State.SUCCEEDED:
            _print(number, state, stored=stored)
        _explain(task_id, state, stored, error)
        raise
    if command.as_json:
        _print(number, State.SUCCEEDED, value)
    else:
        print_json(value, indent=None)


def _print(number: int, state: State, value: Any = None, stored: Stored | None = None) -> None:
    """Prints the answer of ``result --json``."""
    error_type, error_msg = (None, None) if stored is None else (stored.error_type, stored.error_msg)
    print_json(
        {"id": number, "state": state.name.lower(), "result": value, "error_type": error_type, "error_msg": error_msg}
    )


def _explain(task_id: str, state: State | None, stored: Stored | None, error: Exception) -> None:
    """Raises an error that names the task as the user did, and says what to do. Returns when *error* says it better."""
    if stored is not None and stored.state is State.FAILED:
        first = failure(stored.error_type, stored.error_msg).partition("\n")[0].strip()
        traceback = command_line("fbtasks inspect task {}", task_id)
        raise FBTasksError(f"task {task_id} failed: {first} (the traceback: {traceback})") from error
    if isinstance(error, ResultTimeout) and state is not None and state.live:
        remedy = command_line("fbtasks result {} --timeout SECONDS", task_id)
        raise ResultTimeout(f"{error} To wait for it: {remedy}") from error
