"""A claim in the process that runs it: what it is called with, and the outcome that the end of a call makes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, FBTasksError, SerializationError, TaskDefinitionError
from fbtasks.run.inputs import load
from fbtasks.run.interrupts import TaskStopped
from fbtasks.run.invocation import Note, Part, Raised, RunResult, invocation_of
from fbtasks.system.showing import kind_of
from fbtasks.tasks.call import Cancelled, Claim, Finished, Outcome, Reason, Requeue, Succeeded
from fbtasks.tasks.middleware import run_through
from fbtasks.tasks.remote_error import describe_exception
from fbtasks.tasks.request import EndsWith, Hook, Request, RetryRequested, current, running

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task
    from fbtasks.firebird.driver.lent import TaskTransaction
    from fbtasks.run.runner import Runner

logger = logging.getLogger(__name__)
SAVEPOINT = "FBTASKS_CALL"
"""What a failed call goes back to, when those before it, in the same transaction, are kept."""


class Run:
    """One claim of a task that this process knows. It makes an outcome of how each call has ended."""

    __slots__ = ("_note", "_runner", "begun", "claim", "invocation", "refused", "started", "task", "transaction")

    def __init__(
        self,
        runner: Runner,
        claim: Claim,
        task: Task[..., Any],
        transaction: TaskTransaction | None = None,
        note: Note | None = None,
    ) -> None:
        self._runner = runner
        self.claim = claim
        self.task = task
        self.invocation = invocation_of(task)
        self.transaction = transaction
        self._note = note
        self.started = self.begun = clock.monotonic()
        self.refused = False
        """Whether the database has refused its transaction: what a call raised is what that said."""

    # What is called

    def read(self, claim: Claim) -> Part | RunResult:
        """One call with the arguments of *claim*, or the result when they cannot be read."""
        args, kwargs, headers, error = read_arguments(self._runner.app, claim, self.task)
        part = self.part(claim, args, kwargs, headers)
        return part if error is None else self.failed(part, error, outside=True)

    def part(
        self,
        claim: Claim,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Part:
        """One call with these arguments and headers."""
        connection = None if self.transaction is None else self.transaction.connection
        return Part(claim, request_of(claim, self.task, args, kwargs, headers, connection, eager=self._runner.eager))

    def begin(self, step: int) -> None:
        """One of several calls begins, the number *step*."""
        self.begun = clock.monotonic()
        if step and self.transaction is not None:
            self.transaction.savepoint(SAVEPOINT)
        if self._note is not None:
            self._note(step)

    def call(self, part: Part) -> Any:
        """Calls the function, inside of the middlewares; of a coroutine function returns the coroutine."""
        arounds = self._runner.app.middlewares.run
        if arounds and not self.invocation.is_internal:
            is_async = self.task.is_async
            call = self._call_async if is_async else self._call
            return run_through(arounds, part.request, call, is_async=is_async)
        return self._begin(part.request)

    def _begin(self, request: Request) -> Any:
        task = self.task
        for hook in task.hooks["before_start"]:
            hook(request, None)
        return task(*request.args, **request.kwargs)

    def _call(self, request: Request) -> Any:
        with running(request, *current()[1:]):  # a middleware may have changed it
            return self._begin(request)

    async def _call_async(self, request: Request) -> Any:
        with running(request, *current()[1:]):
            return await self._begin(request)

    # What becomes of it

    def ended(self, part: Part, outcome: Outcome) -> RunResult:
        """The result of a call that ends now."""
        return RunResult(Finished(part.claim, outcome, clock.monotonic() - self.started))

    def returned(self, part: Part, value: Any) -> RunResult:
        """The result of a call that returned *value*."""
        task, app, outcome = self.task, self._runner.app, Succeeded(keep=False)
        unsendable: BaseException | None = None
        if isinstance(value, GeneratorType | AsyncGeneratorType):
            return self.not_run(part)
        if not task.options.ignore_result or part.claim.wanted:
            try:
                payload = app.serializer.dump_result(
                    value, task=task.name, number=part.claim.id, serializer=task.options.serializer
                )
            except MemoryError:
                raise
            except BaseException as error:  # noqa: BLE001  # the result's own code, which may exit
                unsendable = error  # which is no context of what hooks raise
            else:
                outcome = Succeeded(payload.content_type, payload.data)
        if unsendable is not None:
            return self.failed(part, unsendable, outside=True)
        self._runner.tell("on_success", task, part.request, value)
        return self.ended(part, outcome)

    def not_run(self, part: Part) -> RunResult:
        """The result of a call that returned a generator."""
        not_run = SerializationError(
            f"task {self.task.name!r} returned a generator, whose code has not run: return a list of its items, or "
            "make each item a call."
        )
        return self.failed(part, not_run, outside=True)

    def raised(self, part: Part, error: BaseException) -> RunResult:
        """The result of a call that raised *error*: another try, or the end."""
        self._runner.let_pass(error)
        claim, policy, rng = part.claim, self.task.policy, self._runner.rng
        if isinstance(error, TaskStopped):
            return self.ended(part, Cancelled("stopped"))  # the worker that stopped it records why
        if isinstance(error, EndsWith):
            return self.ended(part, error.outcome)
        if isinstance(error, RetryRequested):
            cause = error.exc or error
            if cause.__traceback__ is None:  # given to retry() without having been raised
                cause = cause.with_traceback(error.__traceback__)
            allowed = part.request.max_retries if error.max_retries is None else error.max_retries
            if allowed is not None and claim.try_count >= allowed:
                # Which it is recorded with, when it is the cause itself.
                error.args = (f"the task asked for another try, and max_retries {allowed} is used up",)
                return self.failed(part, cause)
            delay = error.countdown
            if delay is None:
                delay = policy.delay(claim.try_count, cause, rng)
        elif isinstance(error, TaskDefinitionError):  # it would be the same the next time
            return self.failed(part, error)
        else:
            cause = error
            decide = policy.after_conflict if self.refused and isinstance(error, ConflictError) else policy.decide
            wanted = decide(error, claim.try_count + 1, claim.max_tries, rng)
            if wanted is None:
                return self.failed(part, error)
            delay = wanted
        return self._retried(part, delay, cause)

    def _retried(self, part: Part, delay: float, error: BaseException) -> RunResult:
        """The result of a call that is to be made again."""
        failed = describe_exception(error)
        request = part.request
        logger.debug("Task %s (%s) is to be tried again after:\n%s", request.id, request.task, failed.traceback)
        said = f"{kind_of(failed.error_type)}: {failed.message}"
        outcome = Requeue(Reason.RETRY, delay, said, failed.error_type, traceback=failed.traceback)
        raised = Raised(replace(request, connection=None), error, failed.traceback)
        return self.ended(part, outcome)._replace(retried=(raised,))

    def failed(self, part: Part, error: BaseException, *, outside: bool = False) -> RunResult:
        """The result of a call that has failed for good.

        *outside*: not in its own function, so that a traceback of one of this package's own errors would show nothing.
        """
        self._runner.let_pass(error)
        failed = describe_exception(error)
        if outside and isinstance(error, FBTasksError):
            failed = replace(failed, traceback="")
        if self._runner.eager:  # else the record of the failure enqueues a call of its hooks
            with running(part.request):
                self._runner.tell("on_failure", self.task, part.request, error)
        return self.ended(part, failed)._replace(failed=(Raised(part.request, error, failed.traceback),))


def hooks_at(end: str, app: FBTasks, task: Task[..., Any] | None) -> tuple[Hook, ...]:
    """The hooks of that *end* of *task*, where the app has it, and of the app, in this order."""
    own, of_app = () if task is None else task.hooks[end], getattr(app, end)
    return own if of_app is None or (task is not None and invocation_of(task).is_internal) else (*own, of_app)


def read_arguments(
    app: FBTasks, claim: Claim, task: Task[..., Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any], Mapping[str, str], BaseException | None]:
    """The arguments of *claim* by position and by name, and its headers; or none, and why they cannot be read."""
    try:
        args, kwargs, headers = load(app, claim)
        return args if task is None else invocation_of(task).arguments(args), kwargs, headers, None
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001  # an argument's own code, which may exit
        return (), {}, {}, error


def request_of(
    claim: Claim,
    task: Task[..., Any] | None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    connection: Any = None,
    *,
    eager: bool = False,
) -> Request:
    """*claim* as its task and the hooks see it. *task* is None where this process does not know it."""
    limit = claim.max_tries
    if limit is not None:
        limit -= 1
    elif task is not None:
        limit = task.policy.max_retries
    return Request(
        id=claim.task_id or str(claim.id),
        task=claim.name,
        queue=claim.queue,
        args=tuple(args),
        kwargs=kwargs or {},
        priority=claim.priority,
        retries=claim.try_count,
        max_retries=None if claim.max_tries == 0 else limit,
        eta=clock.from_ms(claim.start // 10),
        expires=None if claim.expire_ms is None else clock.from_ms(claim.expire_ms),
        headers=headers or {},
        connection=connection,
        eager=eager,
    )
