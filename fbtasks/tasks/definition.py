"""Tasks: a function, its options, and the ways to call it now or later."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakSet

from fbtasks.errors import ConfigurationError, EnqueueError, TaskDefinitionError
from fbtasks.system import checks
from fbtasks.tasks.by_name import ByName, at, home_of, is_at
from fbtasks.tasks.call import Call, Reason, Requeue
from fbtasks.tasks.celery_words import AnswersCelery, instead, words
from fbtasks.tasks.declare import chosen, options_of, refuse_unknown, shows
from fbtasks.tasks.function import Parameters, as_arguments, check_args, check_function
from fbtasks.tasks.handlers import HANDLERS, hooks_of
from fbtasks.tasks.middleware import enqueue_through
from fbtasks.tasks.options import CallOptions, CommonOptions, RetryOptions, task_name
from fbtasks.tasks.request import EndsWith, Request, RetryRequested, current, current_request
from fbtasks.tasks.retry import RetryPolicy
from fbtasks.tasks.windows import Window, window_of

if TYPE_CHECKING:
    from fbtasks.app import AsyncResult, FBTasks
    from fbtasks.feature import Feature

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
C = TypeVar("C")
"""The result of a coroutine."""
Arguments = tuple[Sequence[Any] | None, Mapping[str, Any] | None]
"""Those of one call, by position and by name."""


class TaskCalls(Generic[P, R]):
    """The ways to enqueue calls of a task, in a transaction of their own or in that of a connection."""

    def __init__(self, task: Task[P, R], connection: Any) -> None:
        self._task = task
        self._connection = connection

    @overload
    def delay(self: TaskCalls[P, Coroutine[Any, Any, C]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[C]: ...
    @overload
    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]: ...
    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[Any]:
        """Enqueues the call."""
        return self._task.enqueue([(args, kwargs)], {}, self._connection)[0]

    @overload
    def apply_async(
        self: TaskCalls[P, Coroutine[Any, Any, C]],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[C]: ...
    @overload
    def apply_async(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[R]: ...
    @shows(CallOptions)
    def apply_async(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[Any]:
        """Enqueues the call with options of its own; see docs/reference/options.md."""
        return self._task.enqueue([(args, kwargs)], options, self._connection)[0]

    @overload
    def delay_many(
        self: TaskCalls[P, Coroutine[Any, Any, C]], calls: Iterable[Sequence[Any]], **options: Unpack[CallOptions]
    ) -> list[AsyncResult[C]]: ...
    @overload
    def delay_many(self, calls: Iterable[Sequence[Any]], **options: Unpack[CallOptions]) -> list[AsyncResult[R]]: ...
    @shows(CallOptions)
    def delay_many(self, calls: Iterable[Sequence[Any]], **options: Unpack[CallOptions]) -> list[AsyncResult[Any]]:
        """Enqueues one call for each sequence of arguments, in one transaction and few round trips."""
        return self._task.enqueue(check_calls(calls, options), options, self._connection)


class Task(TaskCalls[P, R], ByName, AnswersCelery):
    """A function that can be called now, or enqueued to be called by a worker.

    Calling the task runs the function here and now. :meth:`delay` and :meth:`apply_async` enqueue the call in a
    transaction of its own.
    """

    _known_as = "a task"
    is_called = True
    """Whether programs call it: then its arguments are known where it is called."""
    in_order = False
    """Whether its end lets another one in."""
    invocation: Any = None
    """How a worker calls it, where a feature says that: a :class:`fbtasks.run.invocation.Invocation`."""

    def __init__(self, function: Callable[P, R], options: CommonOptions) -> None:
        super().__init__(self, None)
        if isinstance(function, Task):
            raise TaskDefinitionError(f"{function.name!r} is a task already: decorate a function once.")
        check_function(function, bind=options.bind)
        self.function = function
        self.options = options
        self.name: str = options.name or task_name("name", f"{home_of(function.__module__)}.{function.__qualname__}")
        self.policy: RetryPolicy = options
        self.hooks = hooks_of(self, options)
        """What is called when it begins, and when a run of it has ended; those of the app come after these."""
        self._app: FBTasks | None = None
        self.prepared_by: tuple[Feature, ...] = ()
        """The features that have something to say of its calls."""
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles it by the name of its function where that is the task, else by its app and its own name."""
        module, name = self.function.__module__, self.function.__qualname__
        return (at, (home_of(module), name)) if is_at(self, module, name) else (_task_of, (self.app, self.name))

    @property
    def app(self) -> FBTasks:
        """The app that the task belongs to. Raises :class:`TaskDefinitionError` while there is none."""
        if self._app is None:
            found = [app for app in _apps if app.takes(self.function.__module__)]
            if len(found) == 1:
                found[0].register(self)
        if self._app is None:
            raise TaskDefinitionError(
                f"the task {self.name!r} belongs to no app yet: give its module to FBTasks(include=[...]), or "
                "its package to app.autodiscover_tasks([...]), or call app.register(task)."
            )
        return self._app

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its calls: its own, and those that it had before."""
        return (self.name, *self.options.aliases)

    @property
    def window(self) -> Window | None:
        """When it may begin; None: at any time."""
        options = self.options
        return window_of(options.run_between, options.days, options.tz, self.app.settings.zone_name)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bound_to(self, app: FBTasks) -> None:
        """Makes *app* the task's own. A task has one app."""
        if self._app is not None and self._app is not app:
            raise TaskDefinitionError(f"the task {self.name!r} already belongs to the app {self._app.name!r}.")
        self._app = app

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
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

    @shows(RetryOptions)
    def retry(self, **options: Unpack[RetryOptions]) -> NoReturn:
        """Leaves the function and has it tried again after *countdown* seconds (default: as its policy says).

        Once *max_retries* (default: the call's own) are used up the task fails with *exc*, or with the exception being
        handled.
        """
        given = chosen("argument of retry()", RetryOptions, options, ConfigurationError)
        cause = given.get("exc") or sys.exc_info()[1]
        raise RetryRequested(cause, given.get("countdown"), given.get("max_retries")) from cause

    def snooze(self, seconds: float) -> NoReturn:
        """Leaves the function and has it run again after *seconds*. It has not failed, and no try is counted.

        What a transactional task has done until then is undone.
        """
        delay = checks.seconds("snooze", seconds, zero=False)
        raise EndsWith(f"snooze requested: {delay:g} s", Requeue(Reason.SNOOZE, delay))

    def heartbeat(self) -> None:
        """Says that the task is at work: the time of its *heartbeat_timeout* begins anew.

        It costs a few microseconds and no message. Outside of a worker it does nothing.
        """
        _, reports, number, _ = current()
        reports.beat(number)

    def using(self, connection: Any) -> TaskCalls[P, R]:
        """The task, enqueued inside the open transaction of *connection*.

        *connection* is a connection of firebird-driver (its main transaction) or one of its transaction managers.
        Rolled back means never enqueued; no worker sees the call before the commit. What this returns is for that one
        transaction. Raises :class:`EnqueueError` for anything else, for a connection that is closed or has another
        database open than the app's; its methods do when the transaction has ended.
        """
        if connection is None or not self.app.always_eager:  # eager calls need none
            connection = self.app.enqueuer.guest(connection)
        return TaskCalls(self, connection)

    def enqueue(self, arguments: Sequence[Arguments], options: CallOptions, using: Any = None) -> list[AsyncResult[R]]:
        """Enqueues a call for each of *arguments*, with the same options, as the app's ``enqueue_calls`` does."""
        app = self.app
        write = partial(app.enqueue_calls, using=using, ignored=self.options.ignore_result)
        return enqueue_through(app.middlewares.enqueue, self.name, arguments, options, self.call, write)

    def call(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, **options: Unpack[CallOptions]
    ) -> Call:
        """The call as a record for the queue. Raises before anything is written when it cannot be one."""
        self.check_callable()
        args, kwargs = as_arguments(args, kwargs)
        self.parameters.check(self.name, args, kwargs)
        return self.prepared(args, kwargs, None, options)

    def check_callable(self) -> None:
        """Raises :class:`EnqueueError` for a task that programs do not call."""

    def prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any], step: int | None, options: CallOptions) -> Call:
        """Returns the call of checked arguments, as features have prepared it: *step* is as for them."""
        call = self.app.enqueuer.make_call(self.name, args, kwargs, self.options, **options)
        for feature in self.prepared_by:
            call = feature.prepare(call, self, args, kwargs, step)
        return call

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters of its calls."""
        if self.options.batching is not None:  # it is given requests, whatever their arguments are
            return Parameters(lambda *_args, **_kwargs: None, ())
        return Parameters(self.function, (self,) if self.options.bind else ())


def _task_of(app: FBTasks, name: str) -> Task[..., Any]:
    """Returns the task that was pickled by its *name* in *app*."""
    return app.find_task(name)


def check_calls(calls: Iterable[Sequence[Any]], options: CallOptions) -> list[Arguments]:
    """The arguments of each call. Raises :class:`EnqueueError` for what ``delay_many`` does not take."""
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        raise EnqueueError(f"calls {checks.shown(calls)} must be a list of lists of arguments: [(1,), (2,)].")
    if "args" in options or "kwargs" in options:
        raise EnqueueError("delay_many() takes positional arguments alone: [(1,), (2,)].")
    found: list[Arguments] = []
    for number, args in enumerate(calls):
        check_args(f"calls[{number}]", args)
        found.append((args, None))
    if len(found) > 1 and options.get("task_id") is not None:
        raise EnqueueError(f"task_id {checks.shown(options['task_id'])} names one call, not {len(found)}.")
    return found


_unbound: list[Task[..., Any]] = []
_apps: WeakSet[FBTasks] = WeakSet()


def keep_app(app: FBTasks) -> None:
    """Registers *app*, so that free-standing tasks of its modules find it."""
    _apps.add(app)


def define(
    function: Any,
    options: Mapping[str, Any],
    keep: Callable[[Any], Any],
    kind: type[Task[..., Any]],
    declared: Any,
) -> Any:
    """The task made of *function*, as *keep* returns it; without a function the decorator that makes it.

    *kind* is the class of the app's tasks; *declared* has the options. Raises :class:`TaskDefinitionError` for one that
    does not exist.
    """
    refuse_unknown("task option", options, declared)
    kind, options = with_class(options, kind, declared)
    checked = declared(**options)

    def decorate(target: Callable[..., Any]) -> Any:
        return keep(kind(target, checked))

    return decorate if function is None else decorate(function)


def with_class(
    options: Mapping[str, Any], kind: type[Task[..., Any]], declared: Any
) -> tuple[type[Task[..., Any]], dict[str, Any]]:
    """The class of a task with these options, *kind* unless they say otherwise, and the options with those of it.

    Raises :class:`TaskDefinitionError` for an attribute of the class that is an option of Celery's and none here.
    """
    if options.get("base") is not None:
        kind = check_class("base", options["base"])
    own: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("fbtasks."):
            own |= {name: value for name, value in vars(each).items() if not name.startswith("_")}
    refused = own.keys() - {"abstract", *HANDLERS}  # no class is a task by itself, so the former says nothing
    for name in sorted(refused & words()["task option"].keys()) if refused else ():
        raise TaskDefinitionError(
            f"the class {kind.__name__} has {name!r}, an option of Celery's for tasks{instead(name, 'task option')}"
        )
    given = own.keys() & (options_of(declared).keys() - {"name", "aliases", "base", *HANDLERS})
    return kind, {**{name: own[name] for name in given}, **options}


def check_class(what: str, kind: Any) -> type[Any]:
    """Returns *kind*, a class of tasks. Raises :class:`TaskDefinitionError` unless it can be one."""
    if not isinstance(kind, type) or not issubclass(kind, Task):
        raise TaskDefinitionError(f"{what} {checks.shown(kind)} must be a class that derives from fbtasks.Task.")
    try:
        inspect.signature(kind).bind(None, None)
    except (TypeError, ValueError):
        raise TaskDefinitionError(
            f"{what} {kind.__name__} has an __init__ of its own, which is not called as that of a task: give the class "
            "attributes, or what functools.cached_property makes when it is first used."
        ) from None
    return kind


def keep_unbound(task: Task[..., Any]) -> Task[..., Any]:
    """Keeps a free-standing task until an app includes its module."""
    _unbound.append(task)
    return task


def unbound_tasks() -> list[Task[..., Any]]:
    """All free-standing tasks defined so far."""
    return list(_unbound)
