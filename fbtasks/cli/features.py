"""The commands of ``fbtasks features``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import click

from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.output import answer, show_records
from fbtasks.cli.render import Column, records
from fbtasks.database import features, migrate
from fbtasks.errors import ConfigurationError

_FEATURE: Final[Sequence[Column]] = [
    ("NAME", "word", lambda r: r["name"]),
    ("VERSION", "number", lambda r: r["version"]),
    ("HERE", "word", lambda r: "yes" if r["here"] else "no"),
    ("HOOKS", "text", lambda r: " ".join(r["hooks"])),
]


@click.command()
@with_database
@json_option
def list(database: DatabaseArgs, as_json: bool) -> None:
    """The features that the database has, and whether this program, or the app, has them."""
    with database.opened() as app:
        rows: Sequence[dict[str, Any]] = [
            {"name": name, "version": row.version, "here": name in app.features, "hooks": sorted(row.hooks)}
            for name, row in app.database.use(features.rows).items()
        ]
    show_records(rows, lambda found: records(_FEATURE, found), as_json=as_json)


@click.command()
@click.argument("name")
@with_database
@json_option
def drop(database: DatabaseArgs, name: str, as_json: bool) -> None:
    """Call a feature of another distribution no more; refused while tasks or workers have it."""
    with database.opened() as app:
        if database.app_path and name in app.features:
            raise ConfigurationError(f"the app {app.name!r} has the feature {name!r}, and would bring it back.")
        with closing(app.database.open()) as session:
            left = migrate.drop_feature(session, name)
    text = f"{name}: dropped."
    if left:
        text += f" What it made stays. Before an app brings it back: {' '.join(f'DROP {each};' for each in left)}"
    answer({"dropped": name, "left": left}, text, as_json=as_json)
