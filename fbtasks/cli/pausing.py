"""The commands ``pause`` and ``resume``, of queues and of names of tasks, and ``stop``, of workers."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fbtasks.cli.options import Command, command
from fbtasks.queue.operations import pausing as service
from fbtasks.queue.operations import workers as worker_service
from fbtasks.system.showing import count

_queues = click.argument("queues", metavar="[QUEUE]...", nargs=-1)
_names = click.option("--task", "names", metavar="NAME", multiple=True, help="Tasks of this name, in all queues.")


def _check(queues: Sequence[str], names: Sequence[str]) -> None:
    if not queues and not names:
        raise click.UsageError("give the names of queues, or --task with the name of a task.")


@command
@_queues
@_names
def pause(command: Command, queues: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Let no task of a queue, or of a name, begin; what runs goes on."""
    _check(queues, names)
    done = service.pause(command.database, queues, names, command.code)
    remedy = service.how_to_resume(done.queues, done.tasks)
    text = f"Nothing of {', '.join([*done.queues, *done.tasks])} begins until: {remedy}"
    command.answer(done, text if done.queues or done.tasks else "Nothing to do: paused already.")


@command
@_queues
@_names
def resume(command: Command, queues: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Go on after a pause. Tasks of a name are put back into their queues."""
    _check(queues, names)
    done = service.resume(command.database, queues, names, command.code)
    put_back = f"{count(done.put_back, 'task')} put back."
    text = f"{', '.join([*done.queues, *done.tasks])}: tasks begin again"
    text += f", {put_back}" if done.tasks or done.put_back else "."
    if not done.queues and not done.tasks:
        text = put_back if done.put_back else "Nothing to do: not paused."
    command.answer(done, text)


@command
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True)
def stop(command: Command, workers: tuple[str, ...]) -> None:
    """Have workers end, by their names or ids, when what they run has ended; they claim nothing more."""
    told = worker_service.stop(command.database, workers)
    text = f"{', '.join(told)}: ends when what it runs has ended." if len(told) == 1 else ""
    text = text or (
        f"{', '.join(told)}: each ends when what it runs has ended." if told else "Nothing to do: told already."
    )
    command.answer({"stopped": told}, text)
