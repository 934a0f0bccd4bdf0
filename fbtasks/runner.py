"""The life of one claimed task in the process that runs it: read, called, and its end turned into an outcome."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from fbtasks import clock
from fbtasks.call import Cancelled, Claim, Failed, Finished, Outcome, Parked, Released, Retry, Succeeded
from fbtasks.definition import Task
from fbtasks.errors import (
    CommitUncertain,
    ConflictError,
    DatabaseError,
    DatabaseUnavailable,
    FBTasksError,
    SchemaError,
    SerializationError,
    TaskDefinitionError,
)
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.firebird.translate import connection_was_killed
from fbtasks.interrupts import Interrupts, NoInterrupts, TaskStopped
from fbtasks.remote_error import RemoteError, describe_exception, rebuild_exception
from fbtasks.request import Hook, Request, RetryRequested, running
from fbtasks.serialize import Payload
from fbtasks.store import tasks

if TYPE_CHECKING:
    from fbtasks.definition import App
    from fbtasks.firebird.lent import TaskTransaction

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

HELD_MOST: Final = 5.0
"""Seconds for which a transactional task whose row another transaction holds waits before its effects are undone."""
HELD_FIRST: Final = 0.05
HELD_LAST: Final = 0.5
"""Seconds between its attempts: twice as many each time, up to the latter."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim with what it needs to run."""

    claim: Claim
    task: Task[..., Any]
    request: Request

    def call(self) -> Any:
        """Calls the task's function; that of a coroutine function gives the coroutine."""
        return self.task(*self.request.args, **self.request.kwargs)


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that has failed for good, as its on_failure hooks are told."""

    request: Request
    error: BaseException


def failure_hooks(app: App, name: str) -> list[Hook]:
    """The on_failure hooks of the task of that name, where the app has it, and of the app, in this order."""
    task = app.tasks.get(name)
    hooks = (None if task is None else task.options.on_failure, app.on_failure)
    return [hook for hook in hooks if hook is not None]


class Runner:
    """Runs tasks of one app and decides what becomes of them. It does not speak to the database.

    on_failure hooks are called as soon as a task has failed for good; or, with *defer*, when the worker asks for it,
    once its outcome is recorded.
    """

    def __init__(
        self,
        app: App,
        rng: random.Random | None = None,
        interrupts: Interrupts | None = None,
        *,
        eager: bool = False,
        defer: bool = False,
    ) -> None:
        self.app = app
        self._eager = eager
        self._pid = os.getpid()
        self._interrupts = interrupts or NoInterrupts()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._defer = defer
        self._failures: dict[tuple[int, int], Failure] = {}
        """Of tasks whose run has ended, and whose outcome has not been taken note of."""

    def run(self, claim: Claim, connection: Any = None, raised: list[BaseException] | None = None) -> Finished:
        """Runs the task to its end; *raised* gets what it raises. A coroutine function gets a loop of its own."""
        started = clock.monotonic()
        prepared = self.prepare(claim, connection)
        if not isinstance(prepared, Prepared):
            return Finished(claim, prepared, clock.monotonic() - started)
        with running(prepared.request):
            try:
                with self._interrupts.window(claim.id):
                    value = self._here(prepared.call)
                    if isinstance(value, Coroutine):  # for asyncio a generator is one too, before Python 3.12
                        value = _run(self._interrupts.watched(claim.id, self._awaited(value)))
            except BaseException as error:  # noqa: BLE001  # whatever a task raises is its outcome
                if raised is not None:
                    raised.append(error)
                outcome = self.raised(prepared, error)
            else:
                outcome = self.returned(prepared, value)
        return Finished(claim, outcome, clock.monotonic() - started)

    async def run_async(self, claim: Claim) -> Finished:
        """The same for a coroutine function, inside a running event loop."""
        started = clock.monotonic()
        prepared = self.prepare(claim, None)
        if not isinstance(prepared, Prepared):
            return Finished(claim, prepared, clock.monotonic() - started)
        with running(prepared.request):
            try:
                value = await self._interrupts.watched(claim.id, self._awaited(prepared.call()))
            except BaseException as error:  # noqa: BLE001
                outcome = self.raised(prepared, error)
            else:
                outcome = self.returned(prepared, value)
        return Finished(claim, outcome, clock.monotonic() - started)

    def prepare(self, claim: Claim, connection: Any) -> Prepared | Outcome:
        """The task and its arguments, or the outcome when they cannot be had."""
        task = self.app.tasks.get(claim.name)
        if task is None:
            return Parked()
        try:
            args, kwargs = self._arguments(claim)
        except FBTasksError as error:
            return _without_traceback(self._fail(claim, self._request(claim, task), error))
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001  # an argument's own code, which may exit
            return self._fail(claim, self._request(claim, task), error)
        return Prepared(claim, task, self._request(claim, task, args, kwargs, connection))

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

    def returned(self, prepared: Prepared, value: Any) -> Outcome:
        """The outcome of a task that returned *value*."""
        task, outcome = prepared.task, Succeeded(keep=False)
        if isinstance(value, GeneratorType | AsyncGeneratorType):
            return _without_traceback(self._give_up(prepared, _not_run(task.name)))
        if not task.options.ignore_result:
            try:
                payload = self.app.serializer.dump_result(
                    value, task=task.name, number=prepared.claim.id, serializer=task.options.serializer
                )
            except FBTasksError as error:
                return _without_traceback(self._give_up(prepared, error))
            except MemoryError:
                raise
            except BaseException as error:  # noqa: BLE001  # the result's own code, which may exit
                return self._give_up(prepared, error)
            outcome = Succeeded(payload.content_type, payload.data)
        for hook in (task.options.on_success, self.app.on_success):
            if hook is not None:
                try:
                    self._here(hook, prepared.request, value)
                except BaseException:  # SystemExit is no reason to run the task again
                    logger.exception("The on_success hook of %s raised; the outcome stands.", task.name)
        return outcome

    def raised(self, prepared: Prepared, error: BaseException) -> Outcome:
        """The outcome of a task that raised *error*: another try, or the end."""
        claim, policy = prepared.claim, prepared.task.policy
        error = self._interrupts.meant(claim.id, error)
        if isinstance(error, TaskStopped):
            return Cancelled("stopped")  # whoever stopped it records why
        if isinstance(error, RetryRequested):
            cause = error.exc or error
            if cause.__traceback__ is None:  # given to retry() without having been raised
                cause = cause.with_traceback(error.__traceback__)
            allowed = prepared.request.max_retries if error.max_retries is None else error.max_retries
            if allowed is not None and claim.try_count >= allowed:
                return self._give_up(prepared, cause)
            delay = error.countdown
            if delay is None:
                delay = policy.delay(claim.try_count, cause, self._rng)
        elif isinstance(error, TaskDefinitionError):  # it would be the same the next time
            return self._give_up(prepared, error)
        else:
            cause = error
            wanted = policy.decide(error, claim.try_count + 1, claim.max_tries, self._rng)
            if wanted is None:
                return self._give_up(prepared, error)
            delay = wanted
        return _retry(prepared, delay, cause)

    def refused(self, claim: Claim, error: FBTasksError) -> Outcome:
        """The outcome of a task whose transaction the database refused: as if it had raised *error*."""
        prepared = self.prepare(claim, None)
        return self.raised(prepared, error) if isinstance(prepared, Prepared) else prepared

    def conflicted(self, claim: Claim, error: ConflictError) -> Outcome:
        """The outcome of a task whose transaction was in another one's way: a try as any other, and mostly one more."""
        prepared = self.prepare(claim, None)
        if not isinstance(prepared, Prepared):
            return prepared
        policy = prepared.task.policy
        delay = policy.after_conflict(error, claim.try_count + 1, claim.max_tries, self._rng)
        return self._give_up(prepared, error) if delay is None else _retry(prepared, delay, error)

    def _give_up(self, prepared: Prepared, error: BaseException) -> Failed:
        return self._fail(prepared.claim, prepared.request, error)

    def _fail(self, claim: Claim, request: Request, error: BaseException) -> Failed:
        if failure_hooks(self.app, claim.name):
            failure = Failure(replace(request, connection=None), error)  # its transaction is over then
            if self._defer:
                self._failures[claim.id, claim.claim_id] = failure
            else:
                self.call_failure_hooks(failure)
        return _failed(error)

    def _arguments(self, claim: Claim) -> tuple[list[Any], dict[str, Any]]:
        return self.app.serializer.load_call(Payload(claim.content_type, claim.payload or b""), task=claim.name)

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

    def take_failure(self, finished: Finished) -> Failure | None:
        """What the on_failure hooks are to be told of a task that this runner has failed; None without such hooks."""
        if not self._failures:
            return None
        failure = self._failures.pop((finished.claim.id, finished.claim.claim_id), None)
        return failure if isinstance(finished.outcome, Failed) else None

    def failure_of(self, claim: Claim, failed: Failed) -> Failure:
        """The same of a task that was failed elsewhere; without arguments where these cannot be read."""
        task = self.app.tasks.get(claim.name)
        try:
            args, kwargs = self._arguments(claim)
        except MemoryError:
            raise
        except BaseException:  # noqa: BLE001  # an argument's own code, which may exit
            request = self._request(claim, task)
        else:
            request = self._request(claim, task, args, kwargs)
        remote = RemoteError(failed.error_type, failed.message, failed.args_payload, failed.traceback)
        return Failure(request, rebuild_exception(remote))

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


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What *coroutine* returns in an event loop of its own. Programs without a coroutine do not pay for asyncio."""
    from asyncio import run

    return run(coroutine)


def _retry(prepared: Prepared, delay: float, error: BaseException) -> Retry:
    remote = describe_exception(error)
    task = prepared.request
    logger.debug("Task %s (%s) is to be tried again after:\n%s", task.id, task.task, remote.traceback)
    return Retry(delay, f"{remote.type_name}: {remote.message}", remote.type_name)


def _failed(error: BaseException) -> Failed:
    remote = describe_exception(error)
    return Failed(remote.type_name, remote.message, remote.traceback, remote.args_payload)


def _not_run(task: str) -> SerializationError:
    return SerializationError(
        f"task {task!r} returned a generator, whose code has not run: return a list of its items, or make each item a "
        "call."
    )


def _without_traceback(failed: Failed) -> Failed:
    """What failed outside of the task's own code, of which a traceback would show nothing."""
    return replace(failed, traceback="")


