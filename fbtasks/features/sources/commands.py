"""The commands of ``fbtasks subscriptions``, and ``fbtasks inspect sources``."""

from __future__ import annotations

import sys
from collections.abc import Collection

import click

from fbtasks.cli.options import Command, Seconds, command, yes_option
from fbtasks.cli.output import say
from fbtasks.cli.render import raise_problems
from fbtasks.features.sources import managing as service
from fbtasks.features.sources import operations as source_service
from fbtasks.features.sources import showing
from fbtasks.features.sources.feeds import Feed
from fbtasks.queue.operations.queues import list_queues
from fbtasks.queue.operations.workers import list_workers
from fbtasks.system.showing import command_line, count

_names = click.argument("names", metavar="TASK...", nargs=-1, required=True)
_wait = click.option("--wait", type=Seconds(0), default=0.0, help="Seconds to wait for older connections to end.")
_disconnect = click.option("--disconnect", is_flag=True, help="Then end those that are left.")


def _feeds(command: Command) -> Collection[Feed]:
    """Returns what the code of the app says; nothing without -A."""
    return command.app.features["sources"].feeds()  # type: ignore[no-any-return]


@command
@_wait
@_disconnect
@click.option("--existing", is_flag=True, help="Note the rows that the tables of new subscriptions have already.")
def apply(command: Command, wait: float, disconnect: bool, existing: bool) -> None:
    """Bring triggers, handlers of events and polls in line with the code of an app."""
    _need_app(command, "apply")
    done = service.apply(
        command.database,
        command.app.name,
        _feeds(command),
        wait=wait,
        disconnect=disconnect,
        with_existing=existing,
    )
    command.database.use(service.hand_on_events)
    lines = showing.steps(done.changes, done=True) or [_nothing_to_do(done)]
    lines += [f"{count(number, 'row')} of {name} noted." for name, number in done.existing.items()]
    # The subscriptions, or those in whose place they are, were there before.
    former = [step.name for step in done.steps if step.kind == "change" and step.action not in ("create", "orphan")]
    if existing and former:
        lines.append(
            f"No existing rows of {', '.join(former)} were noted: that is done for new subscriptions. To note them: "
            f"{command_line('fbtasks subscriptions backfill {}', former)}"
        )
    command.answer(done, "\n".join(lines))
    if done.unsettled and not command.as_json:
        say(showing.older(done.unsettled, showing.WAIT, list_workers(command.database)), err=True)
    raise_problems(done.problems, as_json=command.as_json)
    sys.exit(1 if done.unsettled and (wait or disconnect) else 0)


@command
@click.option("--check", is_flag=True, help="End with 1 when it would do something.")
def diff(command: Command, check: bool) -> None:
    """Show what apply would do."""
    _need_app(command, "diff")
    found = service.diff(command.database, command.app.name, _feeds(command))
    _tell_older(command)
    command.answer(found, "\n".join(showing.steps(found.changes, done=False)) or _nothing_to_do(found))
    raise_problems(found.problems, as_json=command.as_json)
    sys.exit(1 if check and found.changes else 0)


def _tell_older(command: Command) -> None:
    if found := command.database.use(source_service.older_writers):
        say(showing.older(found, showing.END_THEM, list_workers(command.database)), err=True)


def _nothing_to_do(found: service.Applied) -> str:
    return "Nothing else to do." if found.problems else "Nothing to do: the database has what the code says."


def _need_app(command: Command, what: str) -> None:
    if command.code is None:
        raise click.UsageError(f"{what} compares the code of an app with the database: give -A MODULE.")


@command
def list(command: Command) -> None:
    """All subscriptions, and what is wrong with them."""
    rows = command.database.use(lambda session: source_service.list_sources(session, _feeds(command)))
    _tell_older(command)
    command.show(rows, showing.sources)


@command
@_names
@click.option("--silent", is_flag=True, help="Note nothing meanwhile: what happens is not made up for.")
def pause(command: Command, names: tuple[str, ...], silent: bool) -> None:
    """Keep what comes, and give out nothing."""
    changed = service.pause(command.database, names, silent=silent)
    what, already = ("nothing is noted", "silent") if silent else ("nothing is given out", "paused")
    remedy = command_line("fbtasks subscriptions resume {}", changed)
    command.answer_changed(changed, f"{what} until: {remedy}", f"{already} already")


@command
@_names
def resume(command: Command, names: tuple[str, ...]) -> None:
    """Go on after a pause."""
    changed = service.resume(command.database, names)
    command.answer_changed(changed, "resumed.", "not paused")


@command
@_names
@_wait
@_disconnect
def backfill(command: Command, names: tuple[str, ...], wait: float, disconnect: bool) -> None:
    """Note the rows that a table has already, as if they were inserted now."""
    noted = service.backfill(command.database, names, wait=wait, disconnect=disconnect)
    lines = [f"{count(number, 'row')} of {name} noted." for name, number in noted.items()]
    command.answer({"noted": noted}, "\n".join(lines))


@command
@_names
@yes_option
def drop(command: Command, names: tuple[str, ...], yes: bool) -> None:
    """Delete subscriptions with what they have noted."""
    service.check_names(command.database, names)
    if not yes:
        command.confirm(f"Delete {', '.join(names)}, with all that waits?")
    dropped = service.drop(command.database, names)
    code = {feed.name for feed in _feeds(command)}
    lines = []
    for each in dropped:
        lines.append(f"{each.name} ({each.id}): " + ("gone." if each.gone else "notes nothing more, and goes later."))
        if each.tasks:
            lines.append("  Tasks of it run. When they have ended, drop it again.")
    if still := {connection.id: connection for each in dropped for connection in each.connections}:
        lines.append("Connections that may still fire a trigger of these. When they have ended, drop them again:")
        lines += showing.connections(still.values(), list_workers(command.database))
    command.answer({"dropped": dropped}, "\n".join(lines))
    for name in sorted(code & {each.name for each in dropped}):
        say(f"Note: the app still defines {name}, and the next apply makes it anew.", err=True)


@command
def sources(command: Command) -> None:
    """What feeds tasks from the database, and what waits, runs and stands still."""
    rows = command.database.use(lambda session: source_service.inspect_sources(session, _feeds(command)))
    queues = {} if command.as_json else {row.queue: row for row in list_queues(command.database)}
    _tell_older(command)
    command.show(rows, lambda found: showing.loaded_sources(found, queues))
