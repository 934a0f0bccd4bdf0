"""The commands of ``fbtasks features``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.tables import Column, table
from fbtasks.database import features, migrate
from fbtasks.errors import ConfigurationError

_FEATURE: Final[Sequence[Column]] = [
    ("NAME", "word", lambda r: r["name"]),
    ("VERSION", "number", lambda r: r["version"]),
    ("HERE", "word", lambda r: "yes" if r["here"] else "no"),
    ("HOOKS", "text", lambda r: " ".join(r["hooks"])),
]


@command
def list(command: Command) -> None:
    """The features that the database has, and whether this program, or the app, has them."""
    rows: Sequence[dict[str, Any]] = [
        {"name": name, "version": row.version, "here": name in command.app.features, "hooks": sorted(row.hooks)}
        for name, row in command.database.use(features.rows).items()
    ]
    command.show(rows, lambda found: table(_FEATURE, found))


@command
@click.argument("name")
def drop(command: Command, name: str) -> None:
    """Call a feature of another distribution no more; refused while tasks or workers have it."""
    if command.code and name in command.app.features:
        raise ConfigurationError(f"the app {command.app.name!r} has the feature {name!r}, and would bring it back.")
    with closing(command.database.open()) as session:
        left = migrate.drop_feature(session, name)
    text = f"{name}: dropped."
    if left:
        text += f" What it made stays. Before an app brings it back: {' '.join(f'DROP {each};' for each in left)}"
    command.answer({"dropped": name, "left": left}, text)
