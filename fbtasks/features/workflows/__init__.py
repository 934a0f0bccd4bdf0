"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.feature import Duty, Every, Feature, Told, Worker
from fbtasks.features.workflows import store
from fbtasks.features.workflows.plan import Plan
from fbtasks.features.workflows.replaced import Replaced
from fbtasks.firebird.session import Session, Transaction
from fbtasks.run.inputs import INPUTS_GONE
from fbtasks.states import State
from fbtasks.system.showing import command_line
from fbtasks.tasks.call import Batch, Claim, Enqueued, Finished, Outcome, Owner, Stale

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import TaskRow


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"DECIDE", "ENDED", "FORGOTTEN", "KEEPS", "REVIVED", "REVIVING"})

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        super().bind(app)
        self._group_queues: set[str] = set()
        """Queues of which the database knows that tasks of theirs follow groups."""
        self._owners: dict[str, Owner] = {}
        """What holds back steps of workflows in the places of tasks, by the names that their gates have."""

    def close(self) -> None:
        """Forgets what the database is known to have."""
        self.forget()

    def forget(self) -> None:
        """Forgets what the former database was known to have."""
        self._group_queues = set()
        self._owners = {}

    def enqueue(self, plan: Plan, using: Any = None) -> int:
        """Writes *plan* as other calls are written. Returns the database's number of its node 0."""
        batch = Batch(plan.nodes)

        def write(transaction: Transaction) -> tuple[int, int]:
            return store.enqueue(transaction, plan, batch.owners)

        def ids(first: int) -> list[Enqueued]:
            return [Enqueued(first + node, duplicate=False) for node, _ in plan.steps()]

        return self.app.enqueuer.write(batch, write, using, ids, lambda: self._note_groups(plan))

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Gives it the results of the tasks that it follows."""
        if not claim.fed:
            return claim
        found = store.inputs(session, claim.id)
        return INPUTS_GONE if found is None else claim._replace(inputs=found, fed=False)

    def before_record(self, items: Sequence[Finished]) -> None:
        """Brings the limits, the queues and the groups of workflows in the places of tasks into the database."""
        for plan in _plans(items):
            self._note_groups(plan)
            batch = Batch(plan.nodes)
            self.app.enqueuer.make_ready(batch)
            self._owners |= batch.owners

    def record(self, transaction: Transaction, worker_id: int, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes workflows in the places of tasks."""
        return store.replace(transaction, worker_id, slot, items, self._owners)

    def _note_groups(self, plan: Plan) -> None:
        """Makes workers look after the groups of *plan*, in their queues. Once for each queue."""
        known = self._group_queues
        new = set(plan.queues_of_groups().values()) - known
        if new:
            self.app.database.make_ready()
            self.app.database.use(lambda session: store.note_group_queues(session, new))
            known |= new

    def duties(self, worker: Worker) -> Iterator[Duty]:
        """Forgets saved groups whose time is over."""
        yield Every("forgetting groups that were saved", 60.0, store.forget_saved, at_start=False)

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns why a step waits."""
        if task.state is not State.AWAITING:
            return Told()
        look = command_line("fbtasks inspect workflow {}", task.id)
        return Told([f"a step that it follows has not ended: {look}"])

    def sheets(self) -> Sequence[Sheet]:
        """Returns the list of workflows."""
        from fbtasks.features.workflows.sheets import WorkflowSheet

        return [WorkflowSheet()]


def _plans(items: Sequence[Finished]) -> Iterator[Plan]:
    return (item.outcome.plan for item in items if isinstance(item.outcome, Replaced))
