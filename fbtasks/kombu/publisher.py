"""Publishing once: a commit whose answer was lost is asked after before anything is published again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import astuple
from typing import Final

from fbtasks import clock
from fbtasks.errors import CommitUncertain, DatabaseUnavailable
from fbtasks.store import messages
from fbtasks.store.messages import Publication
from fbtasks.store.session import READ, TOLD, Transaction
from fbtasks.store.shared import SharedDatabase

_LOOK: Final = 0.05
_PATIENCE: Final = 2.0
"""Seconds for which a transaction may go on whose connection was lost on this side; then it is cut on the other."""
_LONGEST: Final = 6.0
_REMEMBERED: Final = 300.0
"""Seconds for which a publication in doubt is known again. Not for ever: a sweep makes rollbacks look like commits."""
_MOST: Final = 1000


class Publisher:
    """Publishes in transactions of their own, from any thread.

    A transaction that is rolled back leaves a mark (see ``TOLD``), so when the answer to a COMMIT is lost, the number
    of the transaction says what became of it; the others cost nothing more. While the database cannot be asked, the
    publication stays in doubt: the caller gets an error, and when the same messages are published again, it is asked
    first.
    """

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._doubts: OrderedDict[int, tuple[list[int], int, float]] = OrderedDict()

    def publish(self, items: list[Publication]) -> list[int]:
        """Publishes in one transaction. Gives for each to how many queues it went (-1: no such exchange).

        Raises :class:`CommitUncertain` when it cannot be told in time whether it took effect: publish the same again.
        """
        key = hash(tuple(astuple(item) for item in items)) if self._doubts else 0
        before = self._recall(key) if key else None
        if before is not None and self._settle(key, *before):
            return before[0]
        for _ in range(2):
            sent: list[tuple[list[int], int | None]] = []
            try:
                return self._shared.use(lambda t: self._write(t, items, sent), TOLD)  # noqa: B023
            except CommitUncertain:
                counts, number = sent[-1]
                key = hash(tuple(astuple(item) for item in items))
                if number is None or self._settle(key, counts, number):
                    return counts
        raise DatabaseUnavailable("The connection was lost twice, before the messages were published.")

    def _write(
        self, transaction: Transaction, items: list[Publication], sent: list[tuple[list[int], int | None]]
    ) -> list[int]:
        sent.append(messages.publish(transaction, items))
        return sent[-1][0]

    def _settle(self, key: int, counts: list[int], number: int) -> bool:
        """Whether the transaction took effect. Remembers the doubt and raises when the database does not say."""
        try:
            done = self._ask(number)
        except DatabaseUnavailable as error:
            self._remember(key, counts, number)
            raise CommitUncertain(
                "The connection was lost while messages were published, and whether they were cannot be told now."
            ) from error
        if done is None:
            self._remember(key, counts, number)
            raise CommitUncertain("The database does not end the transaction in which messages were published.")
        return done

    def _ask(self, number: int) -> bool | None:
        begun = clock.monotonic()
        pause = threading.Event()
        while (done := self._shared.use(lambda t: messages.committed(t, number), READ)) is None:
            waited = clock.monotonic() - begun
            if waited > _LONGEST:
                return None
            if waited > _PATIENCE:
                self._shared.use(lambda t: messages.cut(t, number))
            pause.wait(_LOOK)
        return done

    def _remember(self, key: int, counts: list[int], number: int) -> None:
        with self._lock:
            self._doubts[key] = counts, number, clock.monotonic() + _REMEMBERED
            while len(self._doubts) > _MOST:
                self._doubts.popitem(last=False)

    def _recall(self, key: int) -> tuple[list[int], int] | None:
        with self._lock:
            found = self._doubts.pop(key, None)
        return found[:2] if found is not None and clock.monotonic() < found[2] else None
