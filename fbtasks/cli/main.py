"""The commands."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from fbtasks.choices import POOLS, ROLES
from fbtasks.errors import ConfigurationError, FBTasksError, ForeignDatabaseError, TaskNotFound
from fbtasks.states import State
from fbtasks.version import VERSION

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.call import TaskRow
    from fbtasks.cli import render
    from fbtasks.importing import import_app
    from fbtasks.maintenance.hosts import host_name
    from fbtasks.maintenance.prune import prune as prune_now
    from fbtasks.serialize import Payload, show_json
    from fbtasks.store import grants, results, tasks, workers
    from fbtasks.store import migrate as schema
    from fbtasks.store.session import Session, Transaction
    from fbtasks.worker.consumer import WorkerOptions
    from fbtasks.worker.executors import ChildOptions
    from fbtasks.worker.supervisor import work

RETRY_BATCH: Final = 500
"""Tasks that ``retry --all-failed`` puts back in one transaction."""


def load() -> None:
    """Imports what commands need and ``--help`` does not, which takes longer than all the rest."""
    global \
        ChildOptions, \
        FBTasks, \
        Payload, \
        Session, \
        TaskRow, \
        Transaction, \
        WorkerOptions, \
        grants, \
        host_name, \
        import_app, \
        prune_now, \
        render, \
        results, \
        schema, \
        show_json, \
        tasks, \
        work, \
        workers
    from fbtasks.app import FBTasks
    from fbtasks.call import TaskRow
    from fbtasks.cli import render
    from fbtasks.importing import import_app
    from fbtasks.maintenance.hosts import host_name
    from fbtasks.maintenance.prune import prune as prune_now
    from fbtasks.serialize import Payload, show_json
    from fbtasks.store import grants, results, tasks, workers
    from fbtasks.store import migrate as schema
    from fbtasks.store.session import Session, Transaction
    from fbtasks.worker.consumer import WorkerOptions
    from fbtasks.worker.executors import ChildOptions
    from fbtasks.worker.supervisor import work


@dataclasses.dataclass
class Place:
    """Which database, as the command line says."""

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


class Commands(click.Group):
    """Turns errors of fbtasks into one message and exit code 1 (2 for wrong use)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            load()
            return super().invoke(ctx)
        except FBTasksError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2 if isinstance(error, ConfigurationError) else 1)
        except (click.ClickException, click.Abort, click.exceptions.Exit, OSError):
            raise  # click answers these, a pipe that was closed among them
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"Error: {type(error).__name__}: {error}. With --debug the traceback is shown.", err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(VERSION, prog_name="fbtasks")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:  # read by Commands.invoke
    """Background tasks whose queue is a table of your Firebird database."""


def database_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """-A and --url."""
    function = click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", help="The app to take the URL from.")(
        function
    )
    return click.option("--url", metavar="URL", help="The database; default: FBTASKS_URL, or ./fbtasks.fdb.")(function)


