"""Signatures made into plans: which steps and groups there are, what follows what, and which results are returned."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from fbtasks.call import Call
from fbtasks.enqueuing import Enqueuer
from fbtasks.errors import EnqueueError, PayloadTooLarge
from fbtasks.group_result import GroupResult
from fbtasks.node_result import Application, NodeResult
from fbtasks.plan import Follows, Link, Member, Plan, ReplaceRequested
from fbtasks.result import AsyncResult
from fbtasks.showing import count

KNOWN_LATER: Final = object()
"""In the place of a result that tasks are still to make."""
_STEP_BYTES: Final = 500
_PLAN_BYTES: Final = 500_000
"""What a step takes beside its payload, and what a child may send to its worker beside a payload, each with room."""


class App(Application, Protocol):
    """The app as signatures know it."""

    always_eager: bool
    enqueuer: Enqueuer

    def run_plan_eagerly(self, plan: Plan[Call]) -> Mapping[int, AsyncResult[Any]]:
        """Runs the steps of *plan* here and now. Returns the result of each."""


class End(NamedTuple):
    """Where a signature ends, for what follows it."""

    node: int | None = None
    """What is to be waited for; None: nothing."""
    value: Any = KNOWN_LATER
    """The result, where that is known from the beginning: of groups without members."""

    @property
    def is_known(self) -> bool:
        """Whether the result is known from the beginning."""
        return self.value is not KNOWN_LATER


class Place(NamedTuple):
    """Where a signature stands in its workflow."""

    before: End = End()
    """What it follows."""
    parent: int | None = None
    """The result of that."""
    followed: bool = False
    """Whether something follows it."""
    collects: bool = False
    """Whether that is given the errors of those that fail."""


class _Shape(NamedTuple):
    """The result that is to be made of a node."""

    node: int
    members: tuple[int, ...] | None
    """Of a group: the shapes of its members; None: it is a step."""
    parent: int | None


class Compiler:
    """Makes the plan of one signature, and notes which results it has."""

    def __init__(self) -> None:
        self.plan = Plan[Call]()
        self.shapes: list[_Shape] = []
        self.ignored: set[int] = set()
        """Steps whose results are not kept."""

    def shape_of_step(self, node: int, parent: int | None) -> int:
        """Returns the number of the result of a step; *parent* is that of what it follows."""
        self.shapes.append(_Shape(node, None, parent))
        return len(self.shapes) - 1

    def shape_of_group(self, node: int | None, members: Iterable[int], parent: int | None) -> int:
        """The same of a group; *node* is None where the plan has none for it."""
        number = self.plan.number_group() if node is None else node
        self.shapes.append(_Shape(number, tuple(members), parent))
        return len(self.shapes) - 1

    def follow(self, before: End, target: int, kind: Follows) -> None:
        """Has a step follow what is *before* it."""
        if before.node is not None:
            self.plan.links.append(Link(before.node, target, kind))

    def send(self, app: App, shape: int, using: Any) -> NodeResult:
        """Enqueues the plan, in a transaction of its own or in that of the connection *using*; an eager one is run.

        Returns the result of the number *shape*.
        """
        if app.always_eager:
            ran = app.run_plan_eagerly(self.plan)
            return self._results(app, ran, lambda _: str(uuid.uuid4()))[shape]
        first = app.enqueuer.enqueue_plan(self.plan, using)
        steps: dict[int, AsyncResult[Any]] = {}
        while self.plan.steps:  # what was sent is not kept beside its results
            node, call = self.plan.steps.popitem()
            number = first + node
            # Not AsyncResult[Any](...), which leaves a note of its type in each of many thousand.
            steps[node] = AsyncResult(
                call.task_id or str(number), app, ignored=node in self.ignored, number=number if using is None else None
            )
        return self._results(app, steps, lambda node: str(first + node))[shape]

    def _results(
        self, app: Application, steps: Mapping[int, AsyncResult[Any]], group_id: Callable[[int], str]
    ) -> list[NodeResult]:
        """All results, by the numbers of their shapes."""
        made: list[NodeResult] = []
        for node, members, parent in self.shapes:
            if members is None:
                result: NodeResult = steps[node]
            else:
                result = GroupResult([made[each] for each in members], app, group_id(node))
            result.parent = None if parent is None else made[parent]
            made.append(result)
        return made

    def replacement(self, app: App, shape: int, what: object) -> ReplaceRequested:
        """Returns what asks for the plan in the place of a task. *what* is the signature, for messages.

        Raises :class:`EnqueueError` for one that cannot have its place.
        """
        end, members, _ = self.shapes[shape]
        if members is not None:
            raise EnqueueError(
                f"{what} ends with a group, and what replaces a task ends with one task, whose result is then that of "
                "the first one: write group(...) | task.s(), which is given the list of the results."
            )
        if self.plan.steps[end].task_id is not None:
            raise EnqueueError(f"the last task of {what} gets the id of the task that it replaces: give it no task_id.")
        size = sum(len(step.payload) + _STEP_BYTES for step in self.plan.steps.values())
        if size > app.settings.payload_limit + _PLAN_BYTES:
            steps = count(len(self.plan.steps), "task")
            raise PayloadTooLarge(
                f"a workflow of {steps} with {size:,} bytes is too large to replace a task: give its tasks less "
                "data, such as the keys by which they find it, or raise payload_limit."
            )
        return ReplaceRequested(self.plan, end)


def empty_group(to: Compiler, value: list[Any]) -> int:
    """A group without members but such groups."""
    number = to.plan.add_group(collects=False)
    for at, each in enumerate(value):
        to.plan.members.append(Member(number, at, empty_group(to, each), done=True))
    return number
