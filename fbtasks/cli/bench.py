"""``fbtasks bench``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from fbtasks.bench import measures, run
from fbtasks.bench.figures import Figures
from fbtasks.bench.place import Place
from fbtasks.cli import render
from fbtasks.cli.options import DatabaseArgs, database_options


@click.command()
@database_options
@click.option("--json", "json_file", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write JSON.")
@click.option("--quick", is_flag=True, help="A small run, to see that it works.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Measure so often, in turns, and take the medians.")
@click.option("--only", metavar="PARTS", help="Only these parts, separated by commas: ceiling, enqueue, drain, ...")
@click.option(
    "--large", is_flag=True, help="Also claims beside a million finished tasks, which are written and deleted."
)
def bench(
    url: str | None,
    app_path: str | None,
    json_file: str | None,
    quick: bool,
    rounds: int,
    only: str | None,
    large: bool,
) -> None:
    """Measure fbtasks in a database, under a queue name of its own."""
    scale = measures.QUICK if quick else measures.FULL
    parts = run.chosen_parts([name.strip() for name in (only or "").split(",") if name.strip()], scale, large=large)
    figures = Figures()
    with stopped_by_signals(), Place(DatabaseArgs(url, app_path).app().settings.url) as place:
        total = 1 if quick else rounds
        for number in range(total):
            run.run_round(
                place, parts, scale, figures,
                lambda name, number=number: click.echo(f"round {number + 1} of {total}: {name}", err=True),  # type: ignore[misc]
                last=number == total - 1,
            )  # fmt: skip
        found = run.results(place, figures)
    if json_file is not None:
        with open(json_file, "w") as file:
            json.dump(found, file, indent=2)
    render.benchmark(found)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """For the block: SIGTERM ends it as Ctrl-C does, so that it can clean up."""

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
