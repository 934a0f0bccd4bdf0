"""``fbtasks inspect``: tasks, queues and workers, shown and not changed."""

from __future__ import annotations

import click

from fbtasks.cli.commands import INSPECT
from fbtasks.cli.groups import CommandGroup


@click.group(cls=CommandGroup, table=INSPECT)
def inspect() -> None:
    """Look at tasks, queues and workers."""
