"""The commands for the database itself: ``migrate``, ``adopt``, ``grant``."""

from __future__ import annotations

import click

from fbtasks.choices import ROLES
from fbtasks.cli.options import DatabaseArgs, announce, database_options
from fbtasks.errors import ForeignDatabaseError
from fbtasks.store import grants
from fbtasks.store import migrate as schema


@click.command()
@database_options
def migrate(url: str | None, app_path: str | None) -> None:
    """Create or update the tables of the queue."""
    app = announce(DatabaseArgs(url, app_path).app())
    try:
        applied = app.migrate()
    finally:
        app.close()
    versions = ", ".join(map(str, applied))
    click.echo(f"{app.settings.url}: " + (f"migrated to version {versions}." if applied else "up to date."))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@database_options
def adopt(yes: bool, url: str | None, app_path: str | None) -> None:
    """Let workers run the tasks of a restored or moved database."""
    with DatabaseArgs(url, app_path).session() as session:
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


@click.command()
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@click.option("--revoke", is_flag=True, help="Take the role from them instead.")
@database_options
def grant(role: str, users: tuple[str, ...], revoke: bool, url: str | None, app_path: str | None) -> None:
    """Let users of a server enqueue, work or operate, and no more than that."""
    names = [grants.user_name(user) for user in users]
    change = grants.take if revoke else grants.give
    with DatabaseArgs(url, app_path).session() as session:
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
