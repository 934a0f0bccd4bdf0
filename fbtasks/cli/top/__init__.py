"""``fbtasks top``: queues, running tasks and failures, live in the terminal."""

from __future__ import annotations

import os
import sys

import click

from fbtasks import timing as clock
from fbtasks.cli.options import Command, Seconds, command
from fbtasks.cli.output import as_dict, write
from fbtasks.cli.tables import screen_width
from fbtasks.cli.top.sight import Sight, look


@command
@click.option("--interval", type=Seconds(0.1), default=2.0, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Print what there is and end. Looks twice, for the rates.")
def top(command: Command, interval: float, once: bool) -> None:
    """Watch queues, running tasks and failures live, and act on them."""
    found = look(command.database)
    if not (once or command.as_json) and _is_screen():
        from fbtasks.cli.top.live import watch  # what it needs of a terminal not every system has

        watch(command, interval, found)
        return
    clock.sleep(interval)
    found = look(command.database, found)
    facts = as_dict(found)
    command.show(as_dict(facts.pop("overview")) | facts, lambda _: _print(found, str(command.database.url)))


def _print(found: Sight, url: str) -> None:
    from rich.console import Console

    from fbtasks.cli.top.pages import joined, once

    width = screen_width()
    lines = once(found, url, width)
    console = Console(width=width or max(line.cell_len for line in lines), highlight=False)
    with console.capture() as printed:
        console.print(joined(lines))
    write(printed.get())


def _is_screen() -> bool:
    """Whether it is used in a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
