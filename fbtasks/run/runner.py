"""The life of one claimed task in the process that runs it: read, called, and its end turned into an outcome."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, FBTasksError, SerializationError, TaskDefinitionError
from fbtasks.features.sources.runs import arguments
from fbtasks.run.inputs import given_by
from fbtasks.run.interrupts import Interrupts, TaskStopped
from fbtasks.tasks.call import (
    Cancelled,
    Claim,
    Failed,
    Finished,
    Outcome,
    Parked,
    Replaced,
    Retry,
    Snoozed,
    Succeeded,
    rest_of,
)
from fbtasks.tasks.middleware import Around, run_through
from fbtasks.tasks.plan import ReplaceRequested
from fbtasks.tasks.remote_error import describe_exception, rebuild_exception
from fbtasks.tasks.reports import SILENT, Reports
from fbtasks.tasks.request import Hook, Request, RetryRequested, SnoozeRequested, replacing, running
from fbtasks.tasks.serialize import Payload

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that has failed for good, as its on_failure hooks are told."""

    request: Request
    error: BaseException


class RunResult(NamedTuple):
    """How the run of a task has ended."""

    finished: Finished
    failure: Failure | None = None
    """What the on_failure hooks are to be told, when the task has failed for good and there are any."""
    raised: BaseException | None = None
    """What the task's function raised."""
    done: int = 0
    """Of a run of changes that ends before its last one: how many calls of it have succeeded."""
    retried: tuple[Failure, ...] = ()
    """What the on_retry hooks are to be told, when the task, or calls of a batch, are tried again and there are any."""


class Prepared(NamedTuple):
    """A claim with what it needs to run."""

    claim: Claim
    task: Task[..., Any]
    request: Request
    started: float
    members: tuple[Prepared | RunResult, ...] = ()
    """Of a batch: each of its calls, or the result of one that cannot be read."""

    def call(self, arounds: Sequence[Around]) -> Any:
        """Calls the task's function, inside of *arounds*; of a coroutine function returns the coroutine."""
        if arounds:
            is_async = self.task.is_async
            return run_through(arounds, self.request, self._call_async if is_async else self._call, is_async=is_async)
        return self._begin(self.request)

    def _begin(self, request: Request) -> Any:
        task = self.task
        if task.hooks.before is not None:
            task.hooks.before(request)
        return task(*request.args, **request.kwargs)

    def _call(self, request: Request) -> Any:
        with replacing(request):
            return self._begin(request)

    async def _call_async(self, request: Request) -> Any:
        with replacing(request):
            return await self._begin(request)

    def ended(self, outcome: Outcome, failure: Failure | None = None) -> RunResult:
        """The result of a run that ends now."""
        return RunResult(Finished(self.claim, outcome, clock.monotonic() - self.started), failure)


def failure_hooks(app: FBTasks, name: str) -> list[Hook]:
    """The on_failure hooks of the task of that name, where the app has it, and of the app, in this order."""
    task = app.tasks.get(name)
    own = () if task is None else task.hooks.failure
    return [*own, *(() if app.on_failure is None else (app.on_failure,))]


