"""Definitions that the database does not have as the code of living workers says: rows that these workers write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fbtasks.features.sources.feeds import Definition
from fbtasks.firebird.session import Session, Transaction

_LONGEST: Final = 255
_LONGEST_PROBLEM: Final = 2000


class Undeployed(NamedTuple):
    """A definition, and why the database does not have it so."""

    app: str
    name: str
    """That of its task."""
    kind: str
    source: str
    """The table as the definition has it, or the event."""
    queue: str
    problem: str


def read(session: Session) -> list[Undeployed]:
    """Returns those of the workers that are alive, each once."""
    return [Undeployed(*row) for row in session.read("undeployed")]


def note(transaction: Transaction, worker_id: int, found: Iterable[tuple[Definition, str]]) -> None:
    """Notes definitions of a worker, and why they are not deployed, in the place of what it noted before."""
    transaction.call("FBTASKS_SOURCES.CLEAR_UNDEPLOYED", worker_id)
    for each, problem in found:
        named = each.app[:_LONGEST], each.name[:_LONGEST], each.kind, each.source_name[:_LONGEST]
        given = *named, each.feed.queue, each.hash, problem[:_LONGEST_PROBLEM]
        transaction.call("FBTASKS_SOURCES.PUT_UNDEPLOYED", worker_id, *given)


def forget(session: Session, app: str, definitions: Iterable[Definition]) -> None:
    """Forgets what workers noted of *definitions* of *app*, which have been deployed since."""
    deployed = {each.name[:_LONGEST]: each.hash for each in definitions}
    noted = read(session) if deployed else []
    for name in {each.name for each in noted if each.app == app[:_LONGEST]} & deployed.keys():
        given = app[:_LONGEST], name, deployed[name]
        session.call("FBTASKS_SOURCES.FORGET_UNDEPLOYED", *given)
