"""``fbtasks health``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fbtasks.cli.options import Command, Seconds, command
from fbtasks.cli.output import say
from fbtasks.queue.operations.workers import Health, get_health
from fbtasks.system.checks import did_you_mean
from fbtasks.system.showing import count, span


@command
@click.option("--max-age", type=Seconds(0), default=300.0, help="Seconds that a ready task may wait.")
@click.option("--max-lag", type=Seconds(0), default=900.0, help="Seconds that a change may wait to become a task.")
def health(command: Command, max_age: float, max_lag: float) -> None:
    """Check for monitoring: exit code 1 when a queue is not served or waits too long."""
    found = get_health(command.database, max_age, max_lag)
    for remark in found.remarks:
        say(str(remark), err=True)
    problems = list(sentences(found))
    record = {"healthy": found.healthy, "problems": problems, "workers": found.workers}
    command.answer(record, "\n".join(problems) or f"healthy: {count(found.workers, 'worker')}")
    sys.exit(0 if found.healthy else 1)


def sentences(found: Health) -> Iterator[str]:
    """Returns what is wrong, as sentences without a full stop."""
    if found.copy is not None:
        yield found.copy
    for queue in found.unserved:
        move = f".{did_you_mean(queue, found.served)} To move its tasks: fbtasks move --from {queue} --to QUEUE"
        yield f"queue {queue}: no worker serves it{move if found.served else ''}"
    for queue, name in found.unknown:
        yield f"queue {queue}: no worker knows a task named {name}: fbtasks inspect parked"
    for queue, seconds in found.overdue.items():
        yield f"queue {queue}: a task has waited for {span(seconds)}"
    yield from (str(problem) for some in found.problems.values() for problem in some)
    if not found.workers:
        yield "no worker is alive"
