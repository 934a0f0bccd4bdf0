"""``fbtasks inspect workers``."""

from __future__ import annotations

import click

from fbtasks.cli import render
from fbtasks.cli.json_output import print_json
from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.services.workers import list_workers


@click.command()
@with_database
@json_option
def workers(database: DatabaseArgs, as_json: bool) -> None:
    """The workers that are registered."""
    with database.opened() as app:
        rows = list_workers(app.database)
    if as_json:
        print_json(rows)
    else:
        render.workers(rows)
