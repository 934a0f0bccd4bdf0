"""``fbtasks inspect queues`` and ``fbtasks inspect stats``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from fbtasks.cli import render
from fbtasks.cli.json_output import print_json
from fbtasks.cli.options import DatabaseArgs, json_option, since_time, with_database
from fbtasks.services import queues as service


@click.command()
@with_database
@json_option
@click.option("--queue", help="Only this queue.")
def queues(database: DatabaseArgs, as_json: bool, queue: str | None) -> None:
    """What waits and runs in each queue, and who serves it."""
    with database.opened() as app:
        rows = service.list_queues(app.database, queue)
    if as_json:
        print_json(rows)
    else:
        render.queues(rows)


@click.command()
@with_database
@json_option
@click.option("--queue", help="Only this queue; conflicts belong to none.")
@click.option(
    "--since", default="1d", metavar="AGE|TIME", help="Since the hour of then: 90s, 15m, 2h, 7d, or an ISO time."
)
def stats(database: DatabaseArgs, as_json: bool, queue: str | None, since: str) -> None:
    """Counters of tasks, errors, times and conflicts."""
    start = since_time(since)
    window = timedelta(0) if start is None else datetime.now(UTC) - start
    with database.opened() as app:
        found = service.get_statistics(app.database, window, queue)
    if as_json:
        print_json(found)
    else:
        render.stats(found)
