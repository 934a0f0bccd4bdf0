"""The rights of users of a server: four roles, the rights of each, and the users that have them.

The rights of a role are listed in ``grants.sql``. A role is brought in line with the list: a right that it lacks is
granted, and one that an older release granted and this one does not is revoked. Rights on other tables stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from fbtasks.database.schema import Part, Right, grants, ours
from fbtasks.errors import AuthenticationError, ConfigurationError, DatabaseError, StatementRefused
from fbtasks.firebird.session import Session

ROLES: Final = {
    "producer": "FBTASKS_PRODUCER",
    "worker": "FBTASKS_WORKER",
    "operator": "FBTASKS_OPERATOR",
    "viewer": "FBTASKS_VIEWER",
}
"""The roles of the database by the names that people give."""
_LETTERS: Final = {
    "X": ("EXECUTE", "PACKAGE"),
    "S": ("SELECT", "TABLE"),
    "I": ("INSERT", "TABLE"),
    "U": ("UPDATE", "TABLE"),
    "D": ("DELETE", "TABLE"),
}
"""Privileges, each with its kind of object, by the letters of RDB$USER_PRIVILEGES."""
_REGULAR: Final = re.compile(r"[A-Za-z][A-Za-z0-9_$]*")
_LONGEST: Final = 63


def user_name(text: str) -> str:
    """Returns the user that the server takes *text* for at a login.

    Plain names are in capitals there, names with other characters or in double quotes as they are written. Raises
    :class:`ConfigurationError` when no user can have that name.
    """
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    name = text[1:-1].replace('""', '"') if quoted else text.upper() if _REGULAR.fullmatch(text) else text
    if not 0 < len(name) <= _LONGEST or not name.isprintable() or name != name.strip():
        raise ConfigurationError(
            f"{text!r:.100} cannot be the name of a user: it needs 1 to {_LONGEST} printable characters, without "
            "spaces at its ends. Give the name as it is in the URL."
        )
    if name == "PUBLIC":
        raise ConfigurationError("PUBLIC is everybody, and a role is for users that are named. Name them.")
    return name


def role_name(role: str) -> str:
    """Returns the role's name in the database. Raises :class:`ConfigurationError` for one that does not exist."""
    if role not in ROLES:
        raise ConfigurationError(f"unknown role {role!r}. Known roles: {', '.join(ROLES)}.")
    return ROLES[role]


def grant(session: Session, role: str, user: str, parts: Iterable[Part] = ()) -> bool:
    """Grants the role to *user* (a name as :func:`user_name` returns it); the roles are made or brought up to date.

    *parts* are as in :func:`refresh`.

    It is a default role: in force from the user's next login, without being named in the URL. Returns False when the
    user had it. Raises :class:`AuthenticationError` when the session's own user may not grant it.
    """
    name = role_name(role)
    _make_roles(session)
    refresh(session, parts)
    if session.read("role_member", name, user) == [(True,)]:
        return False
    _change(session, f"GRANT DEFAULT {name} TO USER {_quoted(user)}")
    return True


def revoke(session: Session, role: str, user: str) -> bool:
    """Revokes the role from *user*, whose connections keep it until they end. Returns False when the user lacked it."""
    name = role_name(role)
    if not session.read("role_member", name, user):
        return False
    _change(session, f"REVOKE {name} FROM USER {_quoted(user)}")
    return True


def refresh(session: Session, parts: Iterable[Part] = ()) -> int:
    """Brings the roles that exist in line with this release. Returns the number of rights that changed.

    So it does with what *parts* have, features of other distributions. Rights on what others have stay as they are.
    """
    statements = changes(session, parts)
    for statement in statements:
        _change(session, statement)
    return len(statements)


def changes(session: Session, parts: Iterable[Part] = (), made: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Returns the statements that bring the roles in line, when objects are *made* beside those that are there.

    Of each its kind, PACKAGE or TABLE, and its name.
    """
    roles = _roles(session)
    if not roles:
        return []
    objects = [*session.read("role_objects"), *made]
    wanted, known = set(), set()
    for right in _possible(objects, (*ours(), *(each for each in parts if not each.is_ours))):
        known.add(right.name)
        if right.role in roles:
            wanted.add(right)
    there = {
        Right(*_LETTERS[letter], name, role)
        for role, letter, name in session.read("role_privileges")
        if role in roles and letter in ("XS" if name.startswith("QUEUE_") else _LETTERS) and name in known
    }
    return [*(right.revoke for right in sorted(there - wanted)), *(right.grant for right in sorted(wanted - there))]


def unknown_users(session: Session, users: Iterable[str]) -> list[str]:
    """Returns those of *users* that the server does not know, as far as the session's own user can tell."""
    try:
        known = {row[0] for row in session.read("users")}
    except DatabaseError:  # the embedded engine may have no users at all
        return []
    return [user for user in users if user not in known] if len(known) > 1 else []


def _make_roles(session: Session) -> None:
    """Makes all at once: any user who may make roles could make, and then hold, one that does not exist."""
    for name in sorted(set(ROLES.values()) - _roles(session)):
        try:
            _change(session, f"CREATE ROLE {name}")
        except AuthenticationError:
            if name not in _roles(session):  # else another user made it at the same moment
                raise


def _roles(session: Session) -> set[str]:
    return {row[0] for row in session.read("roles")} & set(ROLES.values())


def _possible(objects: Iterable[tuple[str, str]], parts: Iterable[Part]) -> Iterator[Right]:
    """Yields the rights of each ``grants.sql`` for *objects*."""
    named: dict[tuple[str, str], list[str]] = {}
    for kind, name in objects:
        base = re.sub(r"_\d+$", "", name) if kind == "PACKAGE" else name
        named.setdefault((kind, base), []).append(name)
    for line in grants(*parts):
        for name in named.get((line.kind, line.name), ()):
            yield line._replace(name=name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _change(session: Session, statement: str) -> None:
    try:
        session.run(lambda t: t.script(statement))
    except StatementRefused as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise AuthenticationError(
            f"{session.url}: the user may not do: {statement} ({reason}). Run the command as the owner of the database "
            "or as SYSDBA."
        ) from error
