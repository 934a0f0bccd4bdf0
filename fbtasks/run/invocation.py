"""How a task is called: what is to be called for a claim, one after the other, and what becomes of the claim then."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from fbtasks.errors import TaskDefinitionError
from fbtasks.system.checks import shown
from fbtasks.system.showing import count
from fbtasks.tasks.call import Claim, Finished, Outcome, Several
from fbtasks.tasks.request import Request

if TYPE_CHECKING:
    from fbtasks.app import Task
    from fbtasks.run.claimed import Run


class Part(NamedTuple):
    """One call of a task's function."""

    claim: Claim
    """As this call has it: a run of several may begin with other tries than a later one of its calls."""
    request: Request


class Raised(NamedTuple):
    """A call that has not succeeded."""

    request: Request
    error: BaseException
    traceback: str
    """As it is recorded: empty when none of the task's own code is in it."""


class RunResult(NamedTuple):
    """How the run of a claim has ended."""

    finished: Finished
    raised: BaseException | None = None
    """What the task's function raised."""
    done: int = 0
    """Of several calls that end before the last one: how many have succeeded."""
    retried: tuple[Raised, ...] = ()
    """The task, or the calls of a batch, that are tried again."""
    failed: tuple[Raised, ...] = ()
    """The task, or the calls of a batch, that have failed for good."""


Note = Callable[[int], None]
"""Is told which of several calls begins, by its number."""
Calls = Generator[Part, tuple[Any, BaseException | None], RunResult]
"""Yields what is to be called, is sent what it returned or raised, and returns how the run has ended."""


class Invocation:
    """Calls the function once, with the arguments of the claim."""

    several: ClassVar[bool] = False
    """Whether there may be several calls, one after the other: the time limits of the task are those of each."""
    is_internal: ClassVar[bool] = False
    """Whether the task is one of fbtasks itself: the app's hooks and around_run are not called for it."""

    def calls(self, run: Run) -> Calls:
        """The calls of *run*. They are made in its transaction, where it has one, in an event loop, or eagerly."""
        part = run.read(run.claim)
        if isinstance(part, RunResult):
            return part
        value, error = yield part
        return run.returned(part, value) if error is None else run.raised(part, error)

    def arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        """Returns the positional arguments as hooks see them."""
        return given

    def tries(self, claim: Claim, step: int) -> int:  # noqa: ARG002  # there is one
        """How many tries have ended of what the call number *step* of *claim* is made of."""
        return claim.try_count

    def ended(self, claim: Claim, outcome: Outcome, step: int) -> Outcome:  # noqa: ARG002
        """Returns *outcome*, by which *claim* has ended in its call number *step*, with what goes on.

        To be asked also where the process of the calls has died: it does not look at what they have done.
        """
        return outcome


class BatchInvocation(Invocation):
    """Calls it once, with the requests of several claims. Each has an end of its own; one claim is a batch of one."""

    def calls(self, run: Run) -> Calls:
        """The one call; none when the arguments of none of the claims can be read."""
        members = [run.read(each) for each in run.claim.parts]
        called = [each for each in members if isinstance(each, Part)]
        ends: list[RunResult] = []
        if called:
            requests = [each.request for each in called]
            value, error = yield Part(run.claim, replace(requests[0], args=(requests,), kwargs={}))
            ends = self._ends(run, called, value) if error is None else [run.raised(each, error) for each in called]
        rest = iter(ends)
        return _together(run.claim, [next(rest) if isinstance(each, Part) else each for each in members])

    def _ends(self, run: Run, called: Sequence[Part], value: Any) -> list[RunResult]:
        """The result of each call, when the function has returned *value*: an exception in it fails that one."""
        fault = _fault(run.task, value, len(called))
        if fault is not None:
            return [run.failed(each, fault, outside=True) for each in called]
        values = [None] * len(called) if value is None else value
        return [
            run.raised(each, end) if isinstance(end, BaseException) else run.returned(each, end)
            for each, end in zip(called, values, strict=True)
        ]


def _fault(task: Task[..., Any], value: Any, calls: int) -> TaskDefinitionError | None:
    """Returns the error of a batch of *calls* calls that has returned a wrong *value*."""
    if value is None and task.options.ignore_result:
        return None
    if isinstance(value, list | tuple) and len(value) == calls:
        return None
    what = count(len(value), "result") if isinstance(value, list | tuple) else shown(value)
    return TaskDefinitionError(
        f"the task {task.name!r} was given {count(calls, 'request')}, and returned {what}: return a list with the "
        "result of each, in their order; an exception in it fails that one."
    )


def _together(claim: Claim, ends: list[RunResult]) -> RunResult:
    """The result of a batch with these *ends*."""
    if not claim.members:
        return ends[0]
    outcome = Several(tuple(each.finished.outcome for each in ends))
    retried = tuple(raised for each in ends for raised in each.retried)
    failed = tuple(raised for each in ends for raised in each.failed)
    return RunResult(Finished(claim, outcome, ends[0].finished.elapsed), retried=retried, failed=failed)


ONCE: Final = Invocation()
_BATCH: Final = BatchInvocation()


def invocation_of(task: Task[..., Any]) -> Invocation:
    """How *task* is called: as the feature that makes its calls says, in batches, or once."""
    own: Invocation | None = task.invocation
    return own or (ONCE if task.options.batching is None else _BATCH)
