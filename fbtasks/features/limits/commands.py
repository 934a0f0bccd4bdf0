"""The commands of ``fbtasks limits``."""

from __future__ import annotations

import click

from fbtasks.cli import render
from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.output import answer, show_records
from fbtasks.features.limits import operations as service


@click.command()
@with_database
@json_option
def list(database: DatabaseArgs, as_json: bool) -> None:
    """All limits: what each lets in, and what waits for it."""
    with database.opened() as app:
        rows = service.list_limits(app.database)
    show_records(rows, render.limits, as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--at-once", type=int, metavar="N", help="Tasks that may run at once for each key.")
@click.option("--rate", metavar="RATE", help="How many may begin in which time: 10/s, 100/m, 3/10s.")
@click.option("--burst", type=int, metavar="N", help="How many may begin at once after a pause.")
@with_database
@json_option
def set(
    database: DatabaseArgs, name: str, at_once: int | None, rate: str | None, burst: int | None, as_json: bool
) -> None:
    """Let in more or fewer than the code says, from the next claim of each worker on."""
    if (at_once, rate, burst) == (None, None, None):
        raise click.UsageError("give what is to be changed: --at-once, --rate or --burst.")
    with database.opened() as app:
        row = service.change(app.database, name, service.Change(at_once=at_once, rate=rate, burst=burst))
    answer(row, f"{row.name}: {render.lets_in(row)}.", as_json=as_json)


@click.command()
@click.argument("name")
@with_database
@json_option
def reset(database: DatabaseArgs, name: str, as_json: bool) -> None:
    """Go by what the code says again."""
    with database.opened() as app:
        row = service.reset(app.database, name)
    answer(row, f"{row.name}: {render.lets_in(row)}.", as_json=as_json)


@click.command()
@click.argument("name")
@click.argument("key", nargs=-1)
@click.option("--task", type=int, metavar="ID", help="The key that this failed task has closed, instead of KEY.")
@with_database
@json_option
def resume(database: DatabaseArgs, name: str, key: tuple[str, ...], task: int | None, as_json: bool) -> None:
    """Go on with a key that a failed task has closed; that task stays failed.

    KEY is the value of the key, or its values; without one it is the line of all calls.
    """
    if key and task is not None:
        raise click.UsageError("give KEY or --task, not both.")
    with database.opened() as app:
        opened = service.resume(app.database, name, key, task=task)
    text = f"{name}: goes on behind task {', '.join(map(str, opened))}, which stays failed."
    answer({"name": name, "opened": opened}, text, as_json=as_json)
