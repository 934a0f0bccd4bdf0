"""The commands that make calls and show what they returned: ``call``, ``result``."""

from __future__ import annotations

import json
from typing import Any

import click

from fbtasks.app import FBTasks
from fbtasks.cli.options import DatabaseArgs, database_options, find
from fbtasks.cli.types import Seconds
from fbtasks.definition import check_name
from fbtasks.errors import ConfigurationError, FBTasksError, UnknownTaskError


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
def call(
    name: str, args_text: str, kwargs_text: str, queue: str | None, priority: int | None, countdown: float | None,
    task_id: str | None, unknown: bool, url: str | None, app_path: str | None,
) -> None:  # fmt: skip
    """Enqueue a task by its name and print its id."""
    args = _json_argument(args_text, list, "--args")
    kwargs = _json_argument(kwargs_text, dict, "--kwargs")
    given = {"queue": queue, "priority": priority, "countdown": countdown, "task_id": task_id}
    app = DatabaseArgs(url, app_path).app()
    if app_path is not None and not unknown:
        _check_known(app, name)
    try:
        sent = app.send_task(name, args, kwargs, **{k: v for k, v in given.items() if v is not None})
    finally:
        app.close()
    if sent.duplicate:
        click.echo(f"task_id {sent.id!r} was enqueued before; nothing was enqueued.", err=True)
    click.echo(sent.id)


def _check_known(app: FBTasks, name: str) -> None:
    """Raises :class:`ConfigurationError` unless *app* has a task of that name."""
    try:
        app.find_task(check_name(name))
    except UnknownTaskError as error:
        raise ConfigurationError(f"{error} With --unknown it is enqueued for the worker of another app.") from error


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--timeout", type=Seconds(0), default=0.0, help="Seconds to wait for it.")
@database_options
def result(task_id: str, timeout: float, url: str | None, app_path: str | None) -> None:
    """Print the result of a task as JSON."""
    app = DatabaseArgs(url, app_path).app()
    try:
        with app.database.session() as session:
            number = find(session, task_id)
        outcome = app.AsyncResult(number)
        try:
            value = outcome.get(timeout=timeout)
        except FBTasksError:
            raise
        except Exception as error:
            raise FBTasksError(f"task {task_id} failed: {type(error).__name__}: {error}") from error
    finally:
        app.close()
    click.echo(json.dumps(value, ensure_ascii=False, default=str))
