"""Runs a workflow in eager mode: its steps where they are enqueued, each after what it follows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from fbtasks.features.workflows.plan import Follows, Link, Plan
from fbtasks.run.eager import EagerResult, run_eagerly
from fbtasks.states import State
from fbtasks.system.showing import kind_of
from fbtasks.tasks.call import Call, Input, Stored

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


def run_plan_eagerly(app: FBTasks, plan: Plan) -> dict[int, EagerResult]:
    """Runs the steps of *plan* here and now, each after what it follows. Returns their results."""
    return _EagerPlan(app, plan).run()


class _Ended(NamedTuple):
    """How a node has ended."""

    input: Input
    cause: Input | None = None
    """The task because of which it has not succeeded."""


class _EagerPlan:
    """A workflow that is run here and now."""

    def __init__(self, app: FBTasks, plan: Plan) -> None:
        self._app = app
        self._plan = plan
        self._links: dict[int, Link] = {link.target: link for link in plan.links}
        self._members: dict[int, list[int]] = {group: [] for group in plan.groups}
        for member in sorted(plan.members, key=lambda each: each.number):
            self._members[member.group].append(member.node)
        self._ended: dict[int, _Ended] = {}
        self._results: dict[int, EagerResult] = {}

    def run(self) -> dict[int, EagerResult]:
        """Runs all steps that are to run."""
        for node, call in self._plan.steps():
            link = self._links.get(node)
            before = None if link is None else self._end_of(link.source)
            if link is None or before is None:
                self._run(node, call, ())
            elif link.kind.on_error:
                if before.cause is not None:
                    report = before.cause._replace(is_report=True)
                    self._run(node, call, (report,) if link.kind.feeds else ())
            elif before.cause is not None:
                self._cancel(node, call, before.cause, in_group=link.source in self._plan.groups)
            else:
                self._run(node, call, (before.input,) if link.kind is Follows.WITH_RESULT else ())
        return self._results

    def _run(self, node: int, call: Call, inputs: tuple[Input, ...]) -> None:
        self._note(node, run_eagerly(self._app, call, inputs))

    def _cancel(self, node: int, call: Call, cause: Input, *, in_group: bool) -> None:
        why = f"a task that it follows failed: {kind_of(cause.error_type)}: {cause.message}"
        failed = Stored(state=State.FAILED, try_count=0, error_type="fbtasks.errors.ChordError", error_msg=why)
        ended = failed if in_group else Stored(state=State.CANCELLED, try_count=0, error_msg=why)
        result = EagerResult(call.task_id or str(uuid.uuid4()), self._app, ended)
        self._note(node, result, cause)

    def _note(self, node: int, result: EagerResult, cause: Input | None = None) -> None:
        stored = result._stored() or Stored(state=State.CANCELLED, try_count=0, error_msg="it was snoozed")
        made = Input(
            0,
            stored.state,
            stored.content_type or "",
            stored.result or b"",
            stored.error_type or "",
            stored.error_msg or "",
            id=result.id,
        )
        self._results[node] = result
        self._ended[node] = _Ended(made, None if stored.state is State.SUCCEEDED else cause or made)

    def _end_of(self, node: int) -> _Ended:
        """Returns how a step or a group has ended, all of which has run before."""
        if node not in self._plan.groups:
            return self._ended[node]
        members = [self._end_of(each) for each in self._members[node]]
        failed = None if self._plan.groups[node] else next((each.cause for each in members if each.cause), None)
        return _Ended(Input(0, members=tuple(each.input for each in members)), failed)
