"""Tasks: a function, its options, and the ways to call it now or later."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, ParamSpec, TypeVar, overload

from fbtasks import checks, clock
from fbtasks.call import Call, When
from fbtasks.config import check_queue_name
from fbtasks.errors import ConfigurationError, EnqueueError, FBTasksError, TaskDefinitionError
from fbtasks.retry import RetryPolicy

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.result import AsyncResult

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

Hook = Callable[["Request", Any], None]
"""Called with the request and the result (``on_success``) or the exception (``on_failure``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The call that is being run."""

    id: str
    task: str
    queue: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    retries: int = 0
    """Tries that ended before this one."""
    max_retries: int | None = None
    """None: without limit."""
    eta: datetime | None = None
    expires: datetime | None = None
    connection: Any = None
    """For a transactional task: the connection whose transaction also records the outcome."""
    eager: bool = False
    """Whether the call is run where it was made, without a worker and a database."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.celery_words import REQUEST_ATTRIBUTES, no_attribute

            raise AttributeError(no_attribute("a request", name, REQUEST_ATTRIBUTES), name=name, obj=self)


class RetryRequested(FBTasksError):
    """The task asked to be tried again. Let it pass: it is how ``self.retry()`` leaves the function."""

    def __init__(self, exc: BaseException | None, countdown: float | None, max_retries: int | None) -> None:
        super().__init__(f"retry requested: {exc!r}" if exc else "retry requested")
        self.exc = exc
        self.countdown = countdown
        self.max_retries = max_retries


_current: ContextVar[Request | None] = ContextVar("fbtasks_request", default=None)


def current_request() -> Request | None:
    """The request of the task that runs in this context, or None outside of one."""
    return _current.get()


@contextmanager
def running(request: Request) -> Iterator[None]:
    """Makes *request* the current one for the block."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of ``@app.task``; docs/reference/options.md describes them one by one."""

    name: str | None = None
    queue: str | None = None
    priority: int = 0
    bind: bool = False
    ignore_result: bool = False
    transactional: bool = False
    expires: float | timedelta | None = None
    serializer: str | None = None
    soft_time_limit: float | None = None
    time_limit: float | None = None
    max_retries: int | None = 3
    autoretry_for: Any = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    default_retry_delay: float = 180
    on_success: Hook | None = None
    on_failure: Hook | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
        if self.queue is not None:
            check_queue_name(self.queue)
        check_priority(self.priority)
        for what in ("bind", "ignore_result", "transactional"):
            checks.flag(what, getattr(self, what))
        if self.serializer is not None:
            checks.text("serializer", self.serializer)
        for what in ("on_success", "on_failure"):
            checks.hook(what, getattr(self, what))
        self._check_times()

    def _check_times(self) -> None:
        if isinstance(self.expires, timedelta):
            checks.duration("expires", self.expires)
        elif self.expires is not None:
            checks.seconds("expires", self.expires, zero=False, also=", or a timedelta")
        soft, hard = self.soft_time_limit, self.time_limit
        for what, limit in (("soft_time_limit", soft), ("time_limit", hard)):
            if limit is not None:
                checks.seconds(what, limit, zero=False)
        if soft is not None and hard is not None and soft >= hard:
            raise ConfigurationError(
                f"soft_time_limit {soft!r} must be less than time_limit {hard!r}, which ends the task before."
            )

    def retry_policy(self) -> RetryPolicy:
        """The retry options as the policy that decides."""
        return RetryPolicy(
            max_retries=self.max_retries,
            autoretry_for=self.autoretry_for,
            dont_autoretry_for=self.dont_autoretry_for,
            retry_backoff=self.retry_backoff,
            retry_backoff_max=self.retry_backoff_max,
            retry_jitter=self.retry_jitter,
            default_retry_delay=self.default_retry_delay,
        )


def check_name(name: object) -> str:
    """*name* itself. Raises :class:`TaskDefinitionError` unless a task may be called so."""
    if not isinstance(name, str):
        own = getattr(name, "name", None)
        hint = f": {own!r}" if isinstance(own, str) else ""
        raise TaskDefinitionError(f"the task name {checks.shown(name)} must be text{hint}.")
    if len(name) > 255 or not name.isprintable() or not name.strip():
        raise TaskDefinitionError(f"the task name {checks.shown(name)} must have 1 to 255 printable characters.")
    return name


def check_priority(value: int) -> int:
    """*value* itself. Raises :class:`ConfigurationError` unless it is an int from -9999 to 9999."""
    if isinstance(value, bool) or not isinstance(value, int) or not -9999 <= value <= 9999:
        raise ConfigurationError(
            f"priority {checks.shown(value)} must be a whole number from -9999 to 9999; higher runs first."
        )
    return value


def check_function(function: Any, *, bind: bool = False) -> None:
    """Raises :class:`TaskDefinitionError` unless *function* can be a task."""
    what = checks.shown(function)
    if isinstance(function, str):
        raise TaskDefinitionError(f"{what} is not a function; the name of a task is an option: @app.task(name={what}).")
    if isinstance(function, Task):
        raise TaskDefinitionError(f"{function.name!r} is a task already: decorate a function once.")
    if not callable(function):
        raise TaskDefinitionError(f"{what} is not a function.")
    if isinstance(function, type) or not hasattr(function, "__qualname__") or not hasattr(function, "__module__"):
        raise TaskDefinitionError(f"{what} is not a function: define one that calls it, and make that the task.")
    name = function.__qualname__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskDefinitionError(
            f"{name!r} is a generator function, and a task returns one value: return a list, or make each item a call."
        )
    if bind and not _takes_the_task(function):
        raise TaskDefinitionError(f"bind=True gives {name!r} the task as its first argument, and it takes none.")


def _takes_the_task(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind_partial(None)
    except TypeError:
        return False
    except ValueError:  # a function written in C that does not tell its parameters
        pass
    return True


class Task(Generic[P, R]):
    """A function that can be called now, or enqueued to be called by a worker.

    Calling the task runs the function here and now. :meth:`delay` and :meth:`apply_async` enqueue the call.
    """

    def __init__(self, function: Callable[P, R], options: TaskOptions, app: FBTasks | None) -> None:
        check_function(function, bind=options.bind)
        self.function = function
        self.options = options
        self.name = check_name(options.name or f"{home_module(function)}.{function.__qualname__}")
        self.policy = options.retry_policy()
        self._app = app
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.celery_words import TASK_ATTRIBUTES, no_attribute

            words = {field: f"task.options.{field}" for field in TaskOptions.__dataclass_fields__} | TASK_ATTRIBUTES
            raise AttributeError(no_attribute("a task", name, words), name=name, obj=self)

    @property
    def app(self) -> FBTasks:
        """The app that the task belongs to. Raises :class:`TaskDefinitionError` while there is none."""
        if self._app is None:
            raise TaskDefinitionError(
                f"the task {self.name!r} belongs to no app yet: give its module to FBTasks(include=[...]), "
                "or call app.register(task)."
            )
        return self._app

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bound_to(self, app: FBTasks) -> Task[P, R]:
        """Makes *app* the task's own. A task has one app."""
        if self._app is not None and self._app is not app:
            raise TaskDefinitionError(f"the task {self.name!r} already belongs to the app {self._app.name!r}.")
        self._app = app
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here and now, without the queue."""
        if self.options.bind:
            return self.function(self, *args, **kwargs)  # type: ignore[arg-type]  # bind adds the first parameter
        return self.function(*args, **kwargs)

    @property
    def request(self) -> Request:
        """The call that is being run in this context; outside of one, a request with nothing in it."""
        return current_request() or Request(id="", task=self.name, queue="")

    @property
    def connection(self) -> Any:
        """In a transactional task: the connection whose transaction also records the outcome."""
        connection = self.request.connection
        if connection is None:
            raise TaskDefinitionError(f"{self.name!r} has no connection: define it with transactional=True.")
        return connection

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **unknown: Never,
    ) -> NoReturn:
        """Leaves the function and has it tried again after *countdown* seconds (default: as its policy says).

        Once the retries are spent the task fails with *exc*, or with the exception being handled.
        """
        if unknown:
            raise ConfigurationError(unknown_options("argument of retry()", unknown, "RETRY_OPTIONS", Task.retry))
        if countdown is not None:
            checks.seconds("countdown", countdown)
        checks.retries("max_retries", max_retries)
        if exc is not None and not isinstance(exc, BaseException):
            raise ConfigurationError(f"exc {checks.shown(exc)} must be an exception: retry(exc=error).")
        cause = exc or sys.exc_info()[1]
        raise RetryRequested(cause, countdown, max_retries) from cause

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Enqueues the call in a transaction of its own."""
        return self.app.enqueue(self.call(args, kwargs), self)

    def apply_async(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        expires: float | timedelta | datetime | None = None,
        max_retries: int | None = None,
        task_id: str | None = None,
        serializer: str | None = None,
        **unknown: Never,
    ) -> AsyncResult[R]:
        """Enqueues the call with options of its own; see docs/reference/options.md."""
        return self.app.enqueue(
            self.call(
                args,
                kwargs,
                countdown=countdown,
                eta=eta,
                priority=priority,
                queue=queue,
                expires=expires,
                max_retries=max_retries,
                task_id=task_id,
                serializer=serializer,
                **unknown,
            ),
            self,
        )

    def using(self, connection: Any) -> BoundTask[P, R]:
        """The task, enqueued inside the open transaction of *connection*.

        *connection* is a connection of firebird-driver (its main transaction) or one of its transaction managers.
        Rolled back means never enqueued; no worker sees the call before the commit. Raises :class:`EnqueueError`
        for anything else, and for a connection that is closed or has another database open than the app's.
        """
        return BoundTask(self, connection)

    def delay_many(self, calls: Iterable[Sequence[Any]], **options: Any) -> list[AsyncResult[R]]:
        """Enqueues one call for each sequence of arguments, in one transaction and few round trips."""
        return self.app.enqueue_many(self.calls(calls, options), self)

    def calls(self, calls: Iterable[Sequence[Any]], options: Mapping[str, Any]) -> list[Call]:
        """A record for each sequence of arguments, all with the same options."""
        if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
            raise EnqueueError(f"calls {checks.shown(calls)} must be a list of lists of arguments: [(1,), (2,)].")
        if "args" in options or "kwargs" in options:
            raise EnqueueError("delay_many() takes positional arguments alone: [(1,), (2,)].")
        records = []
        for number, args in enumerate(calls):
            check_args(f"calls[{number}]", args)
            records.append(self.call(args, None, **options))
        if len(records) > 1 and options.get("task_id") is not None:
            raise EnqueueError(f"task_id {checks.shown(options['task_id'])} names one call, not {len(records)}.")
        return records

    def call(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        expires: float | timedelta | datetime | None = None,
        max_retries: int | None = None,
        task_id: str | None = None,
        serializer: str | None = None,
        **unknown: Never,
    ) -> Call:
        """The call as a record for the queue. Raises before anything is written when it cannot be one."""
        if unknown:
            raise EnqueueError(unknown_options("option of a call", unknown, "CALL_OPTIONS", Task.apply_async))
        args, kwargs = as_arguments(args, kwargs)
        self._check_arguments(args, kwargs)
        return self.app.make_call(
            self.name,
            args,
            kwargs,
            countdown=countdown,
            eta=eta,
            priority=self.options.priority if priority is None else priority,
            queue=self.options.queue if queue is None else queue,
            expires=self.options.expires if expires is None else expires,
            max_retries=max_retries,
            task_id=task_id,
            serializer=self.options.serializer if serializer is None else serializer,
        )

    def _check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        signature, least, most = self._parameters
        given = len(args) + self.options.bind
        if signature is None or (not kwargs and least <= given <= most):
            return
        first = (self,) if self.options.bind else ()
        try:
            signature.bind(*first, *args, **kwargs)
        except TypeError as error:
            raise EnqueueError(f"{self.name!r} cannot be called like that: {error}.") from None

    @cached_property
    def _parameters(self) -> tuple[inspect.Signature | None, int, float]:
        """The signature, and how few and how many positional arguments alone are a call of the function."""
        try:
            signature = inspect.signature(self.function)
        except ValueError:  # a function written in C that does not tell its parameters
            return None, 0, 0
        least, most = 0, 0.0
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                least += parameter.default is parameter.empty
                most += 1
            elif parameter.kind is parameter.VAR_POSITIONAL:
                most = math.inf
            elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                return signature, 1, 0  # never by position alone
        return signature, least, most


def home_module(function: Callable[..., Any]) -> str:
    """The module of *function* as a worker would import it; a script is known there by its file's name."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    return Path(getattr(main, "__file__", None) or "__main__").stem


class BoundTask(Generic[P, R]):
    """A task whose calls are enqueued inside the caller's open transaction."""

    def __init__(self, task: Task[P, R], connection: Any) -> None:
        task.app.check_connection(connection)
        self._task = task
        self._connection = connection

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Enqueues the call in the caller's transaction."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[R]:
        """Enqueues the call, with options, in the caller's transaction."""
        call = self._task.call(args, kwargs, **options)
        return self._task.app.enqueue_many([call], self._task, using=self._connection)[0]

    def delay_many(self, calls: Iterable[Sequence[Any]], **options: Any) -> list[AsyncResult[R]]:
        """Enqueues one call for each sequence of arguments in the caller's transaction."""
        return self._task.app.enqueue_many(self._task.calls(calls, options), self._task, using=self._connection)


_unbound: list[Task[..., Any]] = []
_unbound_lock = threading.Lock()


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Defines a task of library code that has no app at hand; it binds to the app that includes its module."""
    checked = make_options(options)

    def define(target: Callable[..., Any]) -> Task[..., Any]:
        made: Task[..., Any] = Task(target, checked, None)
        with _unbound_lock:
            _unbound.append(made)
        return made

    return define if function is None else define(function)


def make_options(options: Mapping[str, Any]) -> TaskOptions:
    """The options as a checked record. Raises :class:`TaskDefinitionError` for a name that does not exist."""
    unknown = options.keys() - TaskOptions.__dataclass_fields__.keys()
    if unknown:
        raise TaskDefinitionError(unknown_options("task option", unknown, "TASK_OPTIONS", TaskOptions))
    return TaskOptions(**options)


def unknown_options(what: str, given: Iterable[str], words: str, function: Callable[..., Any]) -> str:
    """The message for options that *function* does not have; *words* names the table of Celery's."""
    from fbtasks import celery_words

    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return celery_words.unknown_options(what, given, getattr(celery_words, words), known)


def unbound_tasks() -> list[Task[..., Any]]:
    """All free-standing tasks defined so far."""
    with _unbound_lock:
        return list(_unbound)


def as_arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Both, with nothing in the place of None. Raises :class:`EnqueueError` for what no function can be called with."""
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        check_args("args", args)
    if kwargs is None:
        kwargs = {}
    elif type(kwargs) is not dict and not isinstance(kwargs, Mapping):  # an abstract class takes longer to ask
        raise EnqueueError(f"kwargs {checks.shown(kwargs)} must be a dict of the arguments by their names.")
    for name in kwargs:
        if not isinstance(name, str):
            raise EnqueueError(f"kwargs has the key {checks.shown(name)}: the names of arguments are text.")
    return args, kwargs


def check_args(what: str, args: object) -> None:
    """Raises :class:`EnqueueError` unless *args* is a list, a tuple or the like."""
    if isinstance(args, list | tuple):
        return
    if isinstance(args, Mapping):
        raise EnqueueError(f"{what} {checks.shown(args)} must be a list or a tuple; arguments by name are kwargs.")
    if isinstance(args, str | bytes | bytearray | memoryview) or not isinstance(args, Sequence):
        value = checks.shown(args)
        raise EnqueueError(f"{what} {value} must be a list or a tuple of the arguments: ({value},).")


def start_of(countdown: float | None, eta: datetime | None, app: FBTasks) -> When:
    """When a call may start: a span from the database's now, or a moment in UTC."""
    if countdown is not None and eta is not None:
        raise EnqueueError("give countdown or eta, not both.")
    if countdown is not None:
        span = as_span("countdown", countdown)
        if span < timedelta(0):
            raise EnqueueError(f"countdown {countdown!r} must not be negative; 0 means at once.")
        return span
    if eta is not None:
        return as_moment("eta", eta, app)
    return None


def expiry_of(expires: float | timedelta | datetime | None, start: When, app: FBTasks) -> When:
    """When a call that has not begun is cancelled: later than now, and later than its *start*."""
    if expires is None:
        return None
    now = clock.utcnow()
    end: datetime | timedelta
    if isinstance(expires, datetime):
        end = as_moment("expires", expires, app)
    else:
        end = as_span("expires", expires, ", or a datetime")
    if _moment(end, now) <= now:
        raise EnqueueError(f"expires {expires} must be later than now.")
    if start is not None and _moment(end, now) <= _moment(start, now):
        raise EnqueueError(
            f"expires {expires} is not later than the eta or countdown ({start}), so the call could never run: "
            "give a later expires, or an earlier start."
        )
    return end


def _moment(when: datetime | timedelta, now: datetime) -> datetime:
    return when if isinstance(when, datetime) else now + when


def as_span(what: str, value: float | timedelta, also: str = "") -> timedelta:
    """*value*, in seconds or a span already, as a span. Raises :class:`EnqueueError`."""
    span = value if isinstance(value, timedelta) else None
    if span is None and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            span = timedelta(seconds=value)  # type: ignore[arg-type]  # whatever the caller gave
    if span is None or not -clock.LONGEST <= span <= clock.LONGEST:
        raise EnqueueError(f"{what} {checks.shown(value)} must be a number of seconds, at most a hundred years{also}.")
    return span


def as_moment(what: str, value: Any, app: FBTasks) -> datetime:
    """*value* in UTC. Raises :class:`EnqueueError`."""
    try:
        return clock.as_utc(value, app.settings.timezone)
    except (AttributeError, TypeError, ValueError, OverflowError):
        hint = ""
        if isinstance(value, str):
            hint = f": datetime.fromisoformat({checks.shown(value)})"
        elif isinstance(value, int | float | timedelta):
            hint = f"; give seconds from now as countdown={checks.shown(value)}" if what == "eta" else ""
        raise EnqueueError(f"{what} {checks.shown(value)} must be a datetime of the years 2 to 9998{hint}.") from None
