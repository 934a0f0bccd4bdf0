"""The limits of tasks: brought into the database, and rid of what nothing needs any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fbtasks.features.limits import store as admission
from fbtasks.features.limits.definition import LimitDefinition
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.firsts import write_first

logger = logging.getLogger(__name__)
_BATCHES: Final = 5
"""Transactions that one part of it may use in one turn."""


def sync_limits(session: Session, app: str, definitions: Iterable[LimitDefinition]) -> list[str]:
    """Brings into the database what *app* says of limits: the last one stands. Returns what changed, in words.

    A limit that its code has no more is orphaned: tasks that were enqueued before it go by it still.
    """
    definitions = list(definitions)
    changed = [f"defined: {each.name}" for each in definitions if bring_in(session, app, each)]
    known = {name: number for number, name in session.read("limit_names", app)}
    gone = sorted(known.keys() - {each.name for each in definitions})
    for name in gone:
        session.call("FBTASKS_LIMITS.ORPHAN_LIMIT", known[name])
    return changed + [f"orphaned: {name}" for name in gone]


def bring_in(session: Session, app: str, definition: LimitDefinition, *, only_new: bool = False) -> bool:
    """The same for one limit. Whether it changed; with *only_new* a definition that is there stays.

    One of a queue that says nothing takes back what was said before, and makes none.
    """
    queue = definition.queue
    says = definition.at_once is not None or definition.period is not None
    if queue is not None and not says and admission.find(session, definition.name) is None:
        return False

    def write(transaction: Transaction) -> bool:
        changed = admission.set_limit(transaction, app, definition, only_new=only_new)
        if changed and queue is not None:
            transaction.call("FBTASKS_LIMITS.TAKE_LIMIT", definition.name, queue)
        return changed

    return write_first(session, write)


class Leftovers:
    """What tasks that are gone have left behind, and gates that nothing needs."""

    def __init__(self) -> None:
        self._after: int | None = 0
        """The number of the task up to which it has looked this time; None: it has looked at all."""

    def turn(self, session: Session) -> bool:
        """Deletes some. Whether there may be more."""
        if self._forget_gates(session) or self._forget_traces(session):
            return True
        self._after = 0
        return False

    def _forget_gates(self, session: Session) -> bool:
        most = admission.GATES
        return all(session.call("FBTASKS_LIMITS.FORGET_GATES", most) >= most for _ in range(_BATCHES))

    def _forget_traces(self, session: Session) -> bool:
        """Looks at the next few tasks. Whether there are more."""
        for _ in range(_BATCHES):
            after = self._after
            if after is None:
                break
            _, self._after = session.run(lambda t, a=after: admission.forget_traces(t, a))  # type: ignore[misc]
        return self._after is not None
