"""Makes the calls of a claim, here or in an event loop, where they can be interrupted; and has its hooks called."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from fbtasks.errors import FBTasksError
from fbtasks.run.claimed import Run, hooks_at
from fbtasks.run.interrupts import Interrupts
from fbtasks.run.invocation import ONCE, Calls, Note, Part, RunResult
from fbtasks.run.observing import observed
from fbtasks.tasks.call import Claim, Finished, Reason, Requeue
from fbtasks.tasks.request import SILENT, Reports, Request, running

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task
    from fbtasks.firebird.driver.lent import TaskTransaction

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
End = tuple[Any, BaseException | None]
"""What a call returned, or raised."""
_NOTHING: Final = nullcontext()


class Runner:
    """Runs tasks of one app. It does not speak to the database.

    Where :meth:`serve` does not, the caller has the hooks of on_retry called, when the task is sure to be tried again.
    """

    def __init__(
        self,
        app: FBTasks,
        rng: random.Random | None = None,
        interrupts: Interrupts | None = None,
        *,
        eager: bool = False,
        reports: Reports = SILENT,
        interruptible: bool = False,
    ) -> None:
        """*reports*: who takes what tasks say of themselves, by the numbers of their claims.

        *interruptible*: it works for a program that a Ctrl-C is to end, not for a worker.
        """
        self.app = app
        self.eager = eager
        self._interruptible = interruptible
        self.rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._reports = reports
        self._pid = os.getpid()
        self._interrupts = interrupts or Interrupts()
        for feature in () if eager else app.features.which("runs"):
            feature.runs()

    def serve(self, run: Callable[P, RunResult], *args: P.args, **kwargs: P.kwargs) -> RunResult:
        """Has *run* run a claim, and calls the on_retry hooks of what is tried again.

        In a copy of the context: what the task sets in that, its hooks see, and no later task of this thread.
        """
        context = copy_context()
        result = context.run(run, *args, **kwargs)
        if result.retried:
            context.run(self.tell_retried, result)
        return result

    def run(self, claim: Claim, transaction: TaskTransaction | None = None, note: Note | None = None) -> RunResult:
        """Runs the task to its end, in *transaction* if it is transactional. A coroutine gets a loop of its own."""
        return _made(self._run(claim, transaction, note, self._end_of, _apart))

    async def run_async(self, claim: Claim, note: Note | None = None) -> RunResult:
        """Runs a coroutine function to its end, inside a running event loop."""
        from asyncio import create_task

        return await self._run(claim, None, note, self._end_of_async, create_task)

    async def _run(
        self,
        claim: Claim,
        transaction: TaskTransaction | None,
        note: Note | None,
        end_of: Callable[[Run, Part], Awaitable[End]],
        apart: Callable[[Coroutine[Any, Any, Part | RunResult]], Awaitable[Part | RunResult]],
    ) -> RunResult:
        task = self.app.tasks.get(claim.name)
        if task is None:
            return RunResult(Finished(claim, Requeue(Reason.PARKED)))
        run = Run(self, claim, task, transaction, note)
        calls, several = run.invocation.calls(run), run.invocation.several
        # A stop that comes between two calls of the run is not lost.
        with self._interrupts.run(claim.id) if several else _NOTHING:
            part = _after(calls)
            while isinstance(part, Part):
                if several:
                    part = await apart(self._call(run, part, calls, end_of))
                elif self.app.middlewares.observe:
                    part = await self._call(run, part, calls, end_of)
                else:  # the plain run, without a coroutine of its own
                    with running(part.request, self._reports, claim.id, task):
                        part = _after(calls, await end_of(run, part))
            return part

    async def _call(
        self, run: Run, part: Part, calls: Calls, end_of: Callable[[Run, Part], Awaitable[End]]
    ) -> Part | RunResult:
        """Makes one call. Returns the next one, or the result of the run."""
        with observed(self, part.request, self._reports, run.claim.id, run.task) as told:
            told.result = _after(calls, await end_of(run, part))
        return told.result

    async def _end_of(self, run: Run, part: Part) -> End:
        """Makes one call. It waits for nothing."""
        number = run.claim.id
        try:
            with self._interrupts.window(number):
                self._begin(run)
                value = self.here(run.call, part)
                if isinstance(value, Coroutine):  # for asyncio a generator is one too, before Python 3.12
                    value = self._in_loop(number, value)
        except BaseException as error:  # noqa: BLE001  # whatever a task raises is its outcome
            return None, self._interrupts.meant(number, error)
        return value, None

    def _in_loop(self, number: int, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs *coroutine*, of the claim of that number, in an event loop of its own."""
        from asyncio import run  # programs without a coroutine do not pay for it

        async def awaited() -> Any:
            try:
                return await coroutine
            finally:
                self._check_fork()

        return run(self._interrupts.watched(number, awaited()))

    async def _end_of_async(self, run: Run, part: Part) -> End:
        number = run.claim.id

        async def called() -> Any:
            self._begin(run)
            try:
                return await run.call(part)
            finally:
                self._check_fork()

        try:
            return await self._interrupts.watched(number, called()), None
        except BaseException as error:  # noqa: BLE001
            return None, self._interrupts.meant(number, error)

    def let_pass(self, error: BaseException) -> None:
        """Raises *error* when it is no outcome, but ends the program that runs tasks itself: a Ctrl-C.

        In eager mode, where a task is called as any function is, so are SystemExit and all that is no Exception.
        """
        if self.eager:
            from asyncio import CancelledError  # of a coroutine it is one

            if not isinstance(error, Exception | CancelledError):
                raise error
        elif self._interruptible and isinstance(error, KeyboardInterrupt):
            raise error

    def _begin(self, run: Run) -> None:
        """Says that one of several calls begins, where it may be interrupted. Raises when they were stopped before."""
        if run.invocation.several:
            soft = run.task.options.soft_time_limit
            self._interrupts.begin_step(run.claim.id, 0.0 if soft is None else run.begun + soft)

    def here(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls *function* of the application. A process that it forked and that comes back as well ends here."""
        try:
            return function(*args, **kwargs)
        finally:
            self._check_fork()

    def _check_fork(self) -> None:
        """Ends this process if it is a copy of the one that serves: it is to touch no connection that they share."""
        if os.getpid() == self._pid or self.eager:
            return
        error = sys.exc_info()[1]
        if not isinstance(error, SystemExit):
            os._exit(0 if error is None else 1)
        os._exit(error.code & 255 if isinstance(error.code, int) else bool(error.code))

    def refused(self, claim: Claim, error: FBTasksError, elapsed: float = 0.0) -> RunResult:
        """The result of a task whose transaction the database refused: as if it had raised *error*, all of it."""
        run = Run(self, claim, self.app.tasks[claim.name])
        run.started -= elapsed
        run.refused = True
        calls = (ONCE if run.invocation.several else run.invocation).calls(run)
        part = _after(calls)
        if isinstance(part, Part):
            with observed(self, part.request, self._reports, claim.id, run.task) as told:
                told.result = part = _after(calls, (None, error))
        assert isinstance(part, RunResult)
        return part

    # Hooks

    def tell_retried(self, result: RunResult) -> None:
        """Calls the on_retry hooks of what is tried again."""
        for request, error, _ in result.retried:
            with running(request):
                self.tell("on_retry", self.app.tasks.get(request.task), request, error)

    def tell(self, end: str, task: Task[..., Any] | None, request: Request, value: Any) -> None:
        """Calls the hooks of an *end* with the request and the result or exception. What they raise is logged."""
        for hook in hooks_at(end, self.app, task):
            try:
                self.here(hook, request, value)
            except BaseException as error:  # SystemExit is no reason to run the task again
                self.let_pass(error)
                logger.exception("The %s hook of %s raised; the outcome stands.", end, request.task)


def _made(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs *coroutine*, which waits for nothing. Returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError


async def _apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs *coroutine* in a context of its own, as create_task does in an event loop."""
    return copy_context().run(_made, coroutine)


def _after(calls: Calls, end: End | None = None) -> Part | RunResult:
    """Returns the next call of a run, after one with that *end*; or the result of the run.

    That comes as a StopIteration, which is over here: it would be the context of all that hooks and middlewares raise.
    """
    try:
        return next(calls) if end is None else calls.send(end)
    except StopIteration as stop:
        result: RunResult = stop.value
    return result if end is None or end[1] is None else result._replace(raised=end[1])
