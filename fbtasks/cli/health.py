"""``fbtasks health``."""

from __future__ import annotations

import sys

import click

from fbtasks.cli import render
from fbtasks.cli.escapes import say
from fbtasks.cli.options import DatabaseArgs, count, database_options, json_option
from fbtasks.cli.types import Seconds
from fbtasks.store import processes, results


@click.command()
@database_options
@json_option
@click.option("--max-age", type=Seconds(0), default=300.0, help="Seconds that a ready task may wait.")
def health(url: str | None, app_path: str | None, as_json: bool, max_age: float) -> None:
    """Check for monitoring: exit code 1 when a queue is not served or waits too long."""
    with DatabaseArgs(url, app_path).session() as session:
        alive = [worker for worker in processes.workers(session) if worker.lease_left > 0]
        rows = results.queues(session, processes.serving(alive))
        now = results.now(session)
    problems = [f"queue {row.queue}: no worker serves it" for row in rows if row.ready and not row.workers]
    problems += [
        f"queue {row.queue}: a task has waited for {render.span((now - row.waiting_since).total_seconds())}"
        for row in rows
        if row.waiting_since is not None and (now - row.waiting_since).total_seconds() > max_age
    ]
    if not alive:
        problems.append("no worker is alive")
    if as_json:
        render.as_json({"healthy": not problems, "problems": problems, "workers": len(alive)})
    else:
        say("\n".join(problems) or f"healthy: {count(len(alive), 'worker')}")
    sys.exit(1 if problems else 0)
