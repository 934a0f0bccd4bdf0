"""Writes the rests of runs, with their outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.errors import ConflictError
from fbtasks.features.sources.runs import Rest
from fbtasks.firebird.session import Transaction
from fbtasks.tasks.call import Finished, Stale, extra_of


def put(transaction: Transaction, slot: int, items: Iterable[Finished]) -> list[Stale]:
    """Writes what is left of those of *items* that are such runs; a stale claim changes nothing.

    Returns those whose row another transaction holds. Without a *slot* raises :class:`ConflictError` then.
    """
    held: list[Stale] = []
    for item in items:
        claim, rest = item.claim, extra_of(item.outcome)
        if isinstance(rest, Rest):
            written = rest.own, rest.next, rest.tries, rest.next_tries
            if transaction.call("FBTASKS_SOURCES.PUT_REST", claim.id, claim.claim_id, *written) == -1:
                if not slot:
                    raise ConflictError(f"another transaction holds the task {claim.id}.")
                held.append(Stale(claim.id, claim.claim_id))
    return held
