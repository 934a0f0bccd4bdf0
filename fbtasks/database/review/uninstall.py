"""Takes back what migrations have made: drops the objects of the queue, and nothing else of the database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from fbtasks.database import features, grants, hooks, migrate, packages
from fbtasks.database.database import Database
from fbtasks.database.packages import queries
from fbtasks.database.schema import Made, made, ours
from fbtasks.errors import ConflictError, SchemaError
from fbtasks.firebird.session import Session, Transaction
from fbtasks.firebird.signals import held_signals
from fbtasks.system.showing import command_line

_ORDER: Final = (
    "TRIGGER", "PACKAGE BODY", "PACKAGE", "VIEW", "TABLE", "FUNCTION", "EXCEPTION", "SEQUENCE", "DOMAIN", "ROLE",
)  # fmt: skip
"""Kinds of objects in the order in which they are dropped: none is used by one of a later kind."""
_NUMBERED: Final = re.compile(r"(FBTASKS_\w+)_\d+")
_SHOWN: Final = 10
"""Objects that an error names; of more it says how many."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What migrations have made in a database."""

    objects: Sequence[Made]
    """What is to be dropped, in its order."""
    unfinished: dict[str, int]
    """What would be lost that has not been done yet: how many tasks, changes and messages."""

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of the objects by their kinds."""
        found: dict[str, list[str]] = {}
        for each in self.objects:
            if each.kind != "PACKAGE BODY":
                found.setdefault(each.kind.lower(), []).append(each.name)
        return {kind: sorted(names) for kind, names in found.items()}


def look(database: Database) -> Installed:
    """Returns what :func:`uninstall` would drop.

    Raises :class:`SchemaError` when workers live, when objects of the application use those of the queue, and when the
    queue has features of other distributions: it names them.
    """
    with closing(database.open()) as session:
        foreign = [name for name, row in features.rows(session).items() if not row.is_ours]
        if foreign:
            raise SchemaError(
                f"the queue has features of other distributions: {', '.join(foreign)}. Drop each, and what it leaves: "
                f"{command_line('fbtasks features drop {}', foreign[0])}"
            )
        living = [name for (name,) in session.read("living_processes")]
        if living:
            raise SchemaError(
                f"workers or consumers are at the queue: {_shortened(living)}. Stop them, and try again. One that was "
                "killed counts until its lease is over."
            )
        known = migrate.made_here(session)
        objects = _objects(session, known)
        _refuse_used(session, objects, known)
        unfinished = {noun: many for name in _asked(session) for noun, many in session.read(name) if many}
    return Installed(sorted(objects, key=lambda each: (_ORDER.index(each.kind), each.name)), unfinished)


def uninstall(database: Database, found: Installed) -> None:
    """Drops what was *found*, in one transaction: when it fails, nothing has changed.

    Raises :class:`SchemaError` when other connections have some of it in use.
    """

    def drop(transaction: Transaction) -> None:
        for each in found.objects:
            transaction.script(f"DROP {each.kind} {each.name}")

    database.close()
    session = Session(database.connect(), database.url, queries())  # one that has prepared nothing of the queue
    with closing(session), held_signals():
        try:
            session.run(drop, point="migrate", attempts=1)
        except ConflictError as error:
            raise SchemaError(
                f"{database.url}: others use the queue, and nothing was dropped: {error}. Stop the programs that are "
                "connected, and try again."
            ) from error


def _objects(session: Session, known: set[Made]) -> set[Made]:
    """Returns the objects that migrations of this distribution have made, and that are there.

    *known* is what their scripts make.
    """
    known = known | {Made("TABLE", name) for name in migrate.LEDGER}
    known |= {each for statement in packages.triggers(*ours()) for each in made(statement)}
    there = {Made(kind.upper(), name) for kind, _, name in session.read("taken_names")}
    bases = {*packages.packages(), hooks.PACKAGE}
    numbered = {
        Made("PACKAGE", name)
        for (name,) in session.read("numbered_packages")
        if (match := _NUMBERED.fullmatch(name)) and match[1] in bases
    }
    roles = {Made("ROLE", name) for (name,) in session.read("roles") if name in grants.ROLES.values()}
    found = {each for each in known & there if each.kind in _ORDER} | numbered | roles
    return found | {Made("PACKAGE BODY", each.name) for each in found if each.kind == "PACKAGE"}


def _refuse_used(session: Session, objects: Iterable[Made], known: Iterable[Made]) -> None:
    """Raises :class:`SchemaError` for what is not ours and uses one of *objects*.

    *known* is what our scripts make, with indexes and constraints, which go with their tables.
    """
    names = {name for _, name in objects}
    tables = {name for kind, name in objects if kind in ("TABLE", "VIEW")}
    own = {*objects, *known}
    used = set()
    for name, kind, user, table in session.read("dependents"):
        is_unnamed = re.fullmatch(r"(CHECK|INTEG)_\d+", user) is not None
        is_part = table in tables and (is_unnamed or kind not in ("TRIGGER", "INDEX", "CONSTRAINT"))
        is_own = (kind, user) in own or is_part
        if name in names and not is_own:
            used.add(f"{kind.lower()} {user}" + (f" of {table}" if table else ""))
    if used:
        raise SchemaError(
            f"{session.url}: objects of the application use the queue, and nothing was dropped: "
            f"{_shortened(sorted(used))}. Drop or change them; the triggers QUEUE_ON_... are those of subscriptions: "
            "fbtasks subscriptions drop"
        )


def _asked(session: Session) -> list[str]:
    """Returns the queries that count what has not been done: of the core, and of the features that are there."""
    asked = ("unfinished", *(f"unfinished_{name}" for name in features.rows(session)))
    return [name for name in asked if name in session.queries]


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
