"""Runs of tasks that a source feeds: call after call, until all are made, one fails, or other tasks have their turn."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from fbtasks import timing as clock
from fbtasks.errors import FBTasksError
from fbtasks.features.sources.runs import Run, Step, check_call
from fbtasks.features.sources.subscription import Subscription
from fbtasks.run.batch_runner import BatchRunner
from fbtasks.run.runner import Prepared, RunResult
from fbtasks.tasks.call import Cancelled, Claim, Failed, Released
from fbtasks.tasks.request import running

if TYPE_CHECKING:
    from fbtasks.app import Task

TURN = 1.0
"""Seconds after which a run makes no further call: what is left goes back, so that other tasks have their turn."""


class Calls:
    """What goes along with the calls of a run. Here that is nothing."""

    undone = False
    """Whether what the calls have done is undone when the run is stopped."""

    def begin(self, step: int) -> None:
        """The call number *step*, from 0 on, begins now."""

    def fault(self) -> FBTasksError | None:
        """Returns why the call that has just ended has failed, whatever it returned or raised."""
        return None

    def undo(self) -> None:
        """Undoes what the call that has just failed did, where that can be; not what those before it did."""

    def end(self) -> None:
        """The run has ended."""


class _Running:
    """A run that goes on: the task with all its members, and the calls that are made of them."""

    def __init__(self, prepared: Prepared, run: Run, calls: Calls) -> None:
        self.prepared = prepared
        self.run = run
        self.calls = calls
        self._until = prepared.started + TURN
        self._done = 0

    def steps(self) -> Iterator[tuple[int, Step]]:
        """The steps that there is time for, with their numbers."""
        for number, step in enumerate(self.run.steps):
            self._done = number
            if number and clock.monotonic() >= self._until:
                return
            yield number, step
        self._done += 1

    @property
    def is_done(self) -> bool:
        """Whether all calls have been made."""
        return self._done >= len(self.run.steps)

    def part(self, number: int, step: Step) -> Prepared:
        """The task as one call of it has it."""
        claim, task, request, started, _ = self.prepared
        tries = self.run.tries(number)
        args = () if step.argument is None else (step.argument,)
        if tries != claim.try_count:
            claim = claim._replace(try_count=tries)
        elif args == request.args:
            return self.prepared
        return Prepared(claim, task, replace(request, args=args, retries=tries), started)

    def failed(self, number: int, result: RunResult) -> RunResult:
        """The result of a run that ends with the *result* of one call, which has failed."""
        finished, undone = result.finished, self.calls.undone
        stopped = isinstance(finished.outcome, Cancelled)
        if not stopped and number:
            self.calls.undo()
        outcome = self.run.ended(finished.outcome, number, undone=undone and stopped)
        finished = finished._replace(claim=self.prepared.claim, outcome=outcome)
        return result._replace(finished=finished, done=0 if stopped else number)

    def advanced(self) -> RunResult:
        """The result of a run that leaves the rest for later."""
        result = self.prepared.ended(self.run.ended(Released(), self._done))
        return result._replace(done=self._done)


class FedRunner(BatchRunner):
    """Runs also tasks that a source feeds."""

    def run_fed(
        self, claim: Claim, task: Task[..., Any], connection: Any = None, calls: Calls | None = None
    ) -> RunResult:
        """Calls the function of *task*, which has a subscription, for what *claim* holds."""
        with self._run_of(claim, task, connection, calls or Calls()) as run:
            if isinstance(run, RunResult):
                return run
            for number, step in run.steps():
                failed = self._run_step(run.calls, number, step, run.part(number, step))
                if failed is not None:
                    return run.failed(number, failed)
            return self._over(run)

    async def run_fed_async(self, claim: Claim, task: Task[..., Any], calls: Calls | None = None) -> RunResult:
        """The same for a coroutine function, inside a running event loop."""
        with self._run_of(claim, task, None, calls or Calls()) as run:
            if isinstance(run, RunResult):
                return run
            for number, step in run.steps():
                failed = await self._run_step_async(run.calls, number, step, run.part(number, step))
                if failed is not None:
                    return run.failed(number, failed)
            return self._over(run)

    def _over(self, run: _Running) -> RunResult:
        """The result of a run in which no call has failed."""
        return self._returned(run.prepared, None) if run.is_done else run.advanced()

    @contextmanager
    def _run_of(
        self, claim: Claim, task: Task[..., Any], connection: Any, calls: Calls
    ) -> Iterator[_Running | RunResult]:
        """The run, which may be interrupted during the block, or the result when it cannot be read."""
        started = clock.monotonic()
        subscription = task.subscription
        assert subscription is not None
        try:
            run = self._read(claim, task, subscription)
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001  # as of other arguments
            yield self._fail(Prepared(claim, task, self._request(claim, task), started), error, outside=True)
            return
        prepared = Prepared(claim, task, self._request(claim, task, run.arguments, {}, connection), started)
        try:
            with self._interrupts.run(claim.id):
                yield _Running(prepared, run, calls)
        finally:
            calls.end()

    def _read(self, claim: Claim, task: Task[..., Any], subscription: Subscription) -> Run:
        members, kwargs = self._load(claim)
        check_call(task.name, kwargs)
        return Run(task.name, subscription, claim, members)

    def _begin(self, calls: Calls, number: int, step: Step, part: Prepared) -> tuple[bool, RunResult | None]:
        """Returns whether there is a call to make, and the result of a step that has failed without one."""
        calls.begin(number)
        if step.error is not None:
            return False, self._fail(part, step.error, outside=True)
        return step.argument is not None, None

    def _run_step(self, calls: Calls, number: int, step: Step, part: Prepared) -> RunResult | None:
        """Makes one call. Returns its result when it has failed."""
        begun = clock.monotonic()
        is_called, failed = self._begin(calls, number, step, part)
        if not is_called:
            return failed
        with running(part.request, self._reports, part.claim.id):
            try:
                with self._interrupts.window(part.claim.id):
                    self._begin_step(part, begun)
                    value = self._here(part.call, self.app.middlewares.run)
                    if isinstance(value, Coroutine):
                        value = self._in_loop(part.claim, value)
            except BaseException as error:  # noqa: BLE001  # whatever a task raises is its outcome
                return self._step_raised(calls, part, error)
            return self._step_returned(calls, part, value)

    async def _run_step_async(self, calls: Calls, number: int, step: Step, part: Prepared) -> RunResult | None:
        begun = clock.monotonic()
        is_called, failed = self._begin(calls, number, step, part)
        if not is_called:
            return failed
        with running(part.request, self._reports, part.claim.id):
            try:
                value = await self._interrupts.watched(part.claim.id, self._step(part, begun))
            except BaseException as error:  # noqa: BLE001
                return self._step_raised(calls, part, error)
            return self._step_returned(calls, part, value)

    async def _step(self, part: Prepared, begun: float) -> Any:
        self._begin_step(part, begun)
        return await self._awaited(part.call(self.app.middlewares.run))

    def _begin_step(self, part: Prepared, begun: float) -> None:
        """Says that one call begins, inside of what may be interrupted. Raises when the run was stopped before."""
        soft = part.task.options.soft_time_limit
        self._interrupts.begin_step(part.claim.id, 0.0 if soft is None else begun + soft)

    def _step_raised(self, calls: Calls, part: Prepared, error: BaseException) -> RunResult:
        result = self._raised(part, error)
        fault = calls.fault()
        if fault is None or isinstance(result.finished.outcome, Cancelled | Failed):
            return result
        return self._fail(part, fault)

    def _step_returned(self, calls: Calls, part: Prepared, value: Any) -> RunResult | None:
        fault = calls.fault()
        if fault is not None:
            return self._fail(part, fault)
        return self._not_run(part) if isinstance(value, GeneratorType | AsyncGeneratorType) else None
