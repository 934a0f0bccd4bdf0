"""Tasks: a function, its options, and the ways to call it now or later."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload
from weakref import WeakSet

from fbtasks.errors import ConfigurationError, EnqueueError, TaskDefinitionError
from fbtasks.feature import Feature, Features
from fbtasks.features.limits.gates import Gates, Placeholder
from fbtasks.features.progress.definition import packed
from fbtasks.features.sources.definition import ChangeSource, check_silent_name
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.options import FedTaskOptions
from fbtasks.features.sources.subscription import Delivery, EventSource, Subscription
from fbtasks.features.workflows.canvas import Signature, TaskSignature, enqueue_side_by_side, replacement
from fbtasks.features.workflows.node_result import Application
from fbtasks.queue.enqueuing import Enqueuer
from fbtasks.queue.result import AsyncResult, results_of
from fbtasks.system import checks
from fbtasks.tasks.call import Call, Snoozed
from fbtasks.tasks.declare import chosen, options_of, refuse_unknown, shows
from fbtasks.tasks.function import (
    Parameters,
    as_arguments,
    check_args,
    check_batch_function,
    check_function,
    home_module,
)
from fbtasks.tasks.handlers import check_class, class_options, hooks_of
from fbtasks.tasks.middleware import Middlewares, OutgoingCall, enqueue_through, step_through
from fbtasks.tasks.options import (
    CallOptions,
    CommonOptions,
    RetryOptions,
    TaskOptions,
    progress_word,
    task_name,
    unknown,
    unknown_of_retry,
    unknown_of_task,
)
from fbtasks.tasks.request import EndsWith, Hook, Request, RetryRequested, current, current_request
from fbtasks.tasks.retry import RetryPolicy
from fbtasks.tasks.windows import Window, window_of

O = ParamSpec("O")  # noqa: E741  # options
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
Arguments = tuple[Sequence[Any] | None, Mapping[str, Any] | None]
"""Those of one call, by position and by name."""


class App(Application, Protocol):
    """The app as its tasks, and what runs them, know it."""

    always_eager: bool
    enqueuer: Enqueuer
    on_success: Hook | None
    on_failure: Hook | None
    on_retry: Hook | None
    middlewares: Middlewares
    features: Features

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The app's tasks by name, with those of the included modules."""

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises :class:`UnknownTaskError`."""

    def takes(self, module: str) -> bool:
        """Whether the free-standing tasks of *module* are this app's."""

    def register(self, task: Task[..., Any]) -> Task[..., Any]:
        """Makes *task* one of this app's."""

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[Any]:
        """Enqueues a task by its name, which this process need not know."""

    def run_eagerly(self, calls: Sequence[Call]) -> list[AsyncResult[Any]]:
        """Runs *calls* here and now."""

    def AsyncResult(self, id: str | int) -> AsyncResult[Any]:  # noqa: N802  # Celery's word
        """The result of an earlier call by its id."""


