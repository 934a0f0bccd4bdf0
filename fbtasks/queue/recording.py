"""Records outcomes: of many tasks together, or of one task with its effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from fbtasks.errors import DatabaseError, StatementRefused
from fbtasks.feature import Features
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import tasks
from fbtasks.tasks.call import FeatureOutcome, Finished, Stale, extra_of

T = TypeVar("T")
_ByFeature: TypeAlias = Mapping[str, list[Finished]]
ATTEMPTS: Final = 8
"""Attempts to record, while another transaction is in the way, before what can be recorded is told from what cannot."""


class Recorder:
    """Records outcomes, and claims together with that, while it holds the host's lock. Used by one thread at a time."""

    def __init__(self, turn: HostLock, features: Features, stat_slot: int = 0) -> None:
        """*features*: those that record outcomes of their own, and say something beside others.

        *stat_slot*: where outcomes are counted, so that no two recorders of one worker count in one row.
        """
        self._turn = turn
        self._features = features
        self._stat_slot = stat_slot

    def record(self, session: Session, worker_id: int, items: Sequence[Finished], attempts: int) -> list[Stale]:
        """Records *items* in a transaction. Returns those whose claim was stale."""
        own = self._prepare(items)
        with self._turn.held():
            return session.run(lambda t: self._finish(t, worker_id, items, own), point="finish", attempts=attempts)

    def exchange(
        self, session: Session, worker_id: int, items: Sequence[Finished], claim: Callable[[Transaction], T]
    ) -> tuple[list[Stale], T]:
        """Records *items*, if there are any, and claims, in one transaction. Returns also what *claim* returned."""
        if not items:
            return [], self.claim(session, claim)
        own = self._prepare(items)
        with self._turn.held():
            return session.run(
                lambda t: (self._finish(t, worker_id, items, own), claim(t)), point="exchange finish", attempts=ATTEMPTS
            )

    def claim(self, session: Session, claim: Callable[[Transaction], T]) -> T:
        """Claims alone. Returns what *claim* returned."""
        with self._turn.held():
            return session.run(claim, point="claim")

    def record_effect(self, transaction: Transaction, worker_id: int, item: Finished) -> Stale | None:
        """Records *item* and commits what its task has done in *transaction*, unless the claim is stale."""
        own = self._prepare([item])
        with self._turn.held():
            for stale in self._finish(transaction, worker_id, [item], own):
                return stale
            transaction.commit("effect")
        return None

    def _finish(
        self, transaction: Transaction, worker_id: int, items: Sequence[Finished], own: _ByFeature
    ) -> list[Stale]:
        stale: list[Stale] = []
        for name, its in own.items():
            stale += self._features[name].record(transaction, worker_id, self._stat_slot, its)
        if own:
            items = [item for item in items if not isinstance(item.outcome, FeatureOutcome)]
        for name in {extra.feature for item in items if (extra := extra_of(item.outcome)) is not None}:
            held = self._features[name].before_finish(transaction, self._stat_slot, items)
            items = [item for item in items if all(item.claim.id != each.task for each in held)]
            stale += held
        return stale + tasks.finish(transaction, worker_id, self._stat_slot, items)

    def _prepare(self, items: Sequence[Finished]) -> _ByFeature:
        """Brings what outcomes of features need into the database, before the transaction that writes them.

        Returns those of *items* that features record, by their names.
        """
        own: dict[str, list[Finished]] = {}
        for item in items:
            if isinstance(item.outcome, FeatureOutcome):
                own.setdefault(item.outcome.feature, []).append(item)
        for name, its in own.items():
            try:
                self._features[name].before_record(its)
            except DatabaseError:
                raise
            except Exception as error:  # such as a limit that this user may not bring in
                raise StatementRefused(str(error)) from error
        return own

    def close(self) -> None:
        """Returns the host's lock."""
        self._turn.close()
