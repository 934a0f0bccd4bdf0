"""The commands of ``fbtasks subscriptions``, and ``fbtasks inspect sources``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import click

from fbtasks.cli.options import DatabaseArgs, Seconds, json_option, with_database
from fbtasks.cli.output import answer, answer_changed, say, show_records
from fbtasks.cli.render import raise_problems
from fbtasks.features.sources import managing as service
from fbtasks.features.sources import operations as source_service
from fbtasks.features.sources import showing
from fbtasks.features.sources.managing import Connection
from fbtasks.queue.operations.queues import list_queues
from fbtasks.system.showing import count

_names = click.argument("names", metavar="TASK...", nargs=-1, required=True)
_wait = click.option("--wait", type=Seconds(0), default=0.0, help="Seconds to wait for older connections to end.")
_disconnect = click.option("--disconnect", is_flag=True, help="Then end those that are left.")


@click.command()
@with_database
@json_option
@_wait
@_disconnect
@click.option("--existing", is_flag=True, help="Note the rows that the tables of new subscriptions have already.")
def apply(database: DatabaseArgs, as_json: bool, wait: float, disconnect: bool, existing: bool) -> None:
    """Bring triggers, handlers of events and polls in line with the code of an app."""
    _need_app(database, "apply")
    with database.opened() as app:
        done = service.apply(
            app.database,
            app.name,
            app.features["sources"].feeds(),
            wait=wait,
            disconnect=disconnect,
            with_existing=existing,
        )
        app.database.use(service.hand_on_events)
    lines = showing.steps(done.changes, done=True) or [_nothing_to_do(done)]
    lines += [f"{count(number, 'row')} of {name} noted." for name, number in done.existing.items()]
    if existing and (former := _former(done)):
        lines.append(
            f"No existing rows of {', '.join(former)} were noted: that is done for new subscriptions. To note them: "
            f"fbtasks subscriptions backfill {' '.join(former)}"
        )
    answer(done, "\n".join(lines), as_json=as_json)
    if not as_json:
        _tell_older(done.unsettled, "To wait for it: --wait SECONDS; to end it: --disconnect.")
    raise_problems(done.problems, as_json=as_json)
    sys.exit(1 if done.unsettled and (wait or disconnect) else 0)


@click.command()
@with_database
@json_option
@click.option("--check", is_flag=True, help="End with 1 when it would do something.")
def diff(database: DatabaseArgs, as_json: bool, check: bool) -> None:
    """Show what apply would do."""
    _need_app(database, "diff")
    with database.opened() as app:
        found = service.diff(app.database, app.name, app.features["sources"].feeds())
        older = app.database.use(source_service.older_writers)
    _tell_older(older)
    answer(found, "\n".join(showing.steps(found.changes, done=False)) or _nothing_to_do(found), as_json=as_json)
    raise_problems(found.problems, as_json=as_json)
    sys.exit(1 if check and found.changes else 0)


def _tell_older(found: Sequence[Connection], remedy: str = showing.END_THEM) -> None:
    if found:
        say(showing.older(found, remedy), err=True)


def _former(done: service.Applied) -> Sequence[str]:
    """Returns the tasks called for changes whose subscriptions, or those in whose place they are, were there before."""
    return [step.name for step in done.steps if step.kind == "change" and step.action not in ("create", "orphan")]


def _nothing_to_do(found: service.Applied) -> str:
    return "Nothing else to do." if found.problems else "Nothing to do: the database has what the code says."


def _need_app(database: DatabaseArgs, what: str) -> None:
    if not database.app_path:
        raise click.UsageError(f"{what} compares the code of an app with the database: give -A MODULE.")


@click.command()
@with_database
@json_option
def list(database: DatabaseArgs, as_json: bool) -> None:
    """All subscriptions, and what is wrong with them."""
    with database.opened() as app:
        rows = app.database.use(source_service.list_sources)
        older = app.database.use(source_service.older_writers)
    _tell_older(older)
    show_records(rows, showing.sources, as_json=as_json)


@click.command()
@_names
@click.option("--silent", is_flag=True, help="Note nothing meanwhile: what happens is not made up for.")
@with_database
@json_option
def pause(database: DatabaseArgs, names: tuple[str, ...], silent: bool, as_json: bool) -> None:
    """Keep what comes, and give out nothing."""
    with database.opened() as app:
        changed = service.pause(app.database, names, silent=silent)
    what, already = ("nothing is noted", "silent") if silent else ("nothing is given out", "paused")
    remedy = f"fbtasks subscriptions resume {shlex.join(changed)}"
    answer_changed(changed, f"{what} until: {remedy}", f"{already} already", as_json=as_json)


@click.command()
@_names
@with_database
@json_option
def resume(database: DatabaseArgs, names: tuple[str, ...], as_json: bool) -> None:
    """Go on after a pause."""
    with database.opened() as app:
        changed = service.resume(app.database, names)
    answer_changed(changed, "resumed.", "not paused", as_json=as_json)


@click.command()
@_names
@with_database
@json_option
@_wait
@_disconnect
def backfill(database: DatabaseArgs, names: tuple[str, ...], as_json: bool, wait: float, disconnect: bool) -> None:
    """Note the rows that a table has already, as if they were inserted now."""
    with database.opened() as app:
        noted = service.backfill(app.database, names, wait=wait, disconnect=disconnect)
    lines = [f"{count(number, 'row')} of {name} noted." for name, number in noted.items()]
    answer({"noted": noted}, "\n".join(lines), as_json=as_json)


@click.command()
@_names
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@with_database
@json_option
def drop(database: DatabaseArgs, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete subscriptions with what they have noted."""
    with database.opened() as app:
        service.check_names(app.database, names)
        if not yes:
            click.confirm(f"Delete {', '.join(names)}, with all that waits?", abort=True, err=as_json)
        dropped = service.drop(app.database, names)
        code = {feed.name for feed in app.features["sources"].feeds()} if database.app_path else set()
    lines = []
    for each in dropped:
        lines.append(f"{each.name} ({each.id}): " + ("gone." if each.gone else "notes nothing more, and goes later."))
        if each.tasks:
            lines.append("  Tasks of it run. When they have ended, drop it again.")
        if each.connections:
            lines.append("  These may still fire its trigger. When they have ended, drop it again:")
            lines += showing.connections(each.connections)
    answer({"dropped": dropped}, "\n".join(lines), as_json=as_json)
    for name in sorted(code & {each.name for each in dropped}):
        say(f"Note: the app still defines {name}, and the next apply makes it anew.", err=True)


@click.command()
@with_database
@json_option
def sources(database: DatabaseArgs, as_json: bool) -> None:
    """What feeds tasks from the database, and what waits, runs and stands still."""
    with database.opened() as app:
        rows = app.database.use(source_service.inspect_sources)
        queues = {} if as_json else {row.queue: row for row in list_queues(app.database)}
        older = app.database.use(source_service.older_writers)
    _tell_older(older)
    show_records(rows, lambda found: showing.loaded_sources(found, queues), as_json=as_json)
