"""What several commands share: the options that name a database, and the checks of what they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from fbtasks.app import FBTasks
from fbtasks.cli.escapes import say
from fbtasks.errors import ConfigurationError, TaskNotFound
from fbtasks.firebird.session import Session
from fbtasks.importing import import_app
from fbtasks.store import processes, results


def database_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """-A and --url."""
    function = click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", help="The app to take the URL from.")(
        function
    )
    return click.option("--url", metavar="URL", help="The database; default: FBTASKS_URL, or ./fbtasks.fdb.")(function)


since_option = click.option("--since", metavar="AGE|TIME", help="Only since then: 90s, 15m, 2h, 7d, or an ISO time.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


@dataclasses.dataclass
class DatabaseArgs:
    """The options ``-A`` and ``--url``, which name the database."""

    url: str | None
    app_path: str | None

    def app(self) -> FBTasks:
        """The app named by -A, or one that knows the database alone."""
        if self.app_path:
            app = import_app(self.app_path)
            if self.url:
                raise ConfigurationError("give -A or --url, not both.")
            return app
        return FBTasks("fbtasks", self.url)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session of the database."""
        app = self.app()
        try:
            with app.database.session() as session:
                yield session
        finally:
            app.close()


def announce(app: FBTasks, indent: str = "") -> FBTasks:
    """Has *app* say on the standard error what it creates."""
    app.database.tell = lambda text: say(f"{indent}{text}", err=True)
    return app


def check_queue(session: Session, queue: str) -> None:
    """Raises :class:`ConfigurationError` unless some task or some worker has *queue*."""
    known = {row.queue for row in results.queues(session)}
    known |= {name for worker in processes.workers(session) for name in worker.queues}
    known |= {row.queue for row in results.stats(session, timedelta(days=30)) if row.queue}
    if queue not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"unknown queue {queue!r}: no task and no worker has it. Known queues: {names}.")


def since_time(text: str | None) -> datetime | None:
    """The moment that ``--since`` names: an age before now, or an ISO time."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * units[text[-1]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--since {text!r} is neither an age (90s, 15m, 2h, 7d) nor an ISO time.") from None


def not_found(task_id: str) -> TaskNotFound:
    """The error for an id that no task has."""
    return TaskNotFound(f"there is no task {task_id!r}; see: fbtasks inspect failed, active, ready or scheduled.")


def find(session: Session, task_id: str) -> int:
    """The number of the task with this id. Raises :class:`TaskNotFound`."""
    number = results.find_id(session, task_id)
    if number is None or results.state(session, number) is None:
        raise not_found(task_id)
    return number


def count(number: int, what: str) -> str:
    """*number* things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"