class Runner:
    """Runs tasks of one app and decides what becomes of them. It does not speak to the database.

    The caller has the on_failure hooks called, by :meth:`call_failure_hooks`, when the failure is recorded, and those
    of on_retry, by :meth:`call_retry_hooks`, when it is sure that the task is tried again.
    """

    def __init__(
        self,
        app: FBTasks,
        rng: random.Random | None = None,
        interrupts: Interrupts | None = None,
        *,
        eager: bool = False,
        reports: Reports = SILENT,
    ) -> None:
        """*reports*: who takes what tasks say of themselves, by the numbers of their claims."""
        self.app = app
        self._reports = reports
        self._eager = eager
        self._pid = os.getpid()
        self._interrupts = interrupts or Interrupts()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret

    def run(self, claim: Claim, connection: Any = None) -> RunResult:
        """Runs the task to its end. A coroutine function gets a loop of its own."""
        prepared = self._prepare(claim, connection, clock.monotonic())
        if isinstance(prepared, RunResult):
            return prepared
        with running(prepared.request, self._reports, claim.id):
            try:
                with self._interrupts.window(claim.id):
                    value = self._here(prepared.call, self.app.middlewares.run)
                    if isinstance(value, Coroutine):  # for asyncio a generator is one too, before Python 3.12
                        value = self._in_loop(claim, value)
            except BaseException as error:  # noqa: BLE001  # whatever a task raises is its outcome
                return self._raised(prepared, error)
            else:
                return self._returned(prepared, value)

    def _in_loop(self, claim: Claim, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What *coroutine*, the claim's, returns in an event loop of its own."""
        from asyncio import run  # programs without a coroutine do not pay for it

        return run(self._interrupts.watched(claim.id, self._awaited(coroutine)))

    async def run_async(self, claim: Claim) -> RunResult:
        """The same for a coroutine function, inside a running event loop."""
        prepared = self._prepare(claim, None, clock.monotonic())
        if isinstance(prepared, RunResult):
            return prepared
        with running(prepared.request, self._reports, claim.id):
            try:
                value = await self._interrupts.watched(claim.id, self._awaited(prepared.call(self.app.middlewares.run)))
            except BaseException as error:  # noqa: BLE001
                return self._raised(prepared, error)
            else:
                return self._returned(prepared, value)

    def _prepare(self, claim: Claim, connection: Any, started: float) -> Prepared | RunResult:
        """The task and its arguments, or the result when they cannot be had."""
        task = self.app.tasks.get(claim.name)
        if task is None:
            return RunResult(Finished(claim, Parked(), clock.monotonic() - started))
        try:
            args, kwargs = self._load(claim)
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001  # an argument's own code, which may exit
            return self._fail(Prepared(claim, task, self._request(claim, task), started), error, outside=True)
        if task.subscription is not None:
            args = list(arguments(task.subscription, args))
        return Prepared(claim, task, self._request(claim, task, args, kwargs, connection), started)

    def _here(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls *function* of the application. A process that it forked and that comes back as well ends here."""
        try:
            return function(*args, **kwargs)
        finally:
            if os.getpid() != self._pid:
                self._leave_fork()

    async def _awaited(self, coroutine: Awaitable[T]) -> T:
        """The same for a coroutine."""
        try:
            return await coroutine
        finally:
            if os.getpid() != self._pid:
                self._leave_fork()

    def _leave_fork(self) -> None:
        """Ends this process, a copy of the one that serves: it is to touch none of the connections that it shares."""
        if self._eager:
            return
        error = sys.exc_info()[1]
        if not isinstance(error, SystemExit):
            os._exit(0 if error is None else 1)
        os._exit(error.code & 255 if isinstance(error.code, int) else bool(error.code))

    def _returned(self, prepared: Prepared, value: Any) -> RunResult:
        """The result of a task that returned *value*."""
        task, outcome = prepared.task, Succeeded(keep=False)
        if isinstance(value, GeneratorType | AsyncGeneratorType):
            return self._not_run(prepared)
        if not task.options.ignore_result or prepared.claim.wanted:
            try:
                payload = self.app.serializer.dump_result(
                    value, task=task.name, number=prepared.claim.id, serializer=task.options.serializer
                )
            except MemoryError:
                raise
            except BaseException as error:  # noqa: BLE001  # the result's own code, which may exit
                return self._fail(prepared, error, outside=True)
            outcome = Succeeded(payload.content_type, payload.data)
        if task.hooks.success or self.app.on_success is not None:
            self._call_success_hooks(prepared, value)
        return prepared.ended(outcome)

    def _call_success_hooks(self, prepared: Prepared, value: Any) -> None:
        for hook in (*prepared.task.hooks.success, self.app.on_success):
            if hook is not None:
                try:
                    self._here(hook, prepared.request, value)
                except BaseException:  # SystemExit is no reason to run the task again
                    logger.exception("The on_success hook of %s raised; the outcome stands.", prepared.task.name)

    def _not_run(self, prepared: Prepared) -> RunResult:
        """The result of a task that returned a generator."""
        not_run = SerializationError(
            f"task {prepared.task.name!r} returned a generator, whose code has not run: return a list of its items, or "
            "make each item a call."
        )
        return self._fail(prepared, not_run, outside=True)

    def _raised(self, prepared: Prepared, raised: BaseException) -> RunResult:
        """The result of a task that raised *raised*: another try, or the end."""
        return self._decide(prepared, self._interrupts.meant(prepared.claim.id, raised))._replace(raised=raised)

    def _decide(self, prepared: Prepared, error: BaseException) -> RunResult:
        claim, policy = prepared.claim, prepared.task.policy
        if isinstance(error, TaskStopped):
            return prepared.ended(Cancelled("stopped"))  # the worker that stopped it records why
        if isinstance(error, SnoozeRequested):
            return prepared.ended(Snoozed(error.seconds))
        if isinstance(error, ReplaceRequested):
            return prepared.ended(Replaced(error.plan, error.end))
        if isinstance(error, RetryRequested):
            cause = error.exc or error
            if cause.__traceback__ is None:  # given to retry() without having been raised
                cause = cause.with_traceback(error.__traceback__)
            allowed = prepared.request.max_retries if error.max_retries is None else error.max_retries
            if allowed is not None and claim.try_count >= allowed:
                error.use_up(allowed)  # which it is recorded with, when it is the cause itself
                return self._fail(prepared, cause)
            delay = error.countdown
            if delay is None:
                delay = policy.delay(claim.try_count, cause, self._rng)
        elif isinstance(error, TaskDefinitionError):  # it would be the same the next time
            return self._fail(prepared, error)
        else:
            cause = error
            wanted = policy.decide(error, claim.try_count + 1, claim.max_tries, self._rng)
            if wanted is None:
                return self._fail(prepared, error)
            delay = wanted
        return self._retry(prepared, delay, cause)

    def refused(self, claim: Claim, error: FBTasksError, elapsed: float = 0.0) -> RunResult:
        """The result of a task whose transaction the database refused: as if it had raised *error*."""
        prepared = self._prepare(claim, None, clock.monotonic() - elapsed)
        return self._raised(prepared, error) if isinstance(prepared, Prepared) else prepared

    def conflicted(self, claim: Claim, error: ConflictError, elapsed: float) -> RunResult:
        """The result of a task whose transaction was in another one's way: a try as any other, and mostly one more."""
        prepared = self._prepare(claim, None, clock.monotonic() - elapsed)
        if not isinstance(prepared, Prepared):
            return prepared
        policy = prepared.task.policy
        delay = policy.after_conflict(error, claim.try_count + 1, claim.max_tries, self._rng)
        return self._fail(prepared, error) if delay is None else self._retry(prepared, delay, error)

    def _retry(self, prepared: Prepared, delay: float, error: BaseException) -> RunResult:
        """The result of a task that is to be tried again."""
        failed = describe_exception(error)
        request = prepared.request
        logger.debug("Task %s (%s) is to be tried again after:\n%s", request.id, request.task, failed.traceback)
        result = prepared.ended(Retry(delay, f"{failed.error_type}: {failed.message}", failed.error_type))
        if prepared.task.hooks.retry or self.app.on_retry is not None:
            result = result._replace(retried=(Failure(replace(request, connection=None), error),))
        return result

    def _fail(self, prepared: Prepared, error: BaseException, *, outside: bool = False) -> RunResult:
        """The result of a task that has failed for good.

        *outside*: not in its own function, so that a traceback of one of this package's own errors would show nothing.
        """
        failure = None
        if failure_hooks(self.app, prepared.claim.name):
            failure = Failure(replace(prepared.request, connection=None), error)  # its transaction is over then
        failed = describe_exception(error)
        if outside and isinstance(error, FBTasksError):
            failed = replace(failed, traceback="")
        return prepared.ended(failed, failure)

    def _load(self, claim: Claim) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = self.app.serializer.load_call(Payload(claim.content_type, claim.payload or b""), task=claim.name)
        if claim.inputs:
            args = [*given_by(claim.inputs, self.app.serializer), *args]
        return args, kwargs

    def _request(
        self,
        claim: Claim,
        task: Task[..., Any] | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Request:
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
            connection=connection,
            eager=self._eager,
        )

    def failure_of(self, claim: Claim, failed: Failed) -> Failure:
        """What the on_failure hooks are told of a task that was failed elsewhere; unreadable arguments are left out."""
        task = self.app.tasks.get(claim.name)
        rest = rest_of(failed)
        if rest is not None and rest.own is not None:
            claim = claim._replace(payload=rest.own)
        try:
            args, kwargs = self._load(claim)
        except MemoryError:
            raise
        except BaseException:  # noqa: BLE001  # an argument's own code, which may exit
            request = self._request(claim, task)
        else:
            if task is not None and task.subscription is not None:
                args = list(arguments(task.subscription, args))
            request = self._request(claim, task, args, kwargs)
        return Failure(request, rebuild_exception(failed))

    def call_failure_hooks(self, failure: Failure, number: int = 0) -> None:
        """Calls the on_failure hooks, which may be interrupted as the task *number*. What they raise is logged."""
        with running(failure.request):
            for hook in failure_hooks(self.app, failure.request.task):
                try:
                    with self._interrupts.window(number):
                        self._here(hook, failure.request, failure.error)
                except TaskStopped:
                    raise
                except BaseException:
                    logger.exception("The on_failure hook of %s raised; the outcome stands.", failure.request.task)

    def call_retry_hooks(self, retried: Iterable[Failure]) -> None:
        """Calls the on_retry hooks for each of *retried*. What they raise is logged."""
        for each in retried:
            self._call_retry_hooks(each)

    def _call_retry_hooks(self, retried: Failure) -> None:
        request = retried.request
        task = self.app.tasks.get(request.task)
        with running(request):
            for hook in (*(() if task is None else task.hooks.retry), self.app.on_retry):
                if hook is None:
                    continue
                try:
                    self._here(hook, request, retried.error)
                except BaseException:
                    logger.exception("The on_retry hook of %s raised; the task is tried again.", request.task)