since_option = click.option("--since", metavar="AGE|TIME", help="Only since then: 90s, 15m, 2h, 7d, or an ISO time.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


@main.command()
@click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", required=True, help="The app whose tasks to run.")
@click.option("-Q", "--queues", metavar="NAMES", help="Queues to serve, separated by commas; default: the app's.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), help="Tasks at once; default: the processors.")
@click.option("--pool", type=click.Choice(POOLS), default="processes", help="Where tasks run.")
@click.option("-n", "--name", help="The worker's name; default: its pid. The host is added.")
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    help="How much to log.",
)
@click.option("--burst", is_flag=True, help="Leave when nothing is due.")
@click.option("--grace", type=click.FloatRange(0), default=30.0, help="Seconds for running tasks when stopped.")
@click.option("--lease", type=click.FloatRange(3), default=30.0, help="Seconds of silence before others take over.")
@click.option("--max-tasks-per-child", type=click.IntRange(1), help="Replace a child process after so many tasks.")
@click.option("--max-memory-per-child", type=click.IntRange(1), metavar="MIB", help="Replace an idle larger child.")
def worker(
    app_path: str,
    queues: str | None,
    concurrency: int | None,
    pool: str,
    name: str | None,
    loglevel: str,
    burst: bool,
    grace: float,
    lease: float,
    max_tasks_per_child: int | None,
    max_memory_per_child: int | None,
) -> None:
    """Run the tasks of an app until stopped."""
    logging.basicConfig(level=loglevel.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    app = import_app(app_path)
    app.load()
    options = WorkerOptions(
        name=f"{name or os.getpid()}@{host_name().partition('/')[0]}",
        queues=tuple(app.queues_served() if queues is None else dict.fromkeys(q.strip() for q in queues.split(","))),
        pool=pool,
        concurrency=1 if pool == "solo" else concurrency or os.cpu_count() or 1,
        burst=burst,
        grace=grace,
        lease=lease,
    )
    children = ChildOptions(
        max_tasks=max_tasks_per_child,
        max_memory=None if max_memory_per_child is None else max_memory_per_child * 1024 * 1024,
    )
    for queue in options.queues:
        app.check_queue(queue)
    _banner(app, options)
    work(app, app_path, options, loglevel.upper(), children)


def _banner(app: FBTasks, options: WorkerOptions) -> None:
    click.echo(f"fbtasks {VERSION} worker {options.name}", err=True)
    click.echo(f"  app     {app.name}", err=True)
    click.echo(f"  url     {app.settings.url}", err=True)
    click.echo(f"  queues  {', '.join(options.queues)}", err=True)
    click.echo(f"  pool    {options.pool}, {options.concurrency} at once", err=True)
    click.echo(f"  tasks   {', '.join(sorted(app.tasks)) or '(none)'}", err=True)
    for queue in set(options.queues) - set(app.queues_served()):
        click.echo(f"  note    no task of the app is declared for the queue {queue!r}", err=True)


@main.group()
def inspect() -> None:
    """Look at tasks, queues and workers."""


def list_command(name: str, state: State, help_text: str, nothing: str) -> None:
    """Adds a command that lists the tasks in one state."""

    @inspect.command(name, help=help_text)
    @database_options
    @json_option
    @click.option("--queue", help="Only this queue.")
    @click.option("--name", "task_name", help="Only tasks of this name.")
    @since_option
    @click.option("--limit", type=click.IntRange(1), default=50, help="At most so many.")
    def command(
        url: str | None,
        app_path: str | None,
        as_json: bool,
        queue: str | None,
        task_name: str | None,
        since: str | None,
        limit: int,
    ) -> None:
        with Place(url, app_path).session() as session:
            if queue is not None:
                _check_queue(session, queue)
            wanted = results.Filter(queue=queue, name=task_name, since=_since(since), limit=limit)
            rows = results.listing(session, state, wanted)
        if as_json:
            render.as_json(rows)
        else:
            render.tasks(rows, state, nothing)


list_command("failed", State.FAILED, "Tasks that failed for good, newest first.", "No failed tasks.")
list_command("succeeded", State.SUCCEEDED, "Tasks that returned, newest first.", "No results are kept.")
list_command("cancelled", State.CANCELLED, "Tasks that were cancelled or expired, newest first.", "None was cancelled.")
list_command("active", State.RUNNING, "Tasks that run now.", "Nothing runs.")
list_command("ready", State.READY, "Tasks that wait for a worker.", "Nothing waits.")
list_command("scheduled", State.SCHEDULED, "Tasks that wait for their time.", "Nothing is scheduled.")
list_command("parked", State.PARKED, "Tasks whose name no worker knew.", "Nothing is parked.")


def _check_queue(session: Session, queue: str) -> None:
    known = {row.queue for row in results.queues(session)}
    known |= {name for worker in workers.listing(session) for name in worker.queues}
    known |= {row.queue for row in results.stats(session, timedelta(days=30)) if row.queue}
    if queue not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"unknown queue {queue!r}: no task and no worker has it. Known queues: {names}.")


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * units[text[-1]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--since {text!r} is neither an age (90s, 15m, 2h, 7d) nor an ISO time.") from None


@inspect.command("queues")
@database_options
@json_option
@click.option("--queue", help="Only this queue.")
def inspect_queues(url: str | None, app_path: str | None, as_json: bool, queue: str | None) -> None:
    """What waits and runs in each queue."""
    with Place(url, app_path).session() as session:
        rows = results.queues(session)
        if queue is not None:
            _check_queue(session, queue)
            rows = [row for row in rows if row.queue == queue] or [results.QueueRow(queue=queue)]
        served = {queue for worker in workers.listing(session) for queue in worker.queues}
    if as_json:
        render.as_json(rows)
    else:
        render.queues(rows, served)


@inspect.command("workers")
@database_options
@json_option
def inspect_workers(url: str | None, app_path: str | None, as_json: bool) -> None:
    """The workers that are registered."""
    with Place(url, app_path).session() as session:
        rows = workers.listing(session)
    if as_json:
        render.as_json(rows)
    else:
        render.workers(rows)


@inspect.command("stats")
@database_options
@json_option
@click.option("--queue", help="Only this queue; conflicts belong to none.")
@click.option(
    "--since", default="1d", metavar="AGE|TIME", help="Since the hour of then: 90s, 15m, 2h, 7d, or an ISO time."
)
def inspect_stats(url: str | None, app_path: str | None, as_json: bool, queue: str | None, since: str) -> None:
    """Counters of tasks, errors, times and conflicts."""
    start = _since(since) or datetime.now(UTC)
    with Place(url, app_path).session() as session:
        rows = results.stats(session, datetime.now(UTC) - start)
        live = results.queues(session)
        if queue is not None:
            _check_queue(session, queue)
            rows = [row for row in rows if row.queue == queue]
            live = [row for row in live if row.queue == queue]
    if as_json:
        render.as_json({"counters": rows, "queues": live})
    else:
        render.stats(rows, live)


@inspect.command("task")
@click.argument("task_id", metavar="ID")
@database_options
@json_option
def inspect_task(task_id: str, url: str | None, app_path: str | None, as_json: bool) -> None:
    """One task: arguments, times, tries, traceback."""
    with Place(url, app_path).session() as session:
        number = _find(session, task_id)
        row = results.find(session, number)
        if row is None:
            raise _not_found(task_id)
        call = results.call_of(session, number)
        stored = results.outcome(session, number)
    arguments = "(no longer kept)"
    if call is not None and call[1] is not None:
        arguments = show_json(Payload(call[0], call[1]))
    trace = None if stored is None else stored.traceback
    if as_json:
        render.as_json({"task": row, "arguments": arguments, "traceback": trace})
    else:
        render.task(row, arguments, trace)


def _not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task_id!r}; see: fbtasks inspect failed, active, ready or scheduled.")


def _find(session: Session, task_id: str) -> int:
    number = results.find_id(session, task_id)
    if number is None or results.state(session, number) is None:
        raise _not_found(task_id)
    return number


@main.command()
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="All failed tasks.")
@click.option("--queue", help="With --all-failed: only this queue.")
@click.option("--name", "task_name", help="With --all-failed: only tasks of this name.")
@click.option("--since", metavar="AGE|TIME", help="With --all-failed: only those that failed since then.")
@database_options
def retry(
    task_ids: tuple[str, ...], all_failed: bool, queue: str | None, task_name: str | None, since: str | None,
    url: str | None, app_path: str | None,
) -> None:  # fmt: skip
    """Put failed or cancelled tasks back into their queues."""
    if bool(task_ids) == all_failed:
        raise click.UsageError("give the IDs of tasks, or --all-failed.")
    if not all_failed and (queue, task_name, since) != (None, None, None):
        raise click.UsageError("--queue, --name and --since go with --all-failed.")
    with Place(url, app_path).session() as session:
        if all_failed:
            if queue is not None:
                _check_queue(session, queue)
            wanted = results.Filter(queue=queue, name=task_name, since=_since(since), limit=RETRY_BATCH)
            total = _retry_all(session, wanted)
            click.echo(f"{_count(total, 'task')} put back.")
            return
        numbers = [_find(session, task_id) for task_id in task_ids]
        done = [session.run(lambda t, n=number: tasks.retry(t, n)) for number in numbers]  # type: ignore[misc]
    _report(done, "put back", "is neither failed nor cancelled", numbers)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _retry_page(rows: list[TaskRow], transaction: Transaction) -> list[bool]:
    return [tasks.retry(transaction, row.id) for row in rows]


