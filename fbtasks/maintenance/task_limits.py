"""The limits of tasks, brought into the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fbtasks.errors import DuplicateKey
from fbtasks.firebird.session import INSERT, Session, Transaction
from fbtasks.limits import LimitDefinition
from fbtasks.store import admission

_FIRSTS: Final = 5


def sync_limits(session: Session, app: str, definitions: Iterable[LimitDefinition]) -> list[str]:
    """Brings into the database what *app* says of limits: the last one stands. Returns the names that changed."""
    return [each.name for each in definitions if bring_in(session, app, each)]


def bring_in(session: Session, app: str, definition: LimitDefinition, *, only_new: bool = False) -> bool:
    """The same for one limit. Whether it changed; with *only_new* a definition that is there stays."""

    def write(transaction: Transaction) -> bool:
        return admission.set_limit(transaction, app, definition, only_new=only_new)

    for _ in range(_FIRSTS):
        try:
            return session.run(write, INSERT)
        except DuplicateKey:  # two are the first: the second finds it there the next time
            continue
    return session.run(write, INSERT)
