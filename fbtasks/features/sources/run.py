"""Runs a task that a source feeds: one call after the other, until one fails or other tasks have their turn."""

from __future__ import annotations

from collections.abc import Sequence
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from fbtasks import timing as clock
from fbtasks.errors import SerializationError
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.runs import FedRun, arguments, members, read
from fbtasks.features.sources.subscription import Subscription
from fbtasks.run.inputs import load
from fbtasks.run.invocation import Calls, Invocation, Part, RunResult
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, Outcome

if TYPE_CHECKING:
    from fbtasks.app import Task
    from fbtasks.run.claimed import Run

TURN = 1.0
"""Seconds after which a run makes no further call: what is left goes back, so that other tasks have their turn."""


class FedInvocation(Invocation):
    """Calls the function for each change or event of a claim, or for several of them together."""

    several = True

    def __init__(self, task: Task[..., Any], subscription: Subscription) -> None:
        self._task = task
        self._subscription = subscription

    def calls(self, run: Run) -> Calls:
        """One call after the other. Of a transactional task those before a failed one are kept."""
        fed = self._fed(run.claim)
        if isinstance(fed, BaseException):
            return run.failed(run.part(run.claim), fed, outside=True)
        if run.transaction is not None and isinstance(self._subscription.source, ChangeSource):
            run.transaction.execute("silence", self._task.name.encode())  # it does not hear of its own changes
        whole = run.part(run.claim, fed.arguments)
        for number, step in enumerate(fed.steps):
            if number and clock.monotonic() >= run.started + TURN:
                return run.ended(whole, fed.ended(RELEASED, number))._replace(done=number)
            run.begin(number)
            claim = run.claim._replace(try_count=fed.tries(number))
            part = run.part(claim, () if step.argument is None else (step.argument,))
            if step.error is not None:
                failed: RunResult | None = run.failed(part, step.error, outside=True)
            elif step.argument is None:
                continue
            else:
                failed = _failed(run, part, *(yield part))
            if failed is not None:
                stopped = isinstance(failed.finished.outcome, Cancelled)
                outcome = fed.ended(failed.finished.outcome, number, undone=stopped and run.transaction is not None)
                finished = failed.finished._replace(claim=run.claim, outcome=outcome)
                return failed._replace(finished=finished, done=0 if stopped else number)
        return run.returned(whole, None)

    def _fed(self, claim: Claim) -> FedRun | BaseException:
        """Returns the calls that are made of *claim*, or why it cannot be read."""
        try:
            given, kwargs, _ = load(self._task.app, claim)
            if kwargs:
                raise SerializationError(
                    f"the task {self._task.name!r} takes changes or events, and no argument {next(iter(kwargs))!r}."
                )
            return FedRun(self._task.name, self._subscription, claim, given)
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001  # as of other arguments
            return error

    def arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        """Returns the arguments for all members together; what cannot be read is left out."""
        return arguments(self._subscription, read(self._subscription, given))

    def tries(self, claim: Claim, step: int) -> int:
        """Returns how many tries have ended of the first member of a call."""
        fed = None if self._task.options.transactional else self._read(claim)
        return claim.try_count if fed is None else fed.tries(step)

    def ended(self, claim: Claim, outcome: Outcome, step: int) -> Outcome:
        """Returns *outcome* with what is left: of a transactional task, whose transaction is undone, all calls."""
        fed = self._read(claim)
        if fed is None or step >= len(fed.steps):
            return outcome
        return fed.ended(outcome, step, undone=self._task.options.transactional)

    def _read(self, claim: Claim) -> FedRun | None:
        """Returns the run of *claim*; None when it cannot be read."""
        try:
            return FedRun(self._task.name, self._subscription, claim, members(claim.payload or b""))
        except (SerializationError, ValueError):
            return None


def _failed(run: Run, part: Part, value: Any, error: BaseException | None) -> RunResult | None:
    """The result of a call, when it has failed: also by what it did to the transaction, whatever it returned."""
    fault = None if run.transaction is None else run.transaction.misuse()
    if fault is not None:
        raise fault  # nothing can be kept then
    failed = None if error is None else run.raised(part, error)
    if isinstance(value, GeneratorType | AsyncGeneratorType):
        return run.not_run(part)
    return failed
