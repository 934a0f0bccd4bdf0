"""``fbtasks health``."""

from __future__ import annotations

import sys

import click

from fbtasks.cli.options import Command, Seconds, command
from fbtasks.cli.output import say
from fbtasks.queue.operations.workers import MAX_AGE, MAX_LAG, get_health
from fbtasks.system.showing import count


@command
@click.option("--max-age", type=Seconds(0), default=MAX_AGE, help="Seconds that a ready task may wait.")
@click.option("--max-lag", type=Seconds(0), default=MAX_LAG, help="Seconds that a change may wait to become a task.")
def health(command: Command, max_age: float, max_lag: float) -> None:
    """Check for monitoring: exit code 1 when a queue is not served or waits too long."""
    found = get_health(command.database, max_age, max_lag)
    for remark in found.remarks:
        say(str(remark), err=True)
    problems = [*map(str, found.wrong())]
    record = {"healthy": found.healthy, "problems": problems, "workers": found.workers}
    command.answer(record, "\n".join(problems) or f"healthy: {count(found.workers, 'worker')}")
    sys.exit(0 if found.healthy else 1)
