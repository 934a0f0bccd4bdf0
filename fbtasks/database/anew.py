"""The queue made anew: all that a former schema has is dropped, beside the tables of the application, which stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from fbtasks.database.packages import triggers
from fbtasks.database.schema import CORE, Made, Part, made, ours, steps
from fbtasks.errors import ConflictError, SchemaError, StatementRefused
from fbtasks.firebird.session import SNAPSHOT, Session, Transaction
from fbtasks.system.showing import count

_VERSIONED: Final = re.compile(r"QUEUE_\w+_V\d+")
"""Procedures and functions of schemas before there were packages."""
_CAPTURES: Final = re.compile(r"QUEUE_ON_\d+")
"""Triggers on the tables of the application."""
_PACKAGES: Final = re.compile(r"FBTASKS(_\w+)?")
_LEDGER: Final = ("QUEUE_SCHEMA", "QUEUE_SCHEMA_STEP")
_ORDER: Final = (
    ("TRIGGER",),
    ("PACKAGE BODY",),
    ("PACKAGE", "VIEW"),
    ("PROCEDURE", "FUNCTION"),
    ("TABLE",),
    ("SEQUENCE", "DOMAIN", "EXCEPTION"),
)
"""What is dropped together: nothing of a group depends on one of a later group."""


def remove(session: Session) -> int:
    """Drops the queue of any version. Returns the number of objects; 0 when there is none.

    Raises :class:`SchemaError` while tasks, changes or messages live there or a worker works on it, and when objects of
    the application depend on it. Then nothing is dropped.
    """
    with session.transaction(SNAPSHOT) as transaction:
        # With more=" " nothing is kept prepared, which would have the tables be in use.
        there = {(kind.upper(), name) for kind, _, name in transaction.rows("taken_names", more=" ")}
        there |= {("PACKAGE", name) for (name,) in transaction.rows("numbered_packages", more=" ")}
        dependents = transaction.rows("dependents", more=" ")
        dropped = {each for each in there if _is_ours(*each)}
        if ("TABLE", "QUEUE_TASK") in dropped:
            _refuse_living(session, _living(session, transaction, dropped))
    names = {name for _, name in dropped}
    others = sorted({f"{kind} {name}" for kind, name, on in dependents if on in names and name not in names})
    if others:
        raise SchemaError(
            f"{session.url}: the queue is not made anew, since these of the application depend on it: "
            f"{', '.join(others)}. Drop them, or take out what names it; they call FBTASKS.ENQUEUE afterwards."
        )
    bodies = {("PACKAGE BODY", name) for kind, name in dropped if kind == "PACKAGE"}
    for kinds in _ORDER:
        _drop(session, sorted(each for each in dropped | bodies if each[0] in kinds))
    return len(dropped)


def _is_ours(kind: str, name: str) -> bool:
    if kind == "PACKAGE":
        return bool(_PACKAGES.fullmatch(name))
    if kind in ("PROCEDURE", "FUNCTION") and _VERSIONED.fullmatch(name):
        return True
    if kind == "TRIGGER" and _CAPTURES.fullmatch(name):
        return True
    return name in _LEDGER or Made(kind, name) in _made()


@cache
def _made(*parts: Part) -> set[Made]:
    """What *parts* make; all of this distribution, when none is given."""
    statements = [statement for part in parts or ours() for step in steps(part) for statement in step.statements]
    return {each for statement in (*statements, *triggers(*parts)) for each in made(statement)}


def _living(session: Session, transaction: Transaction, there: set[tuple[str, str]]) -> dict[str, int]:
    """What is in the queue that is not to be lost, by kinds; *there* is what the database has."""
    found = dict(transaction.rows("living", more=" "))
    for part in ours():
        tables = {("TABLE", each.name) for each in _made(part) if each.kind == "TABLE"}
        if part != CORE and f"living_{part.name}" in session.queries and tables <= there:
            found |= dict(transaction.rows(f"living_{part.name}", more=" "))
    return found


def _refuse_living(session: Session, living: dict[str, int]) -> None:
    workers = living.pop("worker")
    if workers:
        raise SchemaError(f"{session.url}: {count(workers, 'worker')} of its queue live. Stop them first.")
    left = [count(number, what) for what, number in living.items() if number]
    if left:
        raise SchemaError(
            f"{session.url}: the queue is not made anew while it holds {' and '.join(left)}. Have the workers of that "
            "version finish them, or cancel them there with: fbtasks purge"
        )


def _drop(session: Session, objects: Iterable[tuple[str, str]]) -> None:
    found = list(objects)
    if not found:
        return

    def drop(transaction: Transaction) -> None:
        for kind, name in found:
            transaction.script(f"DROP {kind} {name}")

    try:
        session.run(drop, point="migrate", attempts=1)
    except (ConflictError, StatementRefused) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise SchemaError(
            f"{session.url}: what the queue had cannot be dropped while others use it: {reason}. End the programs that "
            "are connected, and run it again: it goes on."
        ) from error
