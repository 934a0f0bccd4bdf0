"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from fbtasks.feature import Feature

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session, Transaction
    from fbtasks.tasks.call import Call, Claim, Finished, Outcome, Stale
    from fbtasks.tasks.plan import Plan


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Gives it the results of the tasks that it follows."""
        if not claim.fed:
            return claim
        from fbtasks.features.workflows import store
        from fbtasks.run.inputs import INPUTS_GONE

        found = store.inputs(session, claim.id)
        return INPUTS_GONE if found is None else claim._replace(inputs=found, fed=False)

    def before_record(self, items: Sequence[Finished]) -> None:
        """Has the database know the limits, the queues and the groups of workflows in the places of tasks."""
        for plan in _plans(items):
            self.app.enqueuer.prepare(plan)

    def record(self, transaction: Transaction, worker_id: int, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes workflows in the places of tasks."""
        from fbtasks.features.workflows import store

        limits = self.app.enqueuer.limits.of(call for plan in _plans(items) for _, call in plan.steps())
        return store.replace(transaction, worker_id, slot, items, limits)

    def failed_with(self, transaction: Transaction, task: int) -> Collection[int | None]:
        """Those that follow it."""
        from fbtasks.features.workflows import store

        return store.failed_with(transaction, task)


def _plans(items: Sequence[Finished]) -> Iterator[Plan[Call]]:
    from fbtasks.features.workflows.replaced import Replaced

    return (item.outcome.plan for item in items if isinstance(item.outcome, Replaced))
