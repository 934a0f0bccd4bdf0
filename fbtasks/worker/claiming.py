"""Which queue to claim from next, and behind which task in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fbtasks import clock
from fbtasks.call import Claim, Claims
from fbtasks.firebird.session import Session, Transaction
from fbtasks.store import flows, tasks

LOOK_BACK: Final = 1.0
"""Seconds after which a claim looks for tasks that have come to be before those that were claimed last."""


Mark = tuple[Claim | None, float]
"""Where a claim from a queue ended, if there was more, and until when to go on from there."""


@dataclass(slots=True)
class Taken:
    """What was claimed in one transaction, which is not committed yet."""

    claims: Claims = field(default_factory=Claims)
    idle: list[str] = field(default_factory=list)
    """The queues in which nothing is left but idle work."""
    more: bool = False
    """Whether a queue may have more than its share."""
    limited: list[str] = field(default_factory=list)
    """The queues whose limit had no room for more."""
    marks: dict[str, Mark] = field(default_factory=dict)


class Claiming:
    """Claims from a worker's queues in turn. Used by one thread at a time."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._first = 0
        self._marks: dict[str, Mark] = {}

    def claim(
        self, transaction: Transaction, worker_id: int, room: int, *, repeated: bool, anew: bool = False
    ) -> Taken:
        """Up to *room* tasks; each queue has an equal share of what room is left.

        With *anew* not only behind what was claimed last. Idle work is claimed when nothing else is left in any of the
        queues, as far as there is room then. Changes nothing here: a transaction that meets a conflict is
        rolled back and run again. When it is committed, :meth:`committed` is told.
        """
        queues = self._queues
        order = [queues[(self._first + i) % len(queues)] for i in range(len(queues))]
        taken = Taken()
        for nth, queue in enumerate(order):
            share = -(-(room - len(taken.claims)) // (len(order) - nth))
            if share > 0:
                self._claim_from(transaction, worker_id, queue, share, repeated, anew, taken)
        for queue in taken.idle:
            left = room - len(taken.claims)
            if left <= 0 or taken.more or any(claim.suspect for claim in taken.claims):
                break
            claims = tasks.claim(transaction, worker_id, queue, left, repeated=repeated, from_start=False)
            taken.claims += claims
            taken.claims.unseen |= claims.unseen
        return taken

    def _claim_from(
        self, transaction: Transaction, worker_id: int, queue: str, most: int, repeated: bool, anew: bool, taken: Taken
    ) -> None:
        after, until = self._marks.get(queue) or (None, 0.0)
        now = clock.monotonic()
        anew |= now > until
        if anew:
            after, until = None, now + LOOK_BACK
        claims = tasks.claim(
            transaction, worker_id, queue, most, repeated=repeated, after=after, from_start=anew, idle=False
        )
        taken.claims += claims
        taken.claims.unseen |= claims.unseen
        taken.claims.missed |= claims.missed
        if claims.idles:
            taken.idle.append(queue)
        if claims.limited:
            taken.limited.append(queue)
        full = len(claims) == most
        taken.more |= full
        taken.marks[queue] = (claims[-1] if full else None, until)

    def committed(self, taken: Taken) -> None:
        """Goes on behind what was *taken*, and from the next queue."""
        self._first = (self._first + 1) % len(self._queues)
        self._marks.update(taken.marks)


def with_inputs(session: Session, claim: Claim) -> Claim | None:
    """*claim* with the results of the tasks that it follows. None when one of them is not known any more."""
    found = flows.inputs(session, claim.id)
    return None if found is None else claim._replace(inputs=found, fed=False)


def with_payload(session: Session, claim: Claim) -> Claim:
    """*claim* with its payload, which is read now when the claim did not return it (above 30,000 bytes)."""
    if claim.payload is not None:
        return claim
    with session.transaction() as transaction:
        return claim._replace(payload=tasks.payload(transaction, claim.id) or b"")
