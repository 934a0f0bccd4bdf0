"""Brings the limits of an app into the database, and deletes gates and traces that nothing needs any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fbtasks.features.limits import store as admission
from fbtasks.features.limits.definition import LimitDefinition
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.firsts import write_first

logger = logging.getLogger(__name__)
_GATES: Final = 1000
"""Gates that are deleted in one transaction. One at which nothing is stays until then."""
_LOOKED: Final = 2000
"""Tasks of which one transaction looks whether they are there."""
_BATCHES: Final = 5
"""Transactions that one part of it may use in one turn."""


def sync_limits(session: Session, app: str, definitions: Iterable[LimitDefinition]) -> list[str]:
    """Brings into the database what *app* says of limits: the last one stands. Returns what changed, in words.

    A limit that its code has no more is orphaned: tasks that were enqueued before it go by it still.
    """
    definitions = list(definitions)
    said = admission.said_by_others(session, app)
    changed = [line for each in definitions for line in _bring_in(session, app, each, said.pop(each.name, None))]
    for name, (_, definition, others) in said.items():
        if others.pop(app, None) is not None:  # its code has it no more
            session.call("FBTASKS_LIMITS.NOTE_LIMIT", name, definition.text_with(others))
    known = {name: number for number, name in session.read("limit_names", app)}
    gone = sorted(known.keys() - {each.name for each in definitions})
    for name in gone:
        session.call("FBTASKS_LIMITS.ORPHAN_LIMIT", known[name])
    return changed + [f"orphaned: {name}" for name in gone]


def _bring_in(
    session: Session, app: str, definition: LimitDefinition, said: admission.SaidTwice | None
) -> Iterable[str]:
    """Brings one limit in, of which other apps have *said* something. Returns what changed, in words."""
    if said is None:
        return [f"defined: {definition.name}"] if bring_in(session, app, definition) else []
    owner, before, others = said
    now = {**others, owner: before}
    others = {other: each for other, each in now.items() if other != app and each != definition}
    text = definition.text_with(others)
    if bring_in(session, app, definition, text=text):
        also = "".join(f"; the app {other} says {each.words}" for other, each in others.items())
        return [f"defined: {definition.name} ({definition.words}{also})"]
    if now.get(app, definition) != definition:
        session.call("FBTASKS_LIMITS.NOTE_LIMIT", definition.name, text)
    return []


def bring_in(
    session: Session, app: str, definition: LimitDefinition, *, only_new: bool = False, text: str | None = None
) -> bool:
    """Brings one limit into the database. Returns whether it changed; with *only_new* a definition that is there stays.

    *text* is what is kept of it, with what other apps say.

    One of a queue that says nothing takes back what was said before, and makes none.
    """
    it, queue = definition, definition.queue
    says = it.at_once is not None or it.period is not None
    if queue is not None and not says and admission.find(session, it.name) is None:
        return False
    row = (
        it.name, app, it.at_once, it.period, it.burst, int(it.in_order), int(it.stops), it.until, int(it.replaces),
        it.quiet_ms, it.most_ms, it.lasts_ms, it.batch, it.wait_ms, text or it.text, it.hash, int(only_new),
    )  # fmt: skip

    def write(transaction: Transaction) -> bool:
        changed = bool(transaction.call("FBTASKS_LIMITS.SET_LIMIT", *row) == 1)
        if changed and queue is not None:
            transaction.call("FBTASKS_LIMITS.TAKE_LIMIT", it.name, queue)
        return changed

    return write_first(session, write)


class Leftovers:
    """What tasks that are gone have left behind, and gates that nothing needs."""

    def __init__(self) -> None:
        self._after = 0
        """The number of the task up to which it has looked this time."""

    def turn(self, session: Session) -> bool:
        """Deletes some. Returns whether there may be more."""
        if all(session.call("FBTASKS_LIMITS.FORGET_GATES", _GATES) >= _GATES for _ in range(_BATCHES)):
            return True
        for _ in range(_BATCHES):
            _, last = session.call("FBTASKS_LIMITS.FORGET_TRACES", self._after, _LOOKED)
            self._after = last or 0
            if last is None:
                return False
        return True