def _retry_all(session: Session, wanted: results.Filter) -> int:
    """Puts failed tasks back, a batch in a transaction. Those that fail again meanwhile are left."""
    wanted = dataclasses.replace(wanted, until=results.now(session))
    total = 0
    while rows := results.listing(session, State.FAILED, wanted):
        done = session.run(partial(_retry_page, rows))
        total += sum(done)
        if not any(done):
            break
    return total


def _report(done: list[bool], what: str, why_not: str, numbers: list[int]) -> None:
    click.echo(f"{_count(sum(done), 'task')} {what}.")
    if not all(done):
        left = ", ".join(str(number) for number, ok in zip(numbers, done, strict=True) if not ok)
        raise FBTasksError(f"task {left} {why_not}: nothing was changed for it.")


@main.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
def discard(task_ids: tuple[str, ...], url: str | None, app_path: str | None) -> None:
    """Delete finished tasks for good."""
    with Place(url, app_path).session() as session:
        numbers = [_find(session, task_id) for task_id in task_ids]
        done = [session.run(lambda t, n=number: tasks.forget(t, n)) for number in numbers]  # type: ignore[misc]
    _report(done, "discarded", "has not ended (use: fbtasks cancel)", numbers)


@main.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@database_options
def cancel(task_ids: tuple[str, ...], url: str | None, app_path: str | None) -> None:
    """Cancel tasks: waiting ones at once; running ones are stopped by their worker."""
    with Place(url, app_path).session() as session:
        numbers = [_find(session, task_id) for task_id in task_ids]
        answers = [session.run(lambda t, n=number: tasks.cancel(t, n, terminate=True)) for number in numbers]  # type: ignore[misc]
    for number, answer in zip(numbers, answers, strict=True):
        if answer == "requested":
            click.echo(f"Task {number} runs: its worker was asked to stop it.")
    _report([a is not None for a in answers], "cancelled", "has ended already", numbers)


