"""The commands of ``fbtasks limits``."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.render import say_problems
from fbtasks.cli.tables import Column, column, table
from fbtasks.features.limits import operations as service
from fbtasks.features.limits.operations import LimitRow, lets_in

_LIMIT: Final[Sequence[Column]] = [
    ("NAME", "word", lambda r: r.name or "(not defined)"),
    ("LETS IN", "word", lets_in),
    column("APP", "word"),
    column("STATE", "word"),
    ("IN", "number", attrgetter("inside")),
    *(column(title, "number") for title in ("WAITING", "KEYS")),
]


def _show(rows: Sequence[LimitRow]) -> None:
    """Prints limits, one line for each, and the keys that are closed."""
    nothing = "There are no limits: no worker of an app with limits has started yet, and no such task was called."
    table(_LIMIT, rows, nothing)
    for row in rows:
        problems = [service.describe_closed(row.name or "", key) for key in row.closed]
        if row.says:
            problems.append(service.describe_said(row.says))
        say_problems([(row.name or "", problems)])


@command
def list(command: Command) -> None:
    """All limits: what each lets in, and what waits for it."""
    rows = service.list_limits(command.database)
    command.show(rows, _show)


@command
@click.argument("name")
@click.option("--at-once", type=int, metavar="N", help="Tasks that may run at once for each key.")
@click.option("--rate", metavar="RATE", help="How many may begin in which time: 10/s, 100/m, 3/10s.")
@click.option("--burst", type=int, metavar="N", help="How many may begin at once after a pause.")
def set(command: Command, name: str, at_once: int | None, rate: str | None, burst: int | None) -> None:
    """Let in more or fewer than the code says, from the next claim of each worker on."""
    if (at_once, rate, burst) == (None, None, None):
        raise click.UsageError("give what is to be changed: --at-once, --rate or --burst.")
    row = service.change(command.database, name, at_once=at_once, rate=rate, burst=burst)
    command.answer(row, f"{row.name}: {lets_in(row)}.")


@command
@click.argument("name")
def reset(command: Command, name: str) -> None:
    """Go by what the code says again."""
    row = service.reset(command.database, name)
    command.answer(row, f"{row.name}: {lets_in(row)}.")


@command
@click.argument("name")
@click.argument("key", nargs=-1)
@click.option("--task", type=int, metavar="ID", help="The key that this failed task has closed, instead of KEY.")
def resume(command: Command, name: str, key: tuple[str, ...], task: int | None) -> None:
    """Go on with a key that a failed task has closed; that task stays failed.

    KEY is the value of the key, or its values; without one it is the line of all calls.
    """
    if key and task is not None:
        raise click.UsageError("give KEY or --task, not both.")
    opened = service.resume(command.database, name, key, task=task)
    text = f"{name}: goes on behind task {', '.join(map(str, opened))}, which stays failed."
    command.answer({"name": name, "opened": opened}, text)
