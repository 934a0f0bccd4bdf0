"""What several commands share: the options that name a database, and those that they have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from fbtasks.app import FBTasks
from fbtasks.cli.escapes import say
from fbtasks.errors import ConfigurationError
from fbtasks.importing import import_app

since_option = click.option("--since", metavar="AGE|TIME", help="Only since then: 90s, 15m, 2h, 7d, or an ISO time.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


@dataclass(frozen=True, slots=True)
class DatabaseArgs:
    """The options ``-A`` and ``--url``, which name the database."""

    url: str | None
    app_path: str | None

    def app(self) -> FBTasks:
        """Returns the app named by -A, or one that knows the database alone."""
        if self.app_path:
            app = import_app(self.app_path)
            if self.url:
                raise ConfigurationError("give -A or --url, not both.")
            return app
        return FBTasks("fbtasks", self.url)

    @contextmanager
    def opened(self) -> Iterator[FBTasks]:
        """For the block: the app, whose connections are closed at its end."""
        app = self.app()
        try:
            yield app
        finally:
            app.close()


def database_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds -A and --url to a command, which gets ``url`` and ``app_path``."""
    function = click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", help="The app to take the URL from.")(
        function
    )
    return click.option("--url", metavar="URL", help="The database; default: FBTASKS_URL, or ./fbtasks.fdb.")(function)


def with_database(function: Callable[..., None]) -> Callable[..., None]:
    """Adds -A and --url to a command, which gets both as ``database``, a :class:`DatabaseArgs`."""

    @functools.wraps(function)
    def command(*, url: str | None, app_path: str | None, **arguments: Any) -> None:
        function(database=DatabaseArgs(url, app_path), **arguments)

    return database_options(command)


def announce(app: FBTasks, indent: str = "") -> FBTasks:
    """Has *app* say on the standard error what it creates. Returns it."""
    app.database.tell = lambda text: say(f"{indent}{text}", err=True)
    return app


def since_time(text: str | None) -> datetime | None:
    """Returns the moment that ``--since`` names: an age before now, or an ISO time."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * units[text[-1]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--since {text!r} is neither an age (90s, 15m, 2h, 7d) nor an ISO time.") from None