@main.command()
@click.argument("queue")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
def purge(queue: str, yes: bool, url: str | None, app_path: str | None) -> None:
    """Delete all waiting tasks of a queue."""
    with Place(url, app_path).session() as session:
        _check_queue(session, queue)
        counts = {row.queue: row.ready + row.scheduled + row.parked for row in results.queues(session)}
        if not yes:
            click.confirm(f"Delete {_count(counts.get(queue, 0), 'waiting task')} of queue {queue!r}?", abort=True)
        total = 0
        while gone := session.run(lambda t: tasks.purge(t, queue)):
            total += gone
    click.echo(f"{_count(total, 'task')} deleted.")


@main.command()
@database_options
def prune(url: str | None, app_path: str | None) -> None:
    """Delete results and failures that have been kept long enough."""
    place = Place(url, app_path)
    app = place.app()
    try:
        with app.database.session() as session:
            total = prune_now(session, app.settings, batches=1_000_000)
    finally:
        app.close()
    click.echo(f"{_count(total, 'finished task')} deleted.")


@main.command()
@database_options
@json_option
@click.option("--max-age", type=click.FloatRange(0), default=300.0, help="Seconds that a ready task may wait.")
def health(url: str | None, app_path: str | None, as_json: bool, max_age: float) -> None:
    """Check for monitoring: exit code 1 when a queue is not served or waits too long."""
    with Place(url, app_path).session() as session:
        alive = [worker for worker in workers.listing(session) if worker.lease_left > 0]
        rows = results.queues(session)
    served = {queue for worker in alive for queue in worker.queues}
    now = datetime.now(UTC)
    problems = [f"queue {row.queue}: no worker serves it" for row in rows if row.queue not in served and row.ready]
    problems += [
        f"queue {row.queue}: a task has waited for {render.span((now - row.waiting_since).total_seconds())}"
        for row in rows
        if row.waiting_since is not None and (now - row.waiting_since).total_seconds() > max_age
    ]
    if not alive:
        problems.append("no worker is alive")
    if as_json:
        render.as_json({"healthy": not problems, "problems": problems, "workers": len(alive)})
    else:
        click.echo("\n".join(problems) or f"healthy: {_count(len(alive), 'worker')}")
    sys.exit(1 if problems else 0)


