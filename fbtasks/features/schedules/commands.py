"""The commands of ``fbtasks schedules``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from fbtasks.cli.options import Command, command, yes_option
from fbtasks.cli.output import say
from fbtasks.cli.tables import Column, column, table
from fbtasks.features.schedules import operations as service
from fbtasks.features.schedules.operations import ScheduleRow
from fbtasks.system.checks import json_argument
from fbtasks.system.showing import command_line

_names = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_SCHEDULE: Final[Sequence[Column]] = [
    column("NAME", "word"),
    ("WHEN", "word", lambda r: r.when + (" (set)" if {"cron", "every", "tz"} & {*r.set} else "")),
    column("STATE", "word"),
    column("NEXT", "ago"),
    column("LAST", "ago"),
    column("CALL", "line"),
]


def _show(rows: Sequence[ScheduleRow]) -> None:
    """Prints schedules, one line for each, and what is wrong with them."""
    table(_SCHEDULE, rows, "There are no schedules: no worker of an app with periodic tasks has started yet.")
    for row in rows:
        if row.error:
            say(f"{row.name}: {row.error}")


@command
def list(command: Command) -> None:
    """All schedules: when they tick, and what keeps them from it."""
    rows = service.list_schedules(command.database)
    command.show(rows, _show)


@command
@_names
def pause(command: Command, names: tuple[str, ...]) -> None:
    """Enqueue nothing until they are resumed."""
    changed = service.pause(command.database, names)
    remedy = command_line("fbtasks schedules resume {}", changed)
    command.answer_changed(changed, f"no tick until: {remedy}", "paused already")


@command
@_names
def resume(command: Command, names: tuple[str, ...]) -> None:
    """Go on after a pause, or after a task could not be enqueued."""
    changed = service.resume(command.database, names)
    command.answer_changed(changed, "resumed.", "neither paused nor failed")


@command
@click.argument("name")
@click.option("--cron", metavar="TEXT", help="Minute, hour, day of the month, month, day of the week; or @daily.")
@click.option("--every", metavar="SPAN", help="Seconds, or such as 15m, 2h, 1d.")
@click.option("--tz", metavar="ZONE", help="The zone whose wall clock --cron reads.")
@click.option("--args", "args_text", metavar="JSON", help="Positional arguments, a list.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Keyword arguments, an object.")
@click.option("--reset", is_flag=True, help="Go by what the code says again.")
def set(
    command: Command, name: str, cron: str | None, every: str | None, tz: str | None, args_text: str | None,
    kwargs_text: str | None, reset: bool,
) -> None:  # fmt: skip
    """Say when a task is called, or with what, instead of the code."""
    said: dict[str, Any] = {
        "cron": cron,
        "every": None if every is None else service.seconds("--every", every),
        "tz": tz,
        "args": None if args_text is None else json_argument(args_text, [], "--args"),
        "kwargs": None if kwargs_text is None else json_argument(kwargs_text, {}, "--kwargs"),
    }
    if reset == any(value is not None for value in said.values()):
        raise click.UsageError("give --reset alone, or what is to be changed: --cron, --every, --tz, --args, --kwargs.")
    row = service.reset(command.database, name) if reset else service.change(command.database, name, **said)
    command.answer(row, f"{row.name}: {row.when}, {row.call}.")


@command
@_names
def run(command: Command, names: tuple[str, ...]) -> None:
    """Enqueue their tasks once, now, and print the ids."""
    enqueued = service.run(command.database, names)
    command.answer({"enqueued": enqueued}, "\n".join(map(str, enqueued.values())))


@command
@_names
@yes_option
def remove(command: Command, names: tuple[str, ...], yes: bool) -> None:
    """Delete schedules; what they have enqueued stays."""
    if not yes:
        service.check(command.database, names)  # what is removed is looked up anyway
        command.confirm(f"Delete {', '.join(names)}?")
    removed = service.remove(command.database, names)
    code = frozenset(command.app.schedules) if command.code else frozenset()
    command.answer({"removed": removed}, f"{', '.join(removed)}: gone.")
    for name in sorted(code.intersection(removed)):
        say(f"Note: the app still defines {name}, and the next worker makes it anew.", err=True)
