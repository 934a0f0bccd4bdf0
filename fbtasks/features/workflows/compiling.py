"""Makes plans of signatures: steps, groups, what follows what, and the results to return."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fbtasks.errors import EnqueueError, PayloadTooLarge
from fbtasks.features.workflows.group_result import GroupResult
from fbtasks.features.workflows.node_result import NodeResult
from fbtasks.features.workflows.plan import Follows, Link, Member, Plan
from fbtasks.features.workflows.replaced import Replaced
from fbtasks.system.showing import count
from fbtasks.tasks.call import Call
from fbtasks.tasks.request import EndsWith

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

KNOWN_LATER: Final = object()
"""In the place of a result that tasks are still to make."""
_STEP_BYTES: Final = 500
_PLAN_BYTES: Final = 500_000
"""What a step takes beside its payload, and what a child may send to its worker beside a payload, each with room."""


class End(NamedTuple):
    """Where a signature ends, for what follows it."""

    node: int | None = None
    """The node to wait for; None: nothing."""
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


class Compiler:
    """Makes the plan of one signature, and notes which results it has."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.parents: list[int | None] = []
        """For each node the one whose result is the parent of its own."""
        self.members: dict[int, list[int]] = {}
        """The nodes of the results of each group."""
        self.ignored: set[int] = set()
        """Steps whose results are not kept."""

    def add_step(self, call: Call, parent: int | None) -> int:
        """Returns the number of a new step, whose result has that of the node *parent* as its parent."""
        self.parents.append(parent)
        return self.plan.add_step(call)

    def add_group(self, parent: int | None, *, collects: bool) -> int:
        """Adds a group that something follows; *collects*: that is given the errors of members that fail."""
        self.parents.append(parent)
        return self.plan.add_group(collects=collects)

    def add_empty_group(self, value: list[Any]) -> int:
        """Adds a group without members but such groups, whose result is *value*."""
        number = self.add_group(None, collects=False)
        for at, each in enumerate(value):
            self.plan.members.append(Member(number, at, self.add_empty_group(each), done=True))
        return number

    def number_group(self, parent: int | None) -> int:
        """Numbers a group that nothing follows, which is not written."""
        self.parents.append(parent)
        return self.plan.number_group()

    def follow(self, before: End, target: int, kind: Follows) -> None:
        """Makes a step follow what is *before* it."""
        if before.node is not None:
            self.plan.links.append(Link(before.node, kind, target))

    def send(self, app: FBTasks, end: int, using: Any) -> NodeResult:
        """Enqueues the plan, in a transaction of its own or in that of the connection *using*; an eager one is run.

        Returns the result of the node *end*.
        """
        if app.always_eager:
            from fbtasks.features.workflows.eager import run_plan_eagerly  # the processes of an app mostly do not

            ran = run_plan_eagerly(app, self.plan)
            return _Results(app, self.parents, self.members, ran.__getitem__, lambda _: str(uuid.uuid4())).of(end)
        first = app.features["workflows"].enqueue(self.plan, using)
        ids = {node: call.task_id for node, call in self.plan.steps() if call.task_id is not None}
        self.plan = Plan()  # what was sent is not kept beside its results
        ignored, committed = self.ignored, using is None

        def step(node: int) -> NodeResult:
            number = first + node
            return app.AsyncResult(
                ids.get(node) or str(number), ignored=node in ignored, number=number if committed else None
            )

        return _Results(app, self.parents, self.members, step, lambda node: str(first + node)).of(end)

    def replacement(self, app: FBTasks, end: int, what: object) -> EndsWith:
        """Returns what asks for the plan in the place of a task. *what* is the signature, for messages.

        Raises :class:`EnqueueError` for one that cannot have its place.
        """
        if end in self.members:
            raise EnqueueError(
                f"{what} ends with a group, and what replaces a task ends with one task, whose result is then that of "
                "the first one: write group(...) | task.s(), which is given the list of the results."
            )
        if self.plan.step(end).task_id is not None:
            raise EnqueueError(f"the last task of {what} gets the id of the task that it replaces: give it no task_id.")
        size = sum(len(step.payload) + _STEP_BYTES for _, step in self.plan.steps())
        steps = count(self.plan.step_count(), "task")
        if size > app.settings.payload_limit + _PLAN_BYTES:
            raise PayloadTooLarge(
                f"a workflow of {steps} with {size:,} bytes is too large to replace a task: give its tasks less "
                "data, such as the keys by which they find it, or raise payload_limit."
            )
        return EndsWith(f"replacement by {steps} requested", Replaced(self.plan, end))


class _Results(NamedTuple):
    """What the results of a workflow are made of, by the numbers of their nodes."""

    app: FBTasks
    parents: Sequence[int | None]
    members: Mapping[int, Sequence[int]]
    step: Callable[[int], NodeResult]
    group_id: Callable[[int], str]

    def of(self, end: int) -> NodeResult:
        """Returns the result of the node *end*. A group that follows nothing makes its members when asked for them."""
        if end in self.members and self.parents[end] is None:
            return GroupResult(lambda: self._made(self.members[end]), self.app, self.group_id(end))
        return self._made([end])[0]

    def _made(self, nodes: Sequence[int]) -> list[NodeResult]:
        """Returns the results of *nodes*, with all that can be reached from them."""
        made: dict[int, NodeResult] = {}
        todo = [*nodes]
        while todo:
            node = todo.pop()
            if node not in made:
                members, parent = self.members.get(node), self.parents[node]
                made[node] = self.step(node) if members is None else GroupResult([], self.app, self.group_id(node))
                todo += members or ()
                if parent is not None:
                    todo.append(parent)
        for node, result in made.items():
            parent = self.parents[node]
            if parent is not None:
                result.parent = made[parent]
            if isinstance(result, GroupResult):
                result.results.extend(made[each] for each in self.members[node])
        return [made[node] for node in nodes]
