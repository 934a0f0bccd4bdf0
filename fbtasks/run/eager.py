"""Eager mode: a call is run where it is made, through the same serialisation and the same decisions."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from fbtasks import timing as clock
from fbtasks.app import AsyncResult, FBTasks
from fbtasks.errors import ResultTimeout, TaskNotFound
from fbtasks.queue.notify.outcomes import Wait
from fbtasks.run.batch_runner import BatchRunner
from fbtasks.states import State
from fbtasks.system.showing import count
from fbtasks.tasks.call import Call, Claim, Failed, Input, Replaced, Retry, Snoozed, Stored, Succeeded
from fbtasks.tasks.plan import Follows, Link, Plan


class EagerResult(AsyncResult[Any]):
    """The result of a call that has been run already. All that it answers it has in memory."""

    def __init__(self, id: str, app: FBTasks, outcome: Stored | None, snoozed: float = 0.0) -> None:
        """*snoozed*: for how many seconds the task would have waited now. Then it has no outcome."""
        super().__init__(id, app)
        self._app = app
        self._snoozed = snoozed
        self._outcome: Stored | None = outcome

    def under(self, id: str) -> EagerResult:
        """The same of a task of that *id*."""
        return EagerResult(id, self._app, self._outcome, self._snoozed)

    def revoke(self, *, terminate: bool = False) -> bool:  # noqa: ARG002  # it has ended
        """False: it has ended."""
        return False

    def cancel(self, *, terminate: bool = False) -> int:  # noqa: ARG002  # it has ended
        """0: it has ended."""
        return 0

    def forget(self) -> bool:
        """Drops the outcome. False when that was done before."""
        known, self._outcome = self._outcome is not None, None
        return known

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:  # noqa: ARG002  # nothing is waited for
        """The result, or the exception, as from a worker."""
        if self._snoozed:
            raise ResultTimeout(
                f"task {self.id} asked to be run again in {count(self._snoozed, 'second')}, and eager mode does not "
                "wait."
            )
        if self._outcome is None:
            raise TaskNotFound(f"the outcome of task {self.id!r} was forgotten.")
        return self._value(self._outcome) if propagate else self._value_or_error(self._outcome)

    async def aget(self, timeout: float | None = None) -> Any:
        """The same."""
        return self.get(timeout)

    def _wait(self) -> Wait:
        wait = Wait(self.id)
        wait.stored, wait.unknown = self._outcome, self._outcome is None
        return wait

    def _stored(self) -> Stored | None:
        return self._outcome

    def _progress(self) -> None:
        return None

    def _state(self) -> tuple[State, int] | None:
        return None if self._outcome is None else (self._outcome.state, self._outcome.try_count)


def run_eagerly(app: FBTasks, call: Call, inputs: tuple[Input, ...] = ()) -> EagerResult:
    """Runs *call* here and now, with *inputs* as a step of a workflow. Retries follow at once, without their delays."""
    runner = BatchRunner(app, eager=True)
    app.find_task(call.name)
    task_id = call.task_id or str(uuid.uuid4())
    tries = 0
    while True:
        claim = Claim(
            id=0, claim_id=0, name=call.name, queue=call.queue, priority=call.priority, try_count=tries,
            max_tries=call.max_tries, start=10 * clock.to_ms(clock.utcnow()), content_type=call.content_type,
            payload=call.payload, task_id=task_id, wanted=True, inputs=inputs,
        )  # fmt: skip
        finished, failure, _, _, retried = runner.run(claim)
        if retried:
            runner.call_retry_hooks(retried)
        if failure is not None:
            runner.call_failure_hooks(failure)
        tries += 1
        match finished.outcome:
            case Retry():
                continue
            case Snoozed(delay):
                return EagerResult(task_id, app, None, delay)
            case Replaced(plan, end):
                return run_plan_eagerly(app, plan)[end].under(task_id)
            case Succeeded(content_type, result):
                stored = Stored(state=State.SUCCEEDED, try_count=tries, content_type=content_type or None,
                                result=result or None)  # fmt: skip
            case Failed(error_type, message, trace, args):
                stored = Stored(state=State.FAILED, try_count=tries, error_type=error_type, error_msg=message,
                                traceback=trace, result=args)  # fmt: skip
            case _:
                stored = Stored(state=State.CANCELLED, try_count=tries)
        return EagerResult(task_id, app, stored)


def run_plan_eagerly(app: FBTasks, plan: Plan[Call]) -> dict[int, EagerResult]:
    """Runs the steps of *plan* here and now, each after what it follows. Returns their results."""
    return _EagerPlan(app, plan).run()


class _Ended(NamedTuple):
    """How a node has ended."""

    input: Input
    cause: Input | None = None
    """The task because of which it has not succeeded."""


class _EagerPlan:
    """A workflow that is run here and now."""

    def __init__(self, app: FBTasks, plan: Plan[Call]) -> None:
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
        result = run_eagerly(self._app, call, inputs)
        self._note(node, result)

    def _cancel(self, node: int, call: Call, cause: Input, *, in_group: bool) -> None:
        why = f"a task that it follows failed: {cause.error_type}: {cause.message}"
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
        """How a step or a group has ended, all of which has run before."""
        if node not in self._plan.groups:
            return self._ended[node]
        members = [self._end_of(each) for each in self._members[node]]
        failed = None if self._plan.groups[node] else next((each.cause for each in members if each.cause), None)
        return _Ended(Input(0, members=tuple(each.input for each in members)), failed)
