"""The outcome of a task that has a workflow in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fbtasks.features.workflows.plan import Link, Member, Plan
from fbtasks.system.showing import count
from fbtasks.tasks.call import Call, FeatureOutcome

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.run.eager import EagerResult


@dataclass(frozen=True, slots=True)
class Replaced(FeatureOutcome):
    """The task has a workflow in its place, whose step *end* gets its id, and what follows it or counts it."""

    feature = "workflows"
    word = "replaced"
    plan: Plan
    end: int

    def text(self) -> str:
        """Returns how much there is in its place."""
        return f"has a workflow of {count(self.plan.step_count(), 'task')} in its place"

    def is_sound(self) -> bool:
        """Returns whether it is a plan, and one of its steps."""
        said: object = self.plan
        match said:
            case Plan(nodes=list(), groups=dict(), links=list(), members=list()) as plan:
                return _is_sound(plan) and self.end in range(len(plan)) and plan.nodes[self.end] is not None
        return False

    def run_eagerly(self, app: FBTasks) -> EagerResult:
        """Runs the workflow. Returns the result of the step that has the place of the task."""
        from fbtasks.features.workflows.eager import run_plan_eagerly

        return run_plan_eagerly(app, self.plan)[self.end]


def _is_sound(plan: Plan) -> bool:
    parts = ((plan.nodes, Call | None), (plan.links, Link), (plan.members, Member))
    if not all(isinstance(each, kind) for some, kind in parts for each in some):
        return False
    named = [*plan.groups, *(each.source for each in plan.links), *(each.target for each in plan.links)]
    named += [node for each in plan.members for node in (each.group, each.node)]
    return all(node in range(len(plan)) for node in named)