def _json_argument(text: str, kind: type, what: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{what} {text!r} is not JSON: {error}.") from None
    if not isinstance(value, kind):
        raise ConfigurationError(f"{what} {text!r} must be a JSON {'list' if kind is list else 'object'}.")
    return value


@main.command()
@click.argument("name")
@click.option("--args", "args_text", default="[]", metavar="JSON", help="Positional arguments, a list.")
@click.option("--kwargs", "kwargs_text", default="{}", metavar="JSON", help="Keyword arguments, an object.")
@click.option("--queue", help="The queue; default: the task's or the app's.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--countdown", type=float, help="Seconds to wait before it may start.")
@click.option("--task-id", help="An id of your own; one id is enqueued once.")
@database_options
def call(
    name: str, args_text: str, kwargs_text: str, queue: str | None, priority: int | None, countdown: float | None,
    task_id: str | None, url: str | None, app_path: str | None,
) -> None:  # fmt: skip
    """Enqueue a task by its name and print its id."""
    args = _json_argument(args_text, list, "--args")
    kwargs = _json_argument(kwargs_text, dict, "--kwargs")
    given = {"queue": queue, "priority": priority, "countdown": countdown, "task_id": task_id}
    app = Place(url, app_path).app()
    try:
        result = app.send_task(name, args, kwargs, **{k: v for k, v in given.items() if v is not None})
    finally:
        app.close()
    if result.duplicate:
        click.echo(f"task_id {result.id!r} was enqueued before; nothing was enqueued.", err=True)
    click.echo(result.id)


@main.command("result")
@click.argument("task_id", metavar="ID")
@click.option("--timeout", type=click.FloatRange(0), default=0.0, help="Seconds to wait for it.")
@database_options
def show_result(task_id: str, timeout: float, url: str | None, app_path: str | None) -> None:
    """Print the result of a task as JSON."""
    app = Place(url, app_path).app()
    try:
        with app.database.session() as session:
            number = _find(session, task_id)
        result = app.AsyncResult(number)
        try:
            value = result.get(timeout=timeout)
        except FBTasksError:
            raise
        except Exception as error:
            raise FBTasksError(f"task {task_id} failed: {type(error).__name__}: {error}") from error
    finally:
        app.close()
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


@main.command()
@database_options
def migrate(url: str | None, app_path: str | None) -> None:
    """Create or update the tables of the queue."""
    app = Place(url, app_path).app()
    try:
        applied = app.migrate()
    finally:
        app.close()
    versions = ", ".join(map(str, applied))
    click.echo(f"{app.settings.url}: " + (f"migrated to version {versions}." if applied else "up to date."))


@main.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
def adopt(yes: bool, url: str | None, app_path: str | None) -> None:
    """Let workers run the tasks of a restored or moved database."""
    with Place(url, app_path).session() as session:
        try:
            schema.check_identity(session)
        except ForeignDatabaseError as error:
            click.echo(str(error))
            if not yes:
                click.confirm("Adopt it?", abort=True)
            schema.adopt(session)
            click.echo("Adopted.")
        else:
            click.echo("Nothing to adopt: the database is the one it was.")


@main.command()
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@click.option("--revoke", is_flag=True, help="Take the role from them instead.")
@database_options
def grant(role: str, users: tuple[str, ...], revoke: bool, url: str | None, app_path: str | None) -> None:
    """Let users of a server enqueue, work or operate, and no more than that."""
    names = [grants.user_name(user) for user in users]
    change = grants.take if revoke else grants.give
    with Place(url, app_path).session() as session:
        changed = [change(session, role, name) for name in names]
        embedded = session.url.embedded
        strangers = [] if embedded else grants.unknown_users(session, names)
    for name, done in zip(names, changed, strict=True):
        if revoke:
            click.echo(f"{name} has lost the role {role}." if done else f"{name} did not have the role {role}.")
        else:
            click.echo(f"{name} has the role {role} now." if done else f"{name} had the role {role}; it is up to date.")
    for name in strangers:
        click.echo(f"Note: the server has no user {name} yet. In SQL: CREATE USER {name} PASSWORD '...'", err=True)
    if embedded:
        click.echo(
            "The embedded engine asks for no password: there the permissions of the file decide, and roles have an "
            "effect when a server opens the database.",
            err=True,
        )


@main.command()
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
    from fbtasks.bench import measures, run  # here: no other command needs them
    from fbtasks.bench.figures import Figures
    from fbtasks.bench.place import Place as BenchPlace

    scale = measures.QUICK if quick else measures.FULL
    parts = run.chosen_parts([name.strip() for name in (only or "").split(",") if name.strip()], scale, large=large)
    figures = Figures()
    with stopped_by_signals(), BenchPlace(Place(url, app_path).app().settings.url) as place:
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
