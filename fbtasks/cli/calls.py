"""The commands that make calls and show what they returned: ``call``, ``result``."""

from __future__ import annotations

import json
from typing import Any

import click

from fbtasks.app import FBTasks
from fbtasks.call import Stored
from fbtasks.cli import render
from fbtasks.cli.escapes import say
from fbtasks.cli.options import DatabaseArgs, announce, database_options, find, json_option
from fbtasks.cli.types import Seconds
from fbtasks.errors import ConfigurationError, FBTasksError, ResultTimeout, UnknownTaskError
from fbtasks.options import task_name
from fbtasks.states import State
from fbtasks.store import results


def _json_argument(text: str, kind: type, what: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{what} {text!r} is not JSON: {error}.") from None
    if not isinstance(value, kind):
        raise ConfigurationError(f"{what} {text!r} must be a JSON {'list' if kind is list else 'object'}.")
    return value


@click.command()
@click.argument("name")
@click.option("--args", "args_text", default="[]", metavar="JSON", help="Positional arguments, a list.")
@click.option("--kwargs", "kwargs_text", default="{}", metavar="JSON", help="Keyword arguments, an object.")
@click.option("--queue", help="The queue; default: the task's or the app's.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--countdown", type=float, help="Seconds to wait before it may start.")
@click.option("--task-id", help="An id of your own; one id is enqueued once.")
@click.option("--unknown", is_flag=True, help="With -A: also a name that the app does not know.")
@database_options
@json_option
def call(
    name: str, args_text: str, kwargs_text: str, queue: str | None, priority: int | None, countdown: float | None,
    task_id: str | None, unknown: bool, url: str | None, app_path: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Enqueue a task by its name and print its id."""
    args = _json_argument(args_text, list, "--args")
    kwargs = _json_argument(kwargs_text, dict, "--kwargs")
    app = announce(DatabaseArgs(url, app_path).app())
    if app_path is not None and not unknown:
        _check_known(app, name)
    try:
        sent = app.send_task(name, args, kwargs, queue=queue, priority=priority, countdown=countdown, task_id=task_id)
        number = _number(app, sent.id) if as_json else None
    finally:
        app.close()
    if sent.duplicate:
        say(f"task_id {sent.id!r} was enqueued before; nothing was enqueued.", err=True)
    if as_json:
        render.as_json({"id": number, "task_id": task_id, "duplicate": sent.duplicate})
    else:
        say(sent.id)


def _number(app: FBTasks, task_id: str) -> int | None:
    """The database's number of a task. None when it is another user's task, which this user may not see."""
    with app.database.session() as session:
        return results.find_id(session, task_id)


def _check_known(app: FBTasks, name: str) -> None:
    """Raises :class:`ConfigurationError` unless *app* has a task of that name."""
    try:
        app.find_task(task_name("name", name))
    except UnknownTaskError as error:
        raise ConfigurationError(f"{error} With --unknown it is enqueued for the worker of another app.") from error


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--timeout", type=Seconds(0), default=0.0, help="Seconds to wait for it.")
@database_options
@json_option
def result(task_id: str, timeout: float, url: str | None, app_path: str | None, as_json: bool) -> None:
    """Print the result of a task as JSON."""
    app = DatabaseArgs(url, app_path).app()
    try:
        with app.database.session() as session:
            number = find(session, task_id)
        try:
            value = app.AsyncResult(task_id).get(timeout=timeout)
        except Exception as error:
            state, stored = _what_became(app, number)
            if as_json and state not in (None, State.SUCCEEDED):  # a result that cannot be read is an error alone
                render.as_json(_answer(number, state, None, stored))
            _explain(task_id, state, stored, error)
            raise
    finally:
        app.close()
    if as_json:
        render.as_json(_answer(number, State.SUCCEEDED, value, None))
    else:
        render.as_json(value, indent=None)


def _what_became(app: FBTasks, number: int) -> tuple[State | None, Stored | None]:
    with app.database.session() as session:
        found = results.state(session, number)
        return None if found is None else found[0], results.outcome(session, number)


def _answer(number: int, state: State, value: Any, stored: Stored | None) -> dict[str, Any]:
    """What ``result --json`` prints."""
    return {
        "id": number,
        "state": state.name.lower(),
        "result": value,
        "error_type": None if stored is None else stored.error_type,
        "error_msg": None if stored is None else stored.error_msg,
    }


def _explain(task_id: str, state: State | None, stored: Stored | None, error: Exception) -> None:
    """Raises an error that names the task as the user did, and says what to do. Returns when *error* says it better."""
    if stored is not None and stored.state is State.FAILED:
        first = render.failure(stored.error_type, stored.error_msg).partition("\n")[0].strip()
        raise FBTasksError(f"task {task_id} failed: {first} (the traceback: fbtasks inspect task {task_id})") from error
    if isinstance(error, ResultTimeout) and state is not None and state.live:
        raise ResultTimeout(
            f"task {task_id} has not ended: it is {state.name.lower()}. Wait for it with --timeout SECONDS."
        ) from error
