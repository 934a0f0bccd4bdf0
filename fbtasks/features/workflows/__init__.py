"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fbtasks.feature import Feature
from fbtasks.features.workflows import store
from fbtasks.features.workflows.plan import Plan
from fbtasks.firebird.session import Session, Transaction
from fbtasks.tasks.call import Batch, Call, Claim, Enqueued, Finished, Outcome, Owner, Stale

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        super().bind(app)
        self._group_queues: set[str] = set()
        """Queues of which the database knows that tasks of theirs follow groups."""

    def enqueue(self, plan: Plan[Call], using: Any = None) -> int:
        """Writes *plan* as other calls are written. Returns the database's number of its node 0."""
        batch = Batch(plan.nodes)
        self._note_groups(plan)

        def write(transaction: Transaction) -> tuple[int, int]:
            return store.enqueue(transaction, plan, batch.owners)

        def ids(first: int) -> list[Enqueued]:
            return [Enqueued(first + node, duplicate=False) for node, _ in plan.steps()]

        return self.app.enqueuer.write(batch, write, using, ids)

    def prepare_plan(self, plan: Plan[Call]) -> Mapping[str, Owner]:
        """Has the database know what *plan* needs, in transactions of its own. Returns the owners of its gates."""
        batch = Batch(plan.nodes)
        self._note_groups(plan)
        self.app.enqueuer.make_ready(batch)
        return batch.owners

    def _note_groups(self, plan: Plan[Call]) -> None:
        """Has workers look after the groups of *plan*, in their queues. Once for each queue."""
        new = set(plan.queues_of_groups().values()) - self._group_queues
        if new:
            self.app.database.make_ready()
            self.app.database.use(lambda session: store.note_group_queues(session, new))
            self._group_queues |= new

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Gives it the results of the tasks that it follows."""
        if not claim.fed:
            return claim
        from fbtasks.run.inputs import INPUTS_GONE

        found = store.inputs(session, claim.id)
        return INPUTS_GONE if found is None else claim._replace(inputs=found, fed=False)

    def before_record(self, items: Sequence[Finished]) -> None:
        """Has the database know the limits, the queues and the groups of workflows in the places of tasks."""
        for plan in _plans(items):
            self.prepare_plan(plan)

    def record(self, transaction: Transaction, worker_id: int, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes workflows in the places of tasks."""
        owners: dict[str, Owner] = {}
        for plan in _plans(items):
            owners |= self.prepare_plan(plan)  # all of it is known by now
        return store.replace(transaction, worker_id, slot, items, owners)

    def failed_with(self, transaction: Transaction, task: int) -> Collection[int | None]:
        """Those that follow it."""
        return store.failed_with(transaction, task)


def _plans(items: Sequence[Finished]) -> Iterator[Plan[Call]]:
    from fbtasks.features.workflows.replaced import Replaced

    return (item.outcome.plan for item in items if isinstance(item.outcome, Replaced))
