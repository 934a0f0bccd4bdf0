"""Brings the limits and windows of queues into the database, and keeps them right there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.values import now as now_in
from fbtasks.errors import ConfigurationError
from fbtasks.features.queues.definition import QueueDefinition, window_from
from fbtasks.features.queues.store import Policy, policies
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.firsts import write_first
from fbtasks.system.showing import count
from fbtasks.tasks.windows import Window

logger = logging.getLogger(__name__)
_BEHIND: Final = timedelta(days=2)
_AHEAD: Final = timedelta(days=35)
"""For how long before and after now the times at which a queue is open are written."""
_LEAST: Final = timedelta(days=14)
"""They are written anew when less than this is left."""


def sync_queues(session: Session, app: str, definitions: Iterable[QueueDefinition]) -> list[str]:
    """Brings into the database what *app* says of its queues: the last one stands. Returns the queues that changed."""
    return [each.queue for each in definitions if bring_in(session, app, each)]


def bring_in(session: Session, app: str, definition: QueueDefinition, *, only_new: bool = False) -> bool:
    """Brings one queue into the database. Returns whether it changed; with *only_new* one that is there stays."""
    it = definition
    row = it.queue, app, it.max_length, it.when_full, int(it.window is not None), it.age_ms, it.text, it.hash

    def write(transaction: Transaction) -> bool:
        # The queue is locked from here on, unless that changes nothing.
        if transaction.call("FBTASKS_QUEUES.SET_POLICY", *row, int(only_new)) != 1:
            return False
        transaction.call("FBTASKS_QUEUES.SET_PLACES", it.queue)
        _write_shifts(transaction, it.queue, it.window)
        return True

    return write_first(session, write)


def _write_shifts(transaction: Transaction, queue: str, window: Window | None) -> None:
    now = now_in(transaction)
    shifts = () if window is None else window.shifts(now - _BEHIND, now + _AHEAD)
    packed = "".join(f"{clock.to_ms(begin):015d}{clock.to_ms(end):015d}" for begin, end in shifts)
    transaction.call("FBTASKS_QUEUES.SET_SHIFTS", queue, packed)


def audit(session: Session) -> bool:
    """Puts right the places of queues with a limit, and writes on when those with a window are open: all of them.

    Places are lost or too many when tables were changed by hand, and after a limit was set on a queue that held tasks.
    """
    for policy in policies(session):
        if not policy.places_are_right:
            _put_right(session, policy)
        if policy.windowed and (policy.shifts_until is None or policy.shifts_until - policy.now < _LEAST):
            _write_on(session, policy)
    return False


def _put_right(session: Session, policy: Policy) -> None:
    def write(transaction: Transaction) -> int:
        transaction.call("FBTASKS_QUEUES.LOCK_POLICY", policy.queue)
        return int(transaction.call("FBTASKS_QUEUES.SET_PLACES", policy.queue))

    if changed := session.run(write):
        much = "few" if changed > 0 else "many"
        logger.info("The queue %s had %s too %s.", policy.queue, count(abs(changed), "place"), much)


def _write_on(session: Session, policy: Policy) -> None:
    try:
        window = window_from(policy.definition or "{}")
    except ConfigurationError as error:
        logger.warning("When the queue %s is open cannot be told here: %s", policy.queue, error)
        return

    def write(transaction: Transaction) -> None:
        transaction.call("FBTASKS_QUEUES.LOCK_POLICY", policy.queue)
        _write_shifts(transaction, policy.queue, window)

    session.run(write)
