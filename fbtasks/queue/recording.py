"""The one door through which outcomes reach the database: of many tasks together, or of one with its effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from fbtasks.errors import DatabaseError, StatementRefused
from fbtasks.features.workflows import store as flows
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import codec, tasks
from fbtasks.tasks.call import Call, Finished, Owner, Replaced, Stale
from fbtasks.tasks.plan import Plan

T = TypeVar("T")
ATTEMPTS: Final = 8
"""Attempts to record, while another transaction is in the way, before what can be recorded is told from what cannot."""
Prepare = Callable[[Plan[Call]], Mapping[str, Owner]]
"""Has the database know the limits and queues of a workflow. Returns the limits."""


def no_limits(_: Plan[Call]) -> Mapping[str, Owner]:
    """Returns none."""
    return codec.NO_LIMITS


class Recorder:
    """Records outcomes, and claims together with that, while it holds the host's lock. Used by one thread at a time."""

    def __init__(self, turn: HostLock, stat_slot: int = 0, prepare: Prepare = no_limits) -> None:
        """*stat_slot*: where outcomes are counted, so that no two recorders of one worker count in one row.

        *prepare* is called with the workflows that tasks want in their places, before they are written.
        """
        self._turn = turn
        self._stat_slot = stat_slot
        self._prepare = prepare
        self._limits = codec.NO_LIMITS

    def record(self, session: Session, worker_id: int, items: Sequence[Finished], attempts: int) -> list[Stale]:
        """Records *items* in a transaction. Returns those whose claim was stale."""
        self._look_at(items)
        with self._turn.held():
            return session.run(lambda t: self._finish(t, worker_id, items), point="finish", attempts=attempts)

    def exchange(
        self, session: Session, worker_id: int, items: Sequence[Finished], claim: Callable[[Transaction], T]
    ) -> tuple[list[Stale], T]:
        """Records *items*, if there are any, and claims, in one transaction. Returns also what *claim* returned."""
        if not items:
            return [], self.claim(session, claim)
        self._look_at(items)
        with self._turn.held():
            return session.run(
                lambda t: (self._finish(t, worker_id, items), claim(t)), point="exchange finish", attempts=ATTEMPTS
            )

    def claim(self, session: Session, claim: Callable[[Transaction], T]) -> T:
        """Claims alone. Returns what *claim* returned."""
        with self._turn.held():
            return session.run(claim, point="claim")

    def record_effect(self, transaction: Transaction, worker_id: int, item: Finished) -> Stale | None:
        """Records *item* and commits what its task has done in *transaction*, unless the claim is stale."""
        self._look_at([item])
        with self._turn.held():
            for stale in self._finish(transaction, worker_id, [item]):
                return stale
            transaction.commit("effect")
        return None

    def _finish(self, transaction: Transaction, worker_id: int, items: Sequence[Finished]) -> list[Stale]:
        replaced = [item for item in items if type(item.outcome) is Replaced]
        stale: list[Stale] = []
        if replaced:
            stale = flows.replace(transaction, worker_id, self._stat_slot, replaced, self._limits)
            items = [item for item in items if type(item.outcome) is not Replaced]
        return stale + tasks.finish(transaction, worker_id, self._stat_slot, items)

    def _look_at(self, items: Sequence[Finished]) -> None:
        """Has the database know what the workflows among *items* need: outside of the transaction that writes them."""
        for item in items:
            if type(item.outcome) is Replaced:
                try:
                    self._limits = self._prepare(item.outcome.plan)
                except DatabaseError:
                    raise
                except Exception as error:  # such as a limit that this user may not bring in
                    raise StatementRefused(str(error)) from error

    def close(self) -> None:
        """Returns the host's lock."""
        self._turn.close()
