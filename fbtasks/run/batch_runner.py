"""Runs of batches: the function is called once, with the requests of several calls. Each has an end of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fbtasks.errors import TaskDefinitionError
from fbtasks.run.runner import Prepared, Runner, RunResult
from fbtasks.system.checks import shown
from fbtasks.system.showing import count
from fbtasks.tasks.call import Claim, Finished, Several

if TYPE_CHECKING:
    from fbtasks.app import Task


class BatchRunner(Runner):
    """Runs also tasks with ``batch``. A claim of one call, as in eager mode, is a batch of one."""

    def _prepare(self, claim: Claim, connection: Any, started: float) -> Prepared | RunResult:
        task = self.app.tasks.get(claim.name)
        if task is None or task.options.batching is None:
            return super()._prepare(claim, connection, started)
        members = [super(BatchRunner, self)._prepare(each, connection, started) for each in claim.members or (claim,)]
        requests = [each.request for each in members if isinstance(each, Prepared)]
        if not requests:  # the arguments of none of them can be read
            return _together(claim, [each for each in members if isinstance(each, RunResult)])
        request = replace(requests[0], args=(requests,), kwargs={})
        return Prepared(claim, task, request, started, tuple(members))

    def _returned(self, prepared: Prepared, value: Any) -> RunResult:
        if not prepared.members:
            return super()._returned(prepared, value)
        called = [each for each in prepared.members if isinstance(each, Prepared)]
        fault = _fault(prepared.task, value, len(called))
        if fault is not None:
            ends = [self._fail(each, fault, outside=True) for each in called]
        else:
            values = [None] * len(called) if value is None else value
            ends = [self._ended(each, end) for each, end in zip(called, values, strict=True)]
        return _all_ended(prepared, ends)

    def _ended(self, member: Prepared, end: Any) -> RunResult:
        """The result of one call, for which the function returned *end*: an exception is what it failed with."""
        return self._decide(member, end) if isinstance(end, BaseException) else super()._returned(member, end)

    def _raised(self, prepared: Prepared, raised: BaseException) -> RunResult:
        if not prepared.members:
            return super()._raised(prepared, raised)
        error = self._interrupts.meant(prepared.claim.id, raised)
        ends = [self._decide(each, error) for each in prepared.members if isinstance(each, Prepared)]
        return _all_ended(prepared, ends)._replace(raised=raised)


def _fault(task: Task[..., Any], value: Any, calls: int) -> TaskDefinitionError | None:
    """What is wrong with the *value* that a batch of *calls* calls has returned."""
    if value is None and task.options.ignore_result:
        return None
    if isinstance(value, list | tuple) and len(value) == calls:
        return None
    what = count(len(value), "result") if isinstance(value, list | tuple) else shown(value)
    return TaskDefinitionError(
        f"the task {task.name!r} was given {count(calls, 'request')}, and returned {what}: return a list with the "
        "result of each, in their order; an exception in it fails that one."
    )


def _all_ended(prepared: Prepared, ends: list[RunResult]) -> RunResult:
    """The result of a batch; *ends* are those of the calls that the function was given."""
    rest = iter(ends)
    return _together(prepared.claim, [next(rest) if isinstance(each, Prepared) else each for each in prepared.members])


def _together(claim: Claim, ends: list[RunResult]) -> RunResult:
    """The result of a batch with these *ends*. Its on_failure hooks are the worker's to call, for each of the calls."""
    if not claim.members:
        return ends[0]
    outcome = Several(tuple(each.finished.outcome for each in ends))
    retried = tuple(failure for each in ends for failure in each.retried)
    return RunResult(Finished(claim, outcome, ends[0].finished.elapsed), retried=retried)