class TaskCalls(Generic[P, R]):
    """The ways to enqueue calls of a task, in a transaction of their own or in that of a connection."""

    def __init__(self, task: Task[P, R], connection: Any) -> None:
        self._task = task
        self._connection = connection

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Enqueues the call."""
        return self._task.enqueue([(args, kwargs)], {}, self._connection)[0]

    @shows(CallOptions)
    def apply_async(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[R]:
        """Enqueues the call with options of its own; see docs/reference/options.md."""
        return self._task.enqueue([(args, kwargs)], options, self._connection)[0]

    @shows(CallOptions)
    def delay_many(self, calls: Iterable[Sequence[Any]], **options: Unpack[CallOptions]) -> list[AsyncResult[R]]:
        """Enqueues one call for each sequence of arguments, in one transaction and few round trips."""
        return self._task.enqueue(check_calls(calls, options), options, self._connection)


class Task(TaskCalls[P, R]):
    """A function that can be called now, or enqueued to be called by a worker.

    Calling the task runs the function here and now. :meth:`delay` and :meth:`apply_async` enqueue the call in a
    transaction of its own.
    """

    def __init__(
        self, function: Callable[P, R], options: CommonOptions, subscription: Subscription | None = None
    ) -> None:
        super().__init__(self, None)
        if isinstance(function, Task):
            raise TaskDefinitionError(f"{function.name!r} is a task already: decorate a function once.")
        check_function(function, bind=options.bind)
        self.function = function
        self.options = options
        self.name: str = options.name or task_name("name", f"{home_module(function)}.{function.__qualname__}")
        self.policy: RetryPolicy = options
        self.subscription = subscription
        """What feeds it; None: it is called by name alone."""
        first = (self,) if options.bind else ()
        batch = options.batching
        if batch is not None:
            check_batch_function(function, first)
        self.gates = (
            Gates(self.name, function, first, options.limits, options.ordered, options.unique, batch)
            if options.limits is not None or options.ordered is not None or options.unique is not None or batch
            else None
        )
        """The limits of its calls."""
        self.hooks = hooks_of(self, options.on_success, options.on_failure, options.on_retry)
        """What is called when it begins, and when a run of it has ended."""
        self._app: App | None = None
        self.prepared_by: tuple[Feature, ...] = ()
        """The features that have something to say of its calls."""
        self.invocation: Any = None
        """How a worker calls it, where a feature says that: a :class:`fbtasks.run.invocation.Invocation`."""
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.tasks.celery_words import TASK_ATTRIBUTES, no_attribute

            words = {field: f"task.options.{field}" for field in options_of(TaskOptions)} | TASK_ATTRIBUTES
            raise AttributeError(no_attribute("a task", name, words), name=name, obj=self)

    @property
    def app(self) -> App:
        """The app that the task belongs to. Raises :class:`TaskDefinitionError` while there is none."""
        if self._app is None:
            _find_app(self)
        if self._app is None:
            raise TaskDefinitionError(
                f"the task {self.name!r} belongs to no app yet: give its module to FBTasks(include=[...]), or "
                "its package to app.autodiscover_tasks([...]), or call app.register(task)."
            )
        return self._app

    @property
    def window(self) -> Window | None:
        """When it may begin; None: at any time."""
        options = self.options
        return window_of(options.run_between, options.days, options.tz, self.app.settings.zone_name)

    @property
    def in_order(self) -> bool:
        """Whether its end lets another one in."""
        return self.subscription is not None and self.subscription.source.order is not None

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bound_to(self, app: App) -> Task[P, R]:
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

    @shows(RetryOptions)
    def retry(self, **options: Unpack[RetryOptions]) -> NoReturn:
        """Leaves the function and has it tried again after *countdown* seconds (default: as its policy says).

        Once *max_retries* (default: the call's own) are used up the task fails with *exc*, or with the exception being
        handled.
        """
        given = chosen(RetryOptions, options, unknown_of_retry)
        cause = given.get("exc") or sys.exc_info()[1]
        raise RetryRequested(cause, given.get("countdown"), given.get("max_retries")) from cause

    def snooze(self, seconds: float) -> NoReturn:
        """Leaves the function and has it run again after *seconds*. It has not failed, and no try is counted.

        What a transactional task has done until then is undone.
        """
        delay = checks.seconds("snooze", seconds, zero=False)
        raise EndsWith(f"snooze requested: {delay:g} s", Snoozed(delay))

    def replace(self, signature: Signature) -> NoReturn:
        """Leaves the function and has *signature* run in the place of this call: ``self.replace(a.s(1) | b.s())``.

        Its last task gets the id of this call, so that who has the result gets its result, what follows this call
        follows it, and a group counts it. It is written in the transaction in which the outcome of this run is
        recorded. Raises :class:`EnqueueError` for what cannot be enqueued, or does not end with one task.
        """
        if self.subscription is not None:
            raise TaskDefinitionError(
                f"the task {self.name!r} is called by workers, for {self.subscription}, and cannot be replaced: "
                "enqueue a workflow of its own, and return."
            )
        if self.options.batching is not None:
            raise TaskDefinitionError(
                f"the task {self.name!r} has batch=, and a run of it has several calls: none of them can be replaced. "
                "Enqueue a workflow of its own for each that needs one."
            )
        raise replacement(self.app, signature)

    def update_state(self, meta: Any = None, *, state: str = "PROGRESS", task_id: str | None = None) -> None:
        """Tells those who have the result how far the task has come: *meta* is ``result.info`` while it runs.

        *meta* is anything that JSON has, of up to 8,000 bytes. *state* is what ``result.state`` is meanwhile. The last
        of a second is written by the worker; the call itself waits for nothing. Outside of a worker it does nothing.
        Raises :class:`SerializationError`, :class:`PayloadTooLarge`, and :class:`ConfigurationError` for a *state* that
        is the end of a task, and for the *task_id* of another one.
        """
        request, reports, number = current()
        progress_word("state", state)
        if task_id is not None and (request is None or task_id != request.id):
            raise ConfigurationError(
                f"task_id {checks.shown(task_id)} is not the task that runs here: a task tells of itself alone."
            )
        data = self.app.serializer.dump_meta(meta, task=self.name)
        if request is not None:
            reports.say(number, "progress", packed(state, data))

    def heartbeat(self) -> None:
        """Says that the task is at work: the time of its *heartbeat_timeout* begins anew.

        It costs a few microseconds and no message. Outside of a worker it does nothing.
        """
        _, reports, number = current()
        reports.beat(number)

    def using(self, connection: Any) -> TaskCalls[P, R]:
        """The task, enqueued inside the open transaction of *connection*.

        *connection* is a connection of firebird-driver (its main transaction) or one of its transaction managers.
        Rolled back means never enqueued; no worker sees the call before the commit. Raises :class:`EnqueueError`
        for anything else, and for a connection that is closed or has another database open than the app's.
        """
        if connection is None or not self.app.always_eager:  # eager calls need none
            self.app.enqueuer.check_connection(connection)
        return TaskCalls(self, connection)

    def enqueue(self, arguments: Sequence[Arguments], options: CallOptions, using: Any = None) -> list[AsyncResult[R]]:
        """Enqueues a call for each of *arguments*, all with the same options; *using* is as of :meth:`send`."""
        if options and (options.get("link") or options.get("link_error")):
            signatures = [self.signature(args, kwargs, **options) for args, kwargs in arguments]
            return enqueue_side_by_side(signatures, using)
        arounds = self.app.middlewares.enqueue
        if not arounds:
            return self.send([self.call(args, kwargs, **options) for args, kwargs in arguments], using)
        outgoing = [OutgoingCall(self.name, *as_arguments(args, kwargs), {**options}) for args, kwargs in arguments]
        return enqueue_through(
            arounds,
            outgoing,
            lambda each: self.call(each.args, each.kwargs, **each.options),
            lambda calls: self.send(calls, using),
        )

    def call(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, **options: Unpack[CallOptions]
    ) -> Call:
        """The call as a record for the queue. Raises before anything is written when it cannot be one."""
        if self.subscription is not None:
            raise EnqueueError(
                f"the task {self.name!r} is called by workers, for {self.subscription}. To run its function here and "
                "now, call the task itself, with what it takes."
            )
        args, kwargs = as_arguments(args, kwargs)
        self._parameters.check(self.name, args, kwargs)
        call = self.app.enqueuer.make_call(self.name, args, kwargs, self.options, **options)
        for feature in self.prepared_by:
            call = feature.prepare(call, self, args, kwargs)
        return call if self.gates is None else call._replace(gates=self.gates.of(args, kwargs, call.queue))

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], given: int, **options: Unpack[CallOptions]) -> Call:
        """The call as a record for a workflow, in which it is given *given* more arguments, the first ones."""
        arounds = self.app.middlewares.enqueue
        if not arounds:
            return self._step(args, kwargs, given, **options)
        call = OutgoingCall(self.name, args, kwargs, {**options})
        return step_through(arounds, call, lambda each: self._step(each.args, each.kwargs, given, **each.options))

    def _step(self, args: Sequence[Any], kwargs: Mapping[str, Any], given: int, **options: Unpack[CallOptions]) -> Call:
        if not given:
            call = self.call(args, kwargs, **options)
        elif self.subscription is not None:
            call = self.call(args, kwargs)  # which says why not
        else:
            whole = (*(Placeholder() for _ in range(given)), *args)
            fits = self._parameters.take
            if not fits(whole, kwargs) and any(fits(whole[more:], kwargs) for more in range(1, given + 1)):
                raise EnqueueError(_no_room(self.name, args, given))
            self._parameters.check(self.name, whole, kwargs)
            call = self.app.enqueuer.make_call(self.name, args, kwargs, self.options, **options)
            if self.gates is not None:
                call = call._replace(gates=self.gates.of_step(whole, kwargs, call.queue))
        if self.options.unique is not None:
            raise EnqueueError(
                f"the task {self.name!r} is unique, and a call that is merged into another one cannot be part of a "
                "workflow. Use another task for the step."
            )
        return call

    def s(self, *args: Any, **kwargs: Any) -> TaskSignature:
        """The call as a signature, for workflows. After another one it is given the result of that first."""
        return TaskSignature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> TaskSignature:
        """The same; it is not given the result of what it follows."""
        return TaskSignature(self, args, kwargs, immutable=True)

    def signature(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[CallOptions],
    ) -> TaskSignature:
        """The same, with options of the call."""
        return TaskSignature(self, args, kwargs, immutable=immutable).set(**options)

    def send(self, calls: Sequence[Call], using: Any = None) -> list[AsyncResult[R]]:
        """Enqueues *calls*, in a transaction of their own or in that of the connection *using*; eager ones are run."""
        return send_calls(self.app, calls, using, ignored=self.options.ignore_result)

    @cached_property
    def _parameters(self) -> Parameters:
        if self.options.batching is not None:  # it is given requests, whatever their arguments are
            return Parameters(lambda *_args, **_kwargs: None, ())
        return Parameters(self.function, (self,) if self.options.bind else ())


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


def send_calls(app: App, calls: Sequence[Call], using: Any = None, *, ignored: bool = False) -> list[AsyncResult[Any]]:
    """Enqueues *calls*, in a transaction of their own or in that of the connection *using*; eager ones are run.

    *ignored*: their task ignores its results.
    """
    if app.always_eager:
        return app.run_eagerly(calls)
    return results_of(app, calls, app.enqueuer.enqueue(calls, using), ignored=ignored, committed=using is None)


class TaskDecorator(Protocol[O]):
    """``@task`` and ``@task(**options)``."""

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self, function: None = None, /, *args: O.args, **options: O.kwargs
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def __get__(self, app: Any, owner: Any = None, /) -> TaskDecorator[O]:
        """The same as a method of *app*."""


class FedDecorator(Protocol[O]):
    """``@app.on_change(table, **options)`` and its like."""

    def __call__(self, *args: O.args, **options: O.kwargs) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Returns the decorator."""

    def __get__(self, app: Any, owner: Any = None, /) -> FedDecorator[O]:
        """The same as a method of *app*."""


def fed_decorator(declared: Callable[O, CommonOptions]) -> Callable[[Callable[..., Any]], FedDecorator[O]]:
    """As :func:`decorator`, for a method that takes what feeds the task first."""
    return shows(declared)


def decorator(declared: Callable[O, CommonOptions]) -> Callable[[Callable[..., Any]], TaskDecorator[O]]:
    """Has a function or method of ``**options`` show those that are *declared*, to people and to type checkers."""
    return shows(declared)


_unbound: list[Task[..., Any]] = []
_apps: WeakSet[App] = WeakSet()


def keep_app(app: App) -> None:
    """Has free-standing tasks find *app*, when it includes their modules."""
    _apps.add(app)


def _find_app(task: Task[..., Any]) -> None:
    """Binds a free-standing task to the app that includes its module, where there is one such app."""
    found = [app for app in _apps if app.takes(task.function.__module__)]
    if len(found) == 1:
        found[0].register(task)


@decorator(TaskOptions)
def task(function: Any = None, /, **options: Any) -> Any:
    """Defines a task of library code that has no app at hand; it binds to the app that includes its module."""
    return define(function, options, _keep_unbound)


shared_task = task
"""Celery's word for it."""


def _no_room(task: str, args: Sequence[Any], given: int) -> str:
    """Returns what is wrong with a step that does not take the *given* arguments in front of its own *args*."""
    if given > 1:
        return (
            f"{task!r} has no room for the id of the task that failed, and its error, which come before the arguments "
            f"{checks.shown(tuple(args))}. Give the task two parameters for them, or use .si(...), which is given none."
        )
    return (
        f"{task!r} has no room for the result of what it follows, which comes before the arguments "
        f"{checks.shown(tuple(args))}. Give the task a parameter for it, or use .si(...), which is not given it."
    )


def define(
    function: Any,
    options: Mapping[str, Any],
    keep: Callable[[Task[..., Any]], Task[..., Any]],
    kind: type[Task[..., Any]] | None = None,
) -> Any:
    """The task made of *function*, as *keep* returns it; without a function the decorator that makes it.

    *kind* is the class of the app's tasks. Raises :class:`TaskDefinitionError` for an option that does not exist.
    """
    refuse_unknown(TaskOptions, options, unknown_of_task)
    kind, options = _with_class(options, kind, TaskOptions)
    checked = TaskOptions(**options)

    def decorate(target: Callable[..., Any]) -> Task[..., Any]:
        return keep(kind(target, checked))

    return decorate if function is None else decorate(function)


def _with_class(
    options: Mapping[str, Any], kind: type[Task[..., Any]] | None, declared: Any
) -> tuple[type[Task[..., Any]], dict[str, Any]]:
    """The class of a task with these options, *kind* unless they say otherwise, and the options with those of it."""
    base = options.get("base")
    if base is not None:
        kind = check_class("base", base, Task)
    if kind is None or kind is Task:
        return Task, {**options}
    return kind, {**class_options(kind, Task, options_of(declared)), **options}


def define_fed(
    source: type[ChangeSource] | type[EventSource],
    what: str,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    keep: Callable[[Any], Any],
    kind: type[Task[..., Any]] | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """The decorator of a task that a source feeds, as *keep* returns it. *given* and *options* are of the source, too.

    Raises :class:`TaskDefinitionError` for an option that *what* does not have.
    """
    rest: dict[str, Any] = {**given, **options}
    refuse_unknown(
        (source, Delivery, CommonOptions), rest, unknown(what, "TASK_OPTIONS", source, Delivery, CommonOptions)
    )
    subscription = Subscription(_taken(source, rest), _taken(Delivery, rest))
    kind, rest = _with_class(rest, kind, CommonOptions)
    checked = FedTaskOptions(**rest)
    if checked.expires is not None:
        raise TaskDefinitionError(
            f"expires={checked.expires!r} is for calls and for rows of polled tables: a change or an event is handled, "
            "however late. Leave it out, and compare the time of what the function is given."
        )
    return _fed_by(subscription, checked, keep, kind)


def define_polling(
    table: str,
    options: Mapping[str, Any],
    keep: Callable[[Any], Any],
    kind: type[Task[..., Any]] | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """The decorator of a task that is called for rows of *table*, as *keep* returns it.

    Raises :class:`TaskDefinitionError` for an option that ``poll_table`` does not have.
    """
    rest: dict[str, Any] = {"table": table, **options}
    refuse = unknown("option of poll_table", "TASK_OPTIONS", PollSource, CommonOptions)
    refuse_unknown((PollSource, CommonOptions), rest, refuse)
    subscription = Subscription(_taken(PollSource, rest), Delivery())
    kind, rest = _with_class(rest, kind, CommonOptions)
    return _fed_by(subscription, FedTaskOptions(**rest), keep, kind)


def _fed_by(
    subscription: Subscription, options: CommonOptions, keep: Callable[[Any], Any], kind: type[Task[..., Any]]
) -> Callable[[Callable[P, R]], Task[P, R]]:
    if options.serializer is not None and options.ignore_result:
        raise TaskDefinitionError(
            f"serializer={options.serializer!r} has no effect: what comes from a source is JSON, and results are not "
            "kept. Leave it out, or give ignore_result=False as well."
        )
    for word, value in (("ordered", options.ordered), ("unique", options.unique)):
        if value is not None:
            raise TaskDefinitionError(
                f"{word}= is for calls: what a source brings is ordered and merged by options of its own, such as "
                "order= and coalesce=. Leave it out."
            )
    keyed = [name for name, key in (options.limits or {}).items() if key is not None]
    if keyed:
        raise TaskDefinitionError(
            f"limits={{{keyed[0]!r}: ...}} has a key, and a task that a source feeds has no arguments to count by: it "
            f"may stand for many changes. Give {{{keyed[0]!r}: None}}, which counts all of them together."
        )

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        task = kind(function, options, subscription)
        if isinstance(subscription.source, ChangeSource):
            check_silent_name(task.name)
        return keep(task)  # type: ignore[no-any-return]

    return decorate


def _taken(declared: type[T], options: dict[str, Any]) -> T:
    """What *declared* makes of its options, which are taken out of *options*."""
    kind: Any = declared
    return kind(**{name: options.pop(name) for name in options_of(kind).keys() & options.keys()})  # type: ignore[no-any-return]


def _keep_unbound(task: Task[..., Any]) -> Task[..., Any]:
    _unbound.append(task)
    return task


def unbound_tasks() -> list[Task[..., Any]]:
    """All free-standing tasks defined so far."""
    return list(_unbound)
