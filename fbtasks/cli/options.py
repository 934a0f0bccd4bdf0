"""Options that several commands have, and their types."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import click

from fbtasks import FBTasks
from fbtasks.cli.output import WIDE, print_json, say
from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.run.importing import import_app
from fbtasks.timing import LONGEST
from fbtasks.url import DatabaseURL

T = TypeVar("T")
_MOST: Final = LONGEST.total_seconds()
_LOOKS: Final = {"inspect", "list", "diff", "health", "result"}
"""Words of the commands that change nothing. They do not say which of several databases they use."""

url_option = click.option(
    "--url", metavar="URL", expose_value=False, help="The database; default: FBTASKS_URL, the app's, or ./fbtasks.fdb."
)
"""Read by :class:`fbtasks.cli.main.Program`: it counts for all apps that are imported."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({WIDE: value}),
    help="Shorten nothing in tables.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


class Seconds(click.FloatRange):
    """A number of seconds: finite, and not NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number) or number > _MOST:
            self.fail(f"{value} must be a number of seconds, at most a hundred years.", param, ctx)
        return number


def app_of_database(url: DatabaseURL | None = None) -> FBTasks:
    """Returns an app that knows a database alone: that of *url*, or of ``--url`` and its like."""
    app = FBTasks("fbtasks", url)
    app.database.as_found = True
    return app


@dataclass(frozen=True, slots=True)
class DatabaseArgs:
    """The option ``-A``, which names the app."""

    app_path: str | None

    @contextmanager
    def opened(self) -> Iterator[FBTasks]:
        """For the block: the app named by -A, or one that knows the database alone. An administrator uses it.

        While the command runs it ends the process when the embedded engine hangs.
        """
        from fbtasks.firebird.embedded import mutex_repair

        mutex_repair.exit_when_engine_hangs(lambda text: say(f"Error: {text}", err=True))
        click.get_current_context().call_on_close(mutex_repair.stay_when_engine_hangs)
        app = import_app(self.app_path) if self.app_path else app_of_database()
        app.database.maintains = True
        note = app.database.take_note()
        if note and _LOOKS.isdisjoint(click.get_current_context().command_path.split()):
            say(f"Note: {note}.", err=True)
        with closing(app):
            yield app


def with_database(function: Callable[..., None]) -> Callable[..., None]:
    """Adds -A and --url to a command, which gets both as ``database``, a :class:`DatabaseArgs`."""

    @url_option
    @click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", help="The app: its URL, and what its code names.")
    @functools.wraps(function)
    def command(*, app_path: str | None, **arguments: Any) -> None:
        function(database=DatabaseArgs(app_path), **arguments)

    return command


@dataclass(frozen=True, slots=True)
class Command:
    """One run of a command: the app that it is for, and how it answers."""

    app: FBTasks
    code: FBTasks | None
    """The app when -A has named it, so that its code is known."""
    as_json: bool

    @property
    def database(self) -> Database:
        """That of the app."""
        return self.app.database

    def confirm(self, question: str) -> None:
        """Asks the user. Ends the command unless the answer is yes.

        Raises :class:`ConfigurationError` when there is nobody to answer.
        """
        try:
            if click.confirm(question, err=self.as_json):
                return
        except (click.Abort, RuntimeError):  # RuntimeError: there is no standard input
            if sys.stdin is not None and sys.stdin.isatty():
                raise
            click.echo(err=self.as_json)
            said = "the question has no answer, and nothing was changed. Without a terminal give --yes."
            raise ConfigurationError(said) from None
        raise click.Abort

    def answer(self, record: Any, text: str) -> None:
        """Prints what the command has done: as JSON for scripts, or in words."""
        self.show(record, lambda _: say(text))

    def answer_changed(self, changed: Sequence[str], what: str, nothing: str) -> None:
        """Prints *what* becomes of the things that it has *changed*, by their names; or why it is *nothing*."""
        text = f"{', '.join(changed)}: {what}" if changed else f"Nothing to do: {nothing}."
        self.answer({"changed": changed}, text)

    def show(self, found: T, table: Callable[[T], None]) -> None:
        """Prints what the command has found: as JSON for scripts, or by *table* for people. The database is left."""
        self.app.close()
        if self.as_json:
            print_json(found)
        else:
            table(found)


def command(function: Callable[..., None]) -> click.Command:
    """Makes a command with -A, --url, --json and --wide of *function*, which gets a :class:`Command`."""

    @functools.wraps(function)
    def run(database: DatabaseArgs, as_json: bool, **arguments: Any) -> None:
        with database.opened() as app:
            function(Command(app, app if database.app_path else None, as_json), **arguments)

    return click.command()(with_database(json_option(wide_option(run))))


def announce(app: FBTasks, indent: str = "") -> FBTasks:
    """Makes *app* print on the standard error what it creates. Returns it."""
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
