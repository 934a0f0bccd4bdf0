"""``fbtasks worker``."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fbtasks import FBTasks
from fbtasks import timing as clock
from fbtasks.cli.commands import OF_FEATURES
from fbtasks.cli.options import Seconds, announce, url_option
from fbtasks.cli.output import say
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.queue.register.hosts import host_name
from fbtasks.queue.shares import Share, parse_shares, share_text
from fbtasks.run.importing import import_app, refuse_green_threads, where_tasks_are
from fbtasks.system import checks
from fbtasks.system.showing import command_line, sentence
from fbtasks.tasks.celery_words import instead, words
from fbtasks.url import URL_VARIABLE, is_named_by_option
from fbtasks.version import VERSION
from fbtasks.worker.logs import FORMATS, LogOptions, set_up
from fbtasks.worker.options import POOLS, ChildOptions, WorkerOptions
from fbtasks.worker.supervisor import start_afresh, work

if TYPE_CHECKING:
    from fbtasks.worker.loop import Loop

logger = logging.getLogger("fbtasks.worker")
MOST_QUEUES: Final = 4000
"""Characters of the names of a worker's queues, as the database keeps them."""


def _of_features(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that are for features."""
    for name, facts in importlib.import_module(OF_FEATURES).WORKER_OPTIONS.items():
        function = click.option(name, **facts)(function)
    return function


class Pool(click.Choice):  # type: ignore[type-arg]  # generic in new versions of click alone
    """One of the pools. A name that Celery has for a pool is answered with its name here."""

    def __init__(self) -> None:
        super().__init__(POOLS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the pool of that name."""
        if value not in POOLS and value in words()["pool"]:
            self.fail(f"{value!r} is a pool of Celery's{instead(value, 'pool')}", param, ctx)
        return super().convert(value, param, ctx)


def _app_needed(_context: click.Context, _option: click.Parameter, path: str | None) -> str:
    """Returns what -A says. Raises :class:`click.UsageError` without it, with the app of the working folder."""
    if path is not None:
        return path
    found: set[str] = set()
    with suppress(OSError):
        files = [file for pattern in ("*.py", "*/app.py") for file in Path().glob(pattern)]
        found = {file.parent.name or file.stem for file in files if b"FBTasks(" in file.read_bytes()}
    only = found.pop() if len(found) == 1 else ""
    where = "Here it is" if only.isidentifier() else "For shop.py"
    remedy = f"{where}: {command_line('fbtasks worker -A {}', only if only.isidentifier() else 'shop')}"
    raise click.UsageError(f"Missing option '-A' / '--app', the module of the app. {remedy}")


@click.command()
@click.option(
    "-A", "--app", "app_path", metavar="MODULE[:NAME]", callback=_app_needed, help="The app whose tasks to run; needed."
)
@url_option
@click.option(
    "-Q",
    "--queues",
    metavar="NAMES",
    help="Queues to serve, separated by commas; default: the app's. With mail:3, mail has three times the share of a "
    "queue without a weight; with mail=2, this worker runs two tasks of it at a time; mail:3=2 is both.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), help="Tasks at once; default: the processors.")
@click.option("-P", "--pool", type=Pool(), default="processes", help="Where tasks run.")
@click.option("-n", "--name", help="The worker's name; default: its pid. The host is added.")
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    help="How much to log.",
)
@click.option("--logfile", type=click.Path(dir_okay=False), metavar="PATH", help="Append the log to this file.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", help="Lines to read, or JSON for programs.")
@click.option("--burst", is_flag=True, help="Leave when nothing is due.")
@click.option("--reload", is_flag=True, help="Start afresh when a module's file has changed: for development.")
@click.option("--grace", type=Seconds(0), default=30.0, help="Seconds for running tasks when stopped.")
@click.option("--lease", type=Seconds(3), default=30.0, help="Seconds of silence before others take over.")
@click.option("--max-tasks-per-child", type=click.IntRange(1), help="Replace a child process after so many tasks.")
@click.option("--max-memory-per-child", type=click.IntRange(1), metavar="MIB", help="Replace an idle larger child.")
@_of_features
def worker(
    app_path: str,
    queues: str | None,
    concurrency: int | None,
    pool: str,
    name: str | None,
    loglevel: str,
    logfile: str | None,
    log_format: str,
    burst: bool,
    reload: bool,
    grace: float,
    lease: float,
    max_tasks_per_child: int | None,
    max_memory_per_child: int | None,
    **of_features: Any,
) -> None:
    """Run the tasks of an app until stopped."""
    folder = os.getcwd()  # importing the app may change it
    logfile = logfile and os.path.abspath(logfile)
    if reload and burst:
        raise click.UsageError("--reload is for a worker that runs on, and --burst ends it: leave out one.")
    began = clock.wall()
    with _next_change_waited_for(began, folder) if reload else nullcontext():
        app = import_app(app_path)
        if is_named_by_option():
            # For child processes, and the programs that tasks start.
            os.environ[URL_VARIABLE] = app.settings.url.reveal()
        app.load()
    given = {name: value for name, value in of_features.items() if value is not None}
    for option in given:
        app.features[option.partition("_")[0]]  # raises where the app has no such feature
    refuse_green_threads()
    served = app.queues_served()
    shares = dict.fromkeys(served, Share()) if queues is None else parse_shares(queues, served)
    options = WorkerOptions(
        name=f"{_checked(name or str(os.getpid()))}@{host_name().partition('/')[0]}",
        queues=tuple(shares),
        shares=shares,
        pool=pool,
        concurrency=1 if pool == "solo" else concurrency or os.cpu_count() or 1,
        burst=burst,
        grace=grace,
        lease=lease,
        of_features=given,
    )
    children = ChildOptions(
        max_tasks=max_tasks_per_child,
        max_memory=None if max_memory_per_child is None else max_memory_per_child * 1024 * 1024,
        folder=folder,
    )
    for queue in options.queues:
        app.enqueuer.check_queue(queue)
    if len(_queues(options, ",")) > MOST_QUEUES:
        raise ConfigurationError(
            f"{len(options.queues)} queues are too many for one worker: their names, with a comma between them, have "
            f"more than {MOST_QUEUES} characters. Share them between several workers with -Q."
        )
    notes = list(_notes(app, app_path, options))
    log = LogOptions(loglevel.upper(), log_format, logfile, options.name)
    set_up(log, waits=False)
    facts = _facts(app, options)
    if log.asked:
        said = ", ".join(f"{name} {value}" for name, value in facts.items())
        logger.info("Worker %s of fbtasks %s: %s.", options.name, VERSION, said)
        for note in notes:
            logger.warning("%s", sentence(note[0].upper() + note[1:]))
    if logfile or log_format == "text":
        click.echo(f"fbtasks {VERSION} worker {options.name}", err=True)
        for name, value in [*facts.items(), *(("note", note) for note in notes)]:
            click.echo(f"  {name:8}{value}", err=True)
        announce(app, "  note    ")
    with _reason_in_the_log(log):
        work(app, app_path, options, log.argument(), children, _watching(began) if reload else None)


@contextmanager
def _next_change_waited_for(began: float, folder: str) -> Iterator[None]:
    """For the block, which imports the app: when it raises, waits until a file has changed, and starts afresh."""
    try:
        yield
    except FBTasksError as error:
        from fbtasks.worker.reloading import wait_for_change

        say(f"Error: {error}", err=True)
        wait_for_change(error, began, partial(say, err=True))
        start_afresh(folder)


def _watching(began: float) -> Callable[[Loop], None]:
    """Returns what has the worker of a loop start afresh when a file has changed since the app's import *began*."""
    from fbtasks.worker.reloading import Files, watch

    return partial(watch, files=Files(began))


@contextmanager
def _reason_in_the_log(log: LogOptions) -> Iterator[None]:
    """Logs what ends the worker: an error of fbtasks where the log is not where the command says it anyway."""
    try:
        yield
    except FBTasksError as error:
        if log.asked:
            logger.critical("The worker ends: %s", error)
        raise
    except Exception:
        logger.critical("The worker ends by an error.", exc_info=True)
        raise


def _queues(options: WorkerOptions, between: str = ", ") -> str:
    return between.join(share_text(queue, share) for queue, share in options.shares.items())


def _checked(name: str) -> str:
    """Returns *name*. Raises :class:`ConfigurationError` unless a worker may be called so."""
    if "@" in name:
        raise ConfigurationError(f"-n {name!r}: leave out the '@' and what follows; the host is added.")
    if not checks.is_name(name, 100):
        raise ConfigurationError(
            f"-n {checks.shown(name)} must have 1 to 100 printable characters, without spaces at its ends."
        )
    return name


def _notes(app: FBTasks, app_path: str, options: WorkerOptions) -> Iterator[str]:
    """Returns what is to be noticed when a worker starts, as sentences without a full stop."""
    if note := app.database.take_note():
        yield note
    if not app.tasks:
        module = where_tasks_are(app_path)
        there = "" if module is None else f"; there is a module {module}"
        yield (
            f"the app has no tasks{there}. Name the modules that define them: "
            f"FBTasks({app.name!r}, include=[{module or 'MODULE'!r}])"
        )
    for queue in sorted(set(options.queues) - set(app.queues_served())):
        yield f"no task of the app is declared for the queue {queue!r}"


def _facts(app: FBTasks, options: WorkerOptions) -> dict[str, object]:
    """Returns what a worker prints when it starts."""
    return {
        "app": app.name,
        "url": app.settings.url,
        "queues": _queues(options),
        "pool": f"{options.pool}, {options.concurrency} at once",
        "tasks": ", ".join(sorted(app.tasks)) or "(none)",
    }