class TransactionalRunner:
    """Runs transactional tasks: their effects and their outcome are one transaction of one connection."""

    def __init__(self, runner: Runner, worker_id: Callable[[], int], slot: int) -> None:
        self._runner = runner
        self._worker_id = worker_id
        self._slot = slot
        self._session: Session | None = None
        self._turn: HostLock | None = None

    def run(self, claim: Claim) -> tuple[Finished, bool]:
        """Runs the task. The flag tells whether the outcome is recorded already.

        When the connection is lost the task is given back: its effects are undone, or they were committed together
        with its outcome, and then the claim is stale. But when the database has ended that connection alone, by an
        administrator's hand or a timeout, it would do so each time: that is the task's own error. So is what else the
        database refuses, such as a commit that a trigger objects to; and a task that would end the transaction itself
        fails, whatever it does then. When the claim is stale, the log says so here; the outcome is Released then, and
        the flag is true.
        """
        started = clock.monotonic()
        try:
            session, turn = self._open()
            return self._run(claim, session, turn)
        except (DatabaseUnavailable, SchemaError) as error:
            logger.warning("Task %d (%s) lost its connection: %s", claim.id, claim.name, error)
            self.close()
            return Finished(claim, Released()), False
        except (DatabaseError, TaskDefinitionError) as error:
            self.close()
            return Finished(claim, self._runner.refused(claim, error), clock.monotonic() - started), False

    def _run(self, claim: Claim, session: Session, turn: HostLock) -> tuple[Finished, bool]:
        from fbtasks.firebird.lent import task_transaction  # brings the driver, which other tasks can do without

        with task_transaction(session) as transaction:
            try:
                return self._run_in(transaction, claim, session, turn)
            except CommitUncertain:  # it may have taken effect
                raise
            except DatabaseUnavailable as error:
                if not self._ended_alone(error):
                    raise
                return Finished(claim, self._runner.refused(claim, error)), False

    def _run_in(
        self, transaction: TaskTransaction, claim: Claim, session: Session, turn: HostLock
    ) -> tuple[Finished, bool]:
        raised: list[BaseException] = []
        with transaction.lent():
            done = self._runner.run(claim, session.connection, raised)
        if session.connection.is_closed():
            self.close()
            if isinstance(done.outcome, Succeeded):
                raise TaskDefinitionError(
                    f"the task {claim.name!r} closed self.connection, so its effects are undone: "
                    "leave it open, and close only cursors."
                )
            return done, False
        misuse = transaction.misuse()
        if misuse is not None and isinstance(done.outcome, Succeeded | Retry):
            done = replace(done, outcome=self._runner.refused(claim, misuse))
        if transaction.ended:
            logger.error(
                "Task %d (%s) ended its transaction itself: what it had done until then is committed or undone "
                "whatever its outcome.",
                claim.id,
                claim.name,
            )
            self.close()
            return done, False
        if not isinstance(done.outcome, Succeeded):
            transaction.rollback()
            try:
                session.ping()
            except DatabaseUnavailable as error:
                if not self._ended_alone(error, *raised):
                    raise
            if done.outcome == Cancelled("stopped"):
                self.close()  # this process may be killed next, and must not hold anything then
            return done, False
        try:
            stands = self._record(transaction, done, turn)
        except ConflictError as error:
            transaction.rollback()
            return replace(done, outcome=self._runner.conflicted(claim, error)), False
        if stands is None:
            return done, True
        transaction.rollback()  # the effects belong to whoever has it now
        if stands == claim.claim_id:
            logger.warning(
                "Task %d (%s) had ended, but another transaction held its row for %g s: its effects are undone.",
                claim.id,
                claim.name,
                HELD_MOST,
            )
            return Finished(claim, Released(), done.elapsed), False
        logger.warning(
            "Task %d (%s) ended too late and its effects are undone: its claim is %d now, not %d.",
            claim.id,
            claim.name,
            stands,
            claim.claim_id,
        )
        return Finished(claim, Released(), done.elapsed), True

    def _record(self, transaction: TaskTransaction, done: Finished, turn: HostLock) -> int | None:
        """Records the outcome together with the effects. Gives the claim that stands if it cannot be done.

        While another transaction holds the task's row this waits for a while, but outside of the host's lock, which all
        workers need.
        """
        until, pause = clock.monotonic() + HELD_MOST, HELD_FIRST
        while True:
            with turn.held():
                stale = tasks.finish(transaction, self._worker_id(), self._slot, [done])
                if not stale:
                    transaction.commit("effect")
                    return None
            if stale[0].stands != done.claim.claim_id or clock.monotonic() >= until:
                return stale[0].stands
            time.sleep(pause)
            pause = min(2 * pause, HELD_LAST)

    def _ended_alone(self, *errors: BaseException) -> bool:
        """Whether *errors* say that the database ended this connection, while it lets a new one in at once."""
        self.close()
        if not any(map(connection_was_killed, errors)):
            return False
        try:
            self._open()
        except DatabaseError:
            return False
        return True

    def _open(self) -> tuple[Session, HostLock]:
        if self._session is None or self._turn is None:
            self._session = self._runner.app.database.open()
            self._turn = HostLock(self._runner.app.settings.url)
        return self._session, self._turn

    def cancel_statement(self) -> None:
        """Has the database end the statement that the task is in; from another thread."""
        if self._session is not None:
            self._session.cancel_statement()

    def close(self) -> None:
        """Closes the connection."""
        if self._session is not None:
            self._session.close()
        if self._turn is not None:
            self._turn.close()
        self._session = self._turn = None
