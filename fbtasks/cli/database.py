"""The commands for the database itself: ``migrate``, ``backup``, ``restore``, ``adopt``, ``grant``, ``uninstall``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from fbtasks import FBTasks, timing
from fbtasks.cli.options import Command, announce, app_of_database, command, yes_option
from fbtasks.cli.output import say
from fbtasks.cli.render import raise_problems
from fbtasks.database import backup as copies
from fbtasks.database import operations as service
from fbtasks.database.migrate import Applied, NoQueue, latest_version
from fbtasks.database.review import uninstall as removal
from fbtasks.errors import ConfigurationError, SchemaError
from fbtasks.feature import Deployed
from fbtasks.system.showing import count, size
from fbtasks.system.threads import leaving
from fbtasks.url import DatabaseURL, is_named_by_option
from fbtasks.version import VERSION

EVERY: Final = 2.0
"""Seconds between two lines that tell how far a backup or a restore is."""


@command
@click.option("--sql", is_flag=True, help="Print what it would run on the tables and packages, and change nothing.")
def migrate(command: Command, sql: bool) -> None:
    """Create or update the tables of the queue; with -A, also what the app defines beside its tasks."""
    if sql:
        _print_script(command)
        return
    app = announce(command.app)
    done = app.database.migrate()
    brought = {each.brings_in or each.name: Deployed() for each in app.features.which("deploy")}
    if command.code:
        app.load()
        with closing(app.database.open()) as session:
            brought |= app.features.deploy(session)
    text = f"{app.settings.url}: {_done(done)}."
    text = " ".join([text, *(each.summary for each in brought.values() if each.summary)])
    lines = [line for each in brought.values() if not each.summary for line in each.lines]
    record = {
        "url": str(app.settings.url),
        "applied": done.versions,
        "version": latest_version(),
        "features": done.features,
        "packages": done.packages,
    }
    changes = {name: each.changes for name, each in brought.items()}
    command.answer(record | changes, "\n".join([text, *lines]))
    problems = {name: said for each in brought.values() for name, said in each.problems.items()}
    raise_problems(problems, as_json=command.as_json)


def _print_script(command: Command) -> None:
    script, url = command.database.script(), command.app.settings.url
    if not script.transactions:
        command.answer({"url": str(url), "statements": []}, f"-- {url}: up to date, nothing to run.")
        return
    text = script.text(f"fbtasks {VERSION}: what 'fbtasks migrate' would run in {url}")
    command.answer({"url": str(url), "statements": script.statements}, text)
    if command.code:
        beside = "Not in the script: what the app defines beside its tasks."
        say(f"{beside} Afterwards run: fbtasks migrate -A MODULE", err=True)


def _done(done: Applied) -> str:
    versions = ", ".join(map(str, done.versions))
    found = sorted(done.features.items())
    if done.versions:
        named = ", ".join(f"{name} {version}" for name, version in found)
        return f"migrated to version {versions}" + (f", with the features {named}" if found else "")
    named = ", ".join(f"{name} to version {version}" for name, version in found)
    if found:
        return f"migrated the feature{'s' if len(found) > 1 else ''} {named}"
    return "made the packages anew, and all else is up to date" if done.packages else "up to date"


@command
@click.argument("file")
def backup(command: Command, file: str) -> None:
    """Copy the database into a file of this machine, while workers run.

    FILE is new; shop.fbk, say. It gets what is committed when the backup begins, in the format of Firebird's gbak. A
    database on a server too is backed up into a file of the machine on which this command runs.
    """
    url, path = command.app.settings.url, Path(file).absolute()
    progress = _progress(f"Backing up {url} to {path}", lambda done: f"{size(done)} written")
    with leaving():
        number = copies.back_up(url, path, progress)
    command.answer({"url": str(url), "file": str(path), "bytes": number}, f"Backed up to {path}: {size(number)}.")


@command
@click.argument("file")
@click.argument("path", required=False)
@click.option("--adopt", "adopts", is_flag=True, help="Adopt the new database: workers then run its tasks.")
def restore(command: Command, file: str, path: str | None, adopts: bool) -> None:
    """Make a database of a backup; an existing one is never overwritten.

    FILE is a backup on this machine, made by fbtasks backup or by Firebird's gbak. The new database is the one of the
    URL, or the file PATH.
    """
    source = Path(file).absolute()
    with closing(command.app if path is None else _app_at(command, path)) as app:
        url = app.settings.url
        with leaving():
            number = copies.restore(url, source, _progress(f"Restoring {url} from {source}", _read_of(source)))
        text = f"Restored {url}: {size(number)} read."
        if adopts:
            say(text, err=True)
            service.adopt(app.database)
            text = "Adopted: workers run its tasks."
        else:
            text += f"\nIt is a copy, and no worker runs its tasks until it is adopted: fbtasks adopt{url.option}"
    command.answer({"url": str(url), "file": str(source), "bytes": number, "adopted": adopts}, text)


def _app_at(command: Command, path: str) -> FBTasks:
    """Returns an app for a file of the embedded engine."""
    if command.code or is_named_by_option():
        raise ConfigurationError("give one of PATH, --url and -A: each names the database.")
    if "://" in path:
        raise ConfigurationError("PATH is a file of the embedded engine, and a URL is given by --url.")
    app = app_of_database(DatabaseURL(str(Path(path).absolute())))
    app.database.maintains = True
    return app


def _progress(begun: str, line: Callable[[int], str]) -> Callable[[int], None]:
    """Returns a function that prints what has *begun*, and every few seconds a *line* about a number of bytes."""
    due = 0.0

    def tell(number: int) -> None:
        nonlocal due
        if (now := timing.monotonic()) >= due:
            say(line(number) if due else begun, err=True)
            due = now + EVERY

    return tell


def _read_of(file: Path) -> Callable[[int], str]:
    """Returns a function that says how much of a backup has been read."""
    total = file.stat().st_size if file.is_file() else 0

    def line(number: int) -> str:
        if not total:  # a pipe
            return f"{size(number)} read"
        return f"{size(number)} of {size(total)} read" + ("; the engine makes the indexes" if number == total else "")

    return line


@command
@click.option("--promoted", is_flag=True, help="It is a promoted standby, even if it looks like the primary.")
@yes_option
def adopt(command: Command, promoted: bool, yes: bool) -> None:
    """Let workers run the tasks of a restored or moved database."""
    copy = service.find_copy(command.database)
    if copy is None and promoted:
        copy = f"{command.app.settings.url} is a standby that was promoted."
    if copy is not None:
        say(copy, err=command.as_json)
        if not yes:
            command.confirm("Adopt it?")
        service.adopt(command.database)
    text = "Nothing to adopt: the database is the one it was." if copy is None else "Adopted."
    command.answer({"adopted": copy is not None}, text)


@command
@click.argument("role", type=click.Choice(list(service.ROLES)))
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@click.option("--revoke", is_flag=True, help="Take the role from them instead.")
def grant(command: Command, role: str, users: tuple[str, ...], revoke: bool) -> None:
    """Let users of a server enqueue, work, operate or look, and no more than that."""
    changes, unknown = (service.revoke if revoke else service.grant)(command.database, role, users)
    if revoke:
        done, before = f"has lost the role {role}.", f"did not have the role {role}."
    else:
        done, before = f"has the role {role} now.", f"had the role {role}; it is up to date."
    text = "\n".join(f"{change.user} {done if change.changed else before}" for change in changes)
    command.answer({"role": role, "revoked": revoke, "users": changes}, text)
    for name in unknown:
        say(f"Note: the server has no user {name} yet. In SQL: CREATE USER {name} PASSWORD '...'", err=True)
    if command.app.settings.url.embedded:
        say(
            "The embedded engine asks for no password: there the permissions of the file decide, and roles have an "
            "effect when a server opens the database.",
            err=True,
        )


@command
@click.option("--discard", is_flag=True, help="Also while tasks have not ended: they are lost.")
@yes_option
def uninstall(command: Command, discard: bool, yes: bool) -> None:
    """Drop the tables and packages of the queue, with all results; the tables of the application stay."""
    try:
        found = removal.look(command.database)
    except NoQueue:
        nothing = f"Nothing to uninstall: {command.app.settings.url} has no queue."
        command.answer({"dropped": {}, "discarded": {}}, nothing)
        return
    if found.unfinished and not discard:
        left = ", ".join(count(many, noun) for noun, many in found.unfinished.items())
        raise SchemaError(
            f"{command.app.settings.url} has what was not done yet: {left}. Let workers do it, or drop it as well: "
            "--discard. Nothing was dropped."
        )
    if not yes:
        for kind, names in found.names.items():
            say(f"{kind}: {', '.join(names)}", err=True)
        command.confirm(f"Drop all of this, with {_lost(found)}?")
    removal.uninstall(command.database, found)
    total = sum(map(len, found.names.values()))
    text = f"{command.app.settings.url}: {count(total, 'object')} dropped. All else is as it was."
    command.answer({"dropped": found.names, "discarded": found.unfinished}, text)


def _lost(found: removal.Installed) -> str:
    what = [count(many, noun) for noun, many in found.unfinished.items()]
    return ", ".join([*what, "all results and failures"])
