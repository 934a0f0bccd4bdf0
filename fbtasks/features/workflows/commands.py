"""The command of ``fbtasks`` that shows workflows."""

from __future__ import annotations

from typing import Final

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.output import print_json_list, say
from fbtasks.cli.tables import Column, column, table
from fbtasks.features.workflows import operations as service
from fbtasks.features.workflows.operations import ON_FAILURE, Line
from fbtasks.system.showing import count, failure

_STEP: Final[list[Column]] = [
    ("ID", "number", lambda line: None if line.more else line.node.id),
    ("STEP", "name", lambda line: "  " * line.level + _step(line)),
    column("STATE", "word", "node.state"),
    ("ERROR", "line", lambda line: "" if line.more else failure(line.node.error_type, line.node.error_msg)),
]


def _step(line: Line) -> str:
    node = line.node
    name = "end of the group" if node.kind == "group" else node.name or "(no longer kept)"
    name = f"on failure: {name}" if node.runs == ON_FAILURE else name
    return f"{line.more:,} more: {name}" if line.more else name


@command
@click.argument("task_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 1_000_000), help="At most so many lines.")
def workflow(command: Command, task_id: str, limit: int | None) -> None:
    """The workflow of a task or a group, as a tree."""
    asked, nodes = service.find_workflow(command.database, task_id)
    if command.as_json:
        print_json_list(nodes[:limit])
        return
    lines = service.fold(service.outline(nodes), asked)
    table(_STEP, lines[:limit])
    if limit is not None and len(lines) > limit:
        say(f"Only the first {count(limit, 'line')} of {len(lines)} are shown.", err=True)
