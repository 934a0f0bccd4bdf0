"""Definitions that the database does not have as the code of living workers says: rows that these workers write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

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


def note(transaction: Transaction, worker_id: int, found: Iterable[Undeployed]) -> None:
    """Notes what a worker has *found*, in the place of what it noted before."""
    transaction.execute("undeployed_clear", worker_id)
    for app, name, kind, source, queue, problem in found:
        cut = app[:_LONGEST], name[:_LONGEST], kind, source[:_LONGEST], queue, problem[:_LONGEST_PROBLEM]
        transaction.execute("undeployed_put", worker_id, *cut)


def forget(session: Session, app: str, names: Iterable[str]) -> None:
    """Forgets what workers noted of tasks of *app* that have been deployed since."""
    deployed = {name[:_LONGEST] for name in names}
    for each in read(session):
        if each.app == app[:_LONGEST] and each.name in deployed:
            session.run(lambda t, name=each.name: t.execute("undeployed_forget", app[:_LONGEST], name))  # type: ignore[misc]
