"""Publishes once: after a commit whose answer was lost it asks what became of it before it publishes again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Publication
from fbtasks.database import guests, settlement
from fbtasks.database.settlement import PUBLISH, InDoubt
from fbtasks.errors import CommitUncertain

_REMEMBERED: Final = 300.0
"""Seconds for which a publication in doubt is known again. Not for ever: a sweep makes rollbacks look like commits."""
_MOST: Final = 1000
_guest: ContextVar[guests.Guest | None] = ContextVar("fbtasks_kombu_guest", default=None)
"""The caller's connection to publish in; None: none."""


class Publisher:
    """Publishes from any thread: in the caller's transaction where there is one, else in transactions of their own.

    A transaction that is rolled back leaves a mark (see ``PUBLISH``), so when the answer to a COMMIT is lost, the
    number of the transaction says what became of it; the others cost nothing more. While the database cannot be asked,
    the publication stays in doubt: the caller gets an error, and when the same messages are published again, it is
    asked first.
    """

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._doubts: OrderedDict[int, tuple[InDoubt, float]] = OrderedDict()

    def publish(self, items: list[Publication]) -> list[int]:
        """Publishes in one transaction. Returns for each to how many queues it went (-1: no such exchange).

        Raises :class:`CommitUncertain` when it cannot be told in time whether it took effect: publish the same again.
        """
        guest = _guest.get()
        if guest is not None:
            transaction = guests.transaction(guest, self._shared.database)
            guest.begin(transaction)
            return messages.publish(transaction, items)[0]
        before = self._recall(_key(items)) if self._doubts else None
        try:
            if before is not None and settlement.settle(self._shared.use, before.number, before.written):
                counts: list[int] = before.written
                return counts
            return settlement.once(self._shared.use, lambda t: messages.publish(t, items), PUBLISH)
        except InDoubt as doubt:
            self._remember(_key(items), doubt)
            raise CommitUncertain(
                f"The connection was lost while messages were published, and whether they were is not known: {doubt}"
            ) from doubt

    def _remember(self, key: int, doubt: InDoubt) -> None:
        with self._lock:
            self._doubts[key] = doubt, clock.monotonic() + _REMEMBERED
            while len(self._doubts) > _MOST:
                self._doubts.popitem(last=False)

    def _recall(self, key: int) -> InDoubt | None:
        with self._lock:
            found = self._doubts.pop(key, None)
        return found[0] if found is not None and clock.monotonic() < found[1] else None


def _key(items: list[Publication]) -> int:
    return hash(tuple(astuple(item) for item in items))


@contextmanager
def in_transaction(connection: Any) -> Iterator[None]:
    """For the block, what this thread publishes is part of the main transaction of *connection*.

    *connection* is one of firebird-driver, to the database that the messages are in (``FBTasks.connect()`` gives one
    that works for the embedded engine as well); anything else raises :class:`~fbtasks.errors.EnqueueError`. The
    caller commits or rolls back. Exchanges and queues are declared outside of it, and are there either way. In a
    transaction of isolation SNAPSHOT, what was declared after it began is not seen, and a message to it goes nowhere.
    A block is for one transaction: what is published in it after its end raises that error as well.
    """
    token = _guest.set(guests.Guest(connection))
    try:
        yield
    finally:
        _guest.reset(token)
