"""The commands for the database itself: ``migrate``, ``adopt``, ``grant``."""

from __future__ import annotations

import click

from fbtasks.choices import ROLES
from fbtasks.cli import render
from fbtasks.cli.escapes import say
from fbtasks.cli.options import DatabaseArgs, announce, database_options, json_option
from fbtasks.errors import ForeignDatabaseError
from fbtasks.firebird.session import Session
from fbtasks.store import grants
from fbtasks.store import migrate as schema


@click.command()
@database_options
@json_option
def migrate(url: str | None, app_path: str | None, as_json: bool) -> None:
    """Create or update the tables of the queue."""
    app = announce(DatabaseArgs(url, app_path).app())
    try:
        applied = app.migrate()
    finally:
        app.close()
    if as_json:
        render.as_json({"url": str(app.settings.url), "applied": applied, "version": schema.latest_version()})
    else:
        versions = ", ".join(map(str, applied))
        say(f"{app.settings.url}: " + (f"migrated to version {versions}." if applied else "up to date."))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
@json_option
def adopt(yes: bool, url: str | None, app_path: str | None, as_json: bool) -> None:
    """Let workers run the tasks of a restored or moved database."""
    with DatabaseArgs(url, app_path).session() as session:
        adopted = _adopt(session, yes, as_json)
    if as_json:
        render.as_json({"adopted": adopted})
    else:
        say("Adopted." if adopted else "Nothing to adopt: the database is the one it was.")


def _adopt(session: Session, yes: bool, quiet: bool) -> bool:
    """Adopts the database when it is another one than it was. With *quiet*, questions go to the standard error."""
    try:
        schema.check_identity(session)
    except ForeignDatabaseError as error:
        say(str(error), err=quiet)
        if not yes:
            click.confirm("Adopt it?", abort=True, err=quiet)
        schema.adopt(session)
        return True
    return False


@click.command()
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@click.option("--revoke", is_flag=True, help="Take the role from them instead.")
@database_options
@json_option
def grant(
    role: str, users: tuple[str, ...], revoke: bool, url: str | None, app_path: str | None, as_json: bool
) -> None:
    """Let users of a server enqueue, work or operate, and no more than that."""
    names = [grants.user_name(user) for user in users]
    change = grants.take if revoke else grants.give
    with DatabaseArgs(url, app_path).session() as session:
        changed = [change(session, role, name) for name in names]
        embedded = session.url.embedded
        strangers = [] if embedded else grants.unknown_users(session, names)
    if as_json:
        found = [{"user": name, "changed": done} for name, done in zip(names, changed, strict=True)]
        render.as_json({"role": role, "revoked": revoke, "users": found})
    else:
        for name, done in zip(names, changed, strict=True):
            if revoke:
                say(f"{name} has lost the role {role}." if done else f"{name} did not have the role {role}.")
            else:
                say(f"{name} has the role {role} now." if done else f"{name} had the role {role}; it is up to date.")
    for name in strangers:
        say(f"Note: the server has no user {name} yet. In SQL: CREATE USER {name} PASSWORD '...'", err=True)
    if embedded:
        say(
            "The embedded engine asks for no password: there the permissions of the file decide, and roles have an "
            "effect when a server opens the database.",
            err=True,
        )
