"""What is left of runs, written with their outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fbtasks.errors import ConflictError
from fbtasks.features.sources.runs import Rest
from fbtasks.firebird.session import Transaction
from fbtasks.tasks.call import Claim, Finished, Stale, extra_of

_HELD: Final = -1
"""What PUT_REST says when another transaction holds the task's row."""


def put(transaction: Transaction, slot: int, items: Iterable[Finished]) -> list[Stale]:
    """Writes what is left of those of *items* that are such runs. Returns those whose row is held.

    Without a *slot* raises :class:`ConflictError` then.
    """
    held: list[Stale] = []
    for item in items:
        rest = extra_of(item.outcome)
        if not isinstance(rest, Rest) or _put(transaction, item.claim, rest):
            continue
        if not slot:
            raise ConflictError(f"another transaction holds the task {item.claim.id}.")
        held.append(Stale(item.claim.id, item.claim.claim_id))
    return held


def _put(transaction: Transaction, claim: Claim, rest: Rest) -> bool:
    """Writes what is left of one run. False when another transaction holds its task; a stale claim changes nothing."""
    written = rest.own, rest.next, rest.tries, rest.next_tries
    number: int | None = transaction.call("FBTASKS_SOURCES.PUT_REST", claim.id, claim.claim_id, *written)
    return number != _HELD
