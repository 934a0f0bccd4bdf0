"""The command of ``fbtasks`` that shows what a task has logged."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.output import say
from fbtasks.features.logs.operations import get_log
from fbtasks.features.logs.store import LogOfTry


@command
@click.argument("task_id", metavar="ID")
@click.option("--try", "number", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Only this try; the first is 1.")
def logs(command: Command, task_id: str, number: int | None) -> None:
    """What a task has logged, by try."""
    command.show(get_log(command.database, task_id, number), _print)


def _print(found: Sequence[LogOfTry]) -> None:
    if not found:
        say("No lines are kept. A task keeps what it logs from INFO on with @app.task(keep_logs=True).")
    for log in found:
        say(f"Try {log.try_number}")
        for line in log.lines:
            time, text = line.time.astimezone(), line.text.replace("\r\n", "\n").replace("\n", "\n    ")
            say(f"  {time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} {line.level} {line.logger}: {text}")
