"""The commands ``pause`` and ``resume``, of queues and of names of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.output import answer, count
from fbtasks.services import pausing as service

_queues = click.argument("queues", metavar="[QUEUE]...", nargs=-1)
_names = click.option("--task", "names", metavar="NAME", multiple=True, help="Tasks of this name, in all queues.")


def _check(queues: Sequence[str], names: Sequence[str]) -> None:
    if not queues and not names:
        raise click.UsageError("give the names of queues, or --task with the name of a task.")


@click.command()
@_queues
@_names
@with_database
@json_option
def pause(database: DatabaseArgs, queues: tuple[str, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Let no task of a queue, or of a name, begin; what runs goes on."""
    _check(queues, names)
    with database.opened() as app:
        if database.app_path:
            app.load()
        done = service.pause(app.database, queues, names, app.tasks)
    remedies = [*done.queues, *(f"--task {name}" for name in done.tasks)]
    text = f"Nothing of {', '.join([*done.queues, *done.tasks])} begins until: fbtasks resume {' '.join(remedies)}"
    _answer(done, text, "paused already", as_json=as_json)


@click.command()
@_queues
@_names
@with_database
@json_option
def resume(database: DatabaseArgs, queues: tuple[str, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Go on after a pause. Tasks of a name are put back into their queues."""
    _check(queues, names)
    with database.opened() as app:
        done = service.resume(app.database, queues, names)
    text = f"{', '.join([*done.queues, *done.tasks])}: tasks begin again"
    text += f", {count(done.put_back, 'task')} put back." if done.tasks else "."
    _answer(done, text, "not paused", as_json=as_json)


def _answer(done: service.Paused, text: str, already: str, *, as_json: bool) -> None:
    answer(done, text if done.queues or done.tasks else f"Nothing to do: {already}.", as_json=as_json)
