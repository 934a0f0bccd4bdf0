"""``fbtasks health`` and ``fbtasks doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fbtasks.cli.options import Command, Seconds, command
from fbtasks.cli.output import say
from fbtasks.cli.render import say_problem
from fbtasks.queue.operations.workers import MAX_AGE, MAX_LAG, get_health
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.queue.operations.doctor.finding import Finding


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


@command
@click.option("--fix", is_flag=True, help="Repair what touches no data: statistics, orphans, rights, former packages.")
def doctor(command: Command, fix: bool) -> None:
    """Check the engine, the database, the queue and its workers: exit code 1 when something is wrong."""
    from fbtasks.queue.operations.doctor.examination import examine
    from fbtasks.queue.operations.doctor.finding import Level

    found = examine(command.database, fix=fix)
    worst = max(each.level for each in found)
    command.show({"level": worst.name.lower(), "findings": found}, lambda _: _tell(found))
    sys.exit(1 if worst is Level.ERROR else 0)


def _tell(found: list[Finding]) -> None:
    """Prints the worst first, and behind them the names of checks that have found nothing."""
    for each in sorted(found, key=lambda each: -each.level):
        if each.level or each.fixed:
            say_problem(f"{'fixed' if each.fixed else each.level.name.lower()}: {each.id}", each.finding, each.remedy)
    if fine := [each.id for each in found if not each.level and not each.fixed]:
        say(f"ok: {', '.join(fine)}")
