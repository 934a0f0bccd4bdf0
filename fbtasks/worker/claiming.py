"""Which queue to claim from next, and from which place in it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fbtasks import clock
from fbtasks.call import Claim
from fbtasks.store import tasks
from fbtasks.store.session import Transaction

LOOK_BACK: Final = 1.0
"""Seconds after which a claim looks for tasks that have come to be before those that were claimed last."""


class Claiming:
    """Claims from a worker's queues in turn. Used by one thread at a time."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._first = 0
        self._marks: dict[str, tuple[Claim, float]] = {}
        """Where the last claim from a queue ended, and until when to go on from there."""

    def claim(self, transaction: Transaction, worker_id: int, room: int, *, accused: bool) -> list[Claim]:
        """Up to *room* tasks; each queue gives an equal share of what room is left."""
        queues = self._queues
        order = [queues[(self._first + i) % len(queues)] for i in range(len(queues))]
        self._first = (self._first + 1) % len(queues)
        claims: list[Claim] = []
        for place, queue in enumerate(order):
            share = -(-(room - len(claims)) // (len(order) - place))
            if share > 0:
                claims += self._claim_from(transaction, worker_id, queue, share, accused)
        return claims

    def _claim_from(
        self, transaction: Transaction, worker_id: int, queue: str, most: int, accused: bool
    ) -> list[Claim]:
        after, until = self._marks.get(queue, (None, 0.0))
        now = clock.monotonic()
        if now > until:
            after, until = None, now + LOOK_BACK
        claims = tasks.claim(transaction, worker_id, queue, most, accused=accused, after=after)
        if len(claims) == most:
            self._marks[queue] = claims[-1], until
        else:
            self._marks.pop(queue, None)
        return claims
