"""The commands ``pause`` and ``resume``, of queues and of names of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.output import answer
from fbtasks.queue.operations import pausing as service
from fbtasks.system.showing import count

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
        done = service.pause(app.database, queues, names, database.code(app))
    remedy = service.how_to_resume(done.queues, done.tasks)
    text = f"Nothing of {', '.join([*done.queues, *done.tasks])} begins until: {remedy}"
    _answer(done, text, "Nothing to do: paused already.", as_json=as_json)


@click.command()
@_queues
@_names
@with_database
@json_option
def resume(database: DatabaseArgs, queues: tuple[str, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Go on after a pause. Tasks of a name are put back into their queues."""
    _check(queues, names)
    with database.opened() as app:
        done = service.resume(app.database, queues, names, database.code(app))
    put_back = f"{count(done.put_back, 'task')} put back."
    text = f"{', '.join([*done.queues, *done.tasks])}: tasks begin again"
    text += f", {put_back}" if done.tasks or done.put_back else "."
    _answer(done, text, put_back if done.put_back else "Nothing to do: not paused.", as_json=as_json)


def _answer(done: service.Paused, text: str, unchanged: str, *, as_json: bool) -> None:
    answer(done, text if done.queues or done.tasks else unchanged, as_json=as_json)
