"""The command of ``fbtasks`` that shows where a running task is."""

from __future__ import annotations

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.output import say
from fbtasks.features.stacks.operations import Stack, get_stack


@command
@click.argument("task_id", metavar="ID")
def stack(command: Command, task_id: str) -> None:
    """Where a running task is: its stack in Python."""
    command.show(get_stack(command.database, task_id), _print)


def _print(found: Stack) -> None:
    say(f"Task {found.id} ({found.name}) on worker {found.worker}:\n{found.stack.rstrip()}")
