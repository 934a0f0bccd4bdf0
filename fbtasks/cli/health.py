"""``fbtasks health``."""

from __future__ import annotations

import sys

import click

from fbtasks.cli import render
from fbtasks.cli.options import DatabaseArgs, Seconds, json_option, with_database
from fbtasks.cli.output import answer, span
from fbtasks.features.sources.operations import SourceProblem, older_writers
from fbtasks.queue.operations.workers import Health, get_health
from fbtasks.system.showing import count


@click.command()
@with_database
@json_option
@click.option("--max-age", type=Seconds(0), default=300.0, help="Seconds that a ready task may wait.")
@click.option("--max-lag", type=Seconds(0), default=900.0, help="Seconds that a change may wait to become a task.")
def health(database: DatabaseArgs, as_json: bool, max_age: float, max_lag: float) -> None:
    """Check for monitoring: exit code 1 when a queue is not served or waits too long."""
    with database.opened() as app:
        found = get_health(app.database, max_age, max_lag)
        older = older_writers(app.database)
    render.tell_older(older, render.END_THEM)
    problems = _problems(found)
    record = {"healthy": found.healthy, "problems": problems, "workers": found.workers}
    answer(record, "\n".join(problems) or f"healthy: {count(found.workers, 'worker')}", as_json=as_json)
    sys.exit(0 if found.healthy else 1)


def _problems(found: Health) -> list[str]:
    return [
        *(f"queue {queue}: no worker serves it" for queue in found.unserved),
        *(
            f"queue {queue}: no worker knows a task named {name}: fbtasks inspect parked"
            for queue, name in found.unknown
        ),
        *(f"queue {queue}: a task has waited for {span(seconds)}" for queue, seconds in found.overdue.items()),
        *(f"polling {each.table} for {each.task} fails: {each.error}" for each in found.failing),
        *(f"{each.kind} {_named(each)}: {each.problem}" for each in found.sources),
        *(f"schedule {each.name}: {each.problem}" for each in found.schedules),
        *(each.problem if each.name is None else f"limit {each.name}: {each.problem}" for each in found.limits),
        *([] if found.workers else ["no worker is alive"]),
    ]


def _named(problem: SourceProblem) -> str:
    return problem.name if problem.app is None else f"{problem.name} (app {problem.app})"
