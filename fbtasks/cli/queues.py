"""``fbtasks purge``."""

from __future__ import annotations

import click

from fbtasks.cli.escapes import say
from fbtasks.cli.json_output import print_json
from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.words import count
from fbtasks.services import queues


@click.command()
@click.argument("queue")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@with_database
@json_option
def purge(database: DatabaseArgs, queue: str, yes: bool, as_json: bool) -> None:
    """Delete all waiting tasks of a queue."""
    with database.opened() as app:
        if not yes:
            waiting = count(queues.count_waiting(app.database, queue), "waiting task")
            click.confirm(f"Delete {waiting} of queue {queue!r}?", abort=True, err=as_json)
        total = queues.purge(app.database, queue)
    if as_json:
        print_json({"queue": queue, "count": total})
    else:
        say(f"{count(total, 'task')} deleted.")
