"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.feature import Feature, Told
from fbtasks.features.workflows import store
from fbtasks.firebird.session import Transaction
from fbtasks.states import State
from fbtasks.tasks.call import Batch, Call, Enqueued, Owner
from fbtasks.tasks.plan import Plan

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.tasks.call import TaskRow


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"DECIDE", "ENDED", "FOLLOWS_RUNNING", "FORGOTTEN", "KEEPS", "REVIVED", "REVIVING"})

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

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns why a step waits."""
        if task.state is not State.AWAITING:
            return Told()
        return Told([f"a step that it follows has not ended: fbtasks inspect workflow {task.id}"])
