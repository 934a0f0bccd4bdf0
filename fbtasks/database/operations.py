"""Operations on the database itself: adopt, grant and revoke roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fbtasks.database import features, grants
from fbtasks.database import migrate as schema
from fbtasks.database.database import Database
from fbtasks.database.grants import ROLES as ROLES
from fbtasks.firebird.session import READ, Session


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The effect of a change of a role for one user."""

    user: str
    """The name as the server has it."""
    changed: bool
    """False when the user had the role already, or did not have it."""


def find_copy(database: Database) -> str | None:
    """Returns what makes the database a restored or moved copy, whose tasks no worker runs. None: it is none."""
    with database.session() as session, session.transaction(READ) as transaction:
        return schema.copied(transaction, session.url)


def adopt(database: Database) -> None:
    """Declares that this database, as it is and where it is, runs its tasks."""
    with database.session() as session:
        schema.adopt(session)


def grant(database: Database, role: str, users: Iterable[str]) -> tuple[list[RoleChange], list[str]]:
    """Grants *users* of a server one of the roles "producer", "worker" and "operator".

    Returns what it did for each, and those that the server does not know yet.

    Raises :class:`ConfigurationError` for a role or a name that cannot be one, before anything is changed, and
    :class:`AuthenticationError` when the app's own user may not grant it.
    """

    def change(session: Session, role: str, user: str) -> bool:
        return grants.grant(session, role, user, features.parts(database.features))

    return _change_role(database, change, role, users)


def revoke(database: Database, role: str, users: Iterable[str]) -> tuple[list[RoleChange], list[str]]:
    """Takes a role from *users*; their connections keep it until they end. Raises as :func:`grant` does."""
    return _change_role(database, grants.revoke, role, users)


def _change_role(
    database: Database, change: Callable[[Session, str, str], bool], role: str, users: Iterable[str]
) -> tuple[list[RoleChange], list[str]]:
    names = [grants.user_name(user) for user in users]
    with database.session() as session:
        changes = [RoleChange(name, change(session, role, name)) for name in names]
        unknown = [] if database.url.embedded else grants.unknown_users(session, names)
    return changes, unknown
