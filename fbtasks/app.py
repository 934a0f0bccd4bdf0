"""The app: puts settings, tasks and database together. The one place that knows which features there are."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Annotated, Any, Final, ParamSpec, Protocol, TypeVar, Unpack, overload

from fbtasks.config import Settings
from fbtasks.contrib.celery import Celery
from fbtasks.contrib.celery.conf import Conf
from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError, TaskDefinitionError, UnknownTaskError
from fbtasks.feature import Feature, Features
from fbtasks.features.limits import Limits
from fbtasks.features.limits.definition import LimitDefinition, LimitOptions, QueueLimits
from fbtasks.features.limits.options import BatchedTask, LimitedTask
from fbtasks.features.logs import Logs
from fbtasks.features.logs.options import LoggedTask
from fbtasks.features.metrics import Metrics
from fbtasks.features.progress import Progress
from fbtasks.features.progress.definition import ReportedResult, ReportingTask
from fbtasks.features.queues import Queues
from fbtasks.features.queues.definition import QueueDefinition, QueueOptions
from fbtasks.features.schedules import Schedules
from fbtasks.features.schedules.definition import Schedule, ScheduleOptions, TickOptions
from fbtasks.features.sources import Sources
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.subscription import Delivery, EventSource, event_name
from fbtasks.features.sources.task import FedTask, FedTaskOptions
from fbtasks.features.stacks import Stacks
from fbtasks.features.web import Web
from fbtasks.features.workflows import Workflows
from fbtasks.features.workflows.canvas import TaskSignature
from fbtasks.features.workflows.group_result import Groups
from fbtasks.features.workflows.node_result import NodeResult
from fbtasks.features.workflows.task import StepTask
from fbtasks.queue.enqueuing import Enqueuer
from fbtasks.queue.notify.outcomes import OutcomeReader
from fbtasks.queue.notify.results import ResultListener
from fbtasks.system import checks
from fbtasks.tasks.by_name import ByName, path_of, pickled_app
from fbtasks.tasks.call import Call
from fbtasks.tasks.celery_words import AnswersCelery
from fbtasks.tasks.declare import options_of, refuse_unknown, shows, typed
from fbtasks.tasks.definition import check_class, define, keep_app, keep_unbound, unbound_tasks
from fbtasks.tasks.discovery import Discovery, Packages, caller
from fbtasks.tasks.function import as_arguments, same_code
from fbtasks.tasks.handlers import is_hook
from fbtasks.tasks.middleware import Middlewares, enqueue_through
from fbtasks.tasks.options import CallOptions, CommonOptions, check_options, task_name, with_options
from fbtasks.tasks.serialize import Serializer
from fbtasks.url import DatabaseURL

logger = logging.getLogger(__name__)
O = ParamSpec("O")  # noqa: E741  # options
P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
T = TypeVar("T", covariant=True)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")
FEATURES: Final[tuple[type[Feature], ...]] = (
    Queues, Limits, Workflows, Schedules, Progress, Logs, Stacks, Sources, Celery, Web, Metrics
)  # fmt: skip
"""The features of this distribution, in the order in which they are asked: an app has all of them, unless it says."""


def _features(given: Any) -> list[Feature]:
    """The features that are *given*, as objects. Raises :class:`ConfigurationError` for what an app cannot have."""
    if not isinstance(given, list | tuple):
        raise ConfigurationError(
            f"features {checks.shown(given)} must be a list of features: features=[*FEATURES, ...]."
        )
    ours = {each.name: each for each in FEATURES}
    found: dict[str, Feature] = {}
    for each in given:
        kind = _named(each) if isinstance(each, str) else each
        feature = kind() if isinstance(kind, type) and issubclass(kind, Feature) else kind
        name = getattr(feature, "name", None)
        if isinstance(feature, type) or not isinstance(name, str):
            raise ConfigurationError(f"features has {checks.shown(each)}, which is no feature, and no name of one.")
        if not _NAME.fullmatch(name) or name.startswith(("fbtasks", "queue_")):
            raise ConfigurationError(
                f"features: the name {name!r:.80} must have 1 to 30 small letters, digits and _, begin with a letter, "
                "and not with fbtasks or queue_."
            )
        if name in found:
            raise ConfigurationError(f"features has two features of the name {name!r}.")
        if name in ours and not isinstance(feature, ours[name]):
            raise ConfigurationError(
                f"features has another one of the name {name!r}, which is that of a feature of this distribution. "
                "Give it a name of its own."
            )
        check_options(f"the feature {name!r}: options", feature.options)
        check_options(f"the feature {name!r}: fed_options", feature.fed_options)
        found[name] = feature
    return list(found.values())


def _named(name: str) -> type[Feature]:
    """The feature of that name: of this distribution, or of another one that has an entry point for it."""
    for each in FEATURES:
        if each.name == name:
            return each
    from importlib.metadata import entry_points  # 40 ms, for those who name one

    found = [each.load() for each in entry_points(group="fbtasks.features", name=name)]
    if len(found) == 1 and isinstance(found[0], type) and issubclass(found[0], Feature):
        return found[0]
    ours = ", ".join(each.name for each in FEATURES)
    raise ConfigurationError(
        f"no feature is named {name!r}. Those of this distribution are {ours}; another one names its own by an entry "
        "point of the group fbtasks.features."
    )


# What features add to the classes that users have, as one class each.


@dataclass(frozen=True, kw_only=True)
class TaskOptions(BatchedTask, LoggedTask):
    """The options of ``@app.task``."""


@dataclass(frozen=True)
class OnChange(FedTaskOptions, LimitedTask, LoggedTask, Delivery, ChangeSource):
    """The arguments of ``app.on_change()``."""

    table: Annotated[str, checks.text]


@dataclass(frozen=True)
class OnEvent(FedTaskOptions, LimitedTask, LoggedTask, Delivery, EventSource):
    """The arguments of ``app.on_event()``."""

    event: Annotated[str, event_name]


@dataclass(frozen=True)
class PollTable(FedTaskOptions, LimitedTask, LoggedTask, PollSource):
    """The arguments of ``app.poll_table()``."""

    table: Annotated[str, checks.text]


@dataclass(frozen=True, kw_only=True)
class Periodic(TaskOptions, TickOptions):
    """The arguments of ``app.periodic()``. No record is made: signatures and type checkers have them from here."""


@dataclass(frozen=True)
class AddPeriodic(ScheduleOptions):
    """The arguments of ``app.add_periodic()``, as for :class:`Periodic`."""

    task: Task[..., Any] | str


@dataclass(frozen=True)
class QueueArguments(QueueLimits, QueueOptions):
    """The arguments of ``app.queue()``. No record is made: signatures and type checkers have them from here."""

    name: str


class Task(StepTask[P, T], FedTask[P, T], ReportingTask[P, T]):
    """A function that can be called now, or enqueued to be called by a worker.

    Calling the task runs the function here and now. :meth:`delay` and :meth:`apply_async` enqueue the call in a
    transaction of its own.
    """


class AsyncResult(ReportedResult[T], NodeResult):
    """The result of a call that may not have run yet.

    States have Celery's names: PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED. An id that the database does
    not know (never enqueued, not committed yet, pruned, or a success whose result is ignored) is PENDING; so is,
    for a user of a server who may only enqueue, the task of another user.
    """


class TaskDecorator(Protocol[O]):
    """``@task`` and ``@task(**options)``."""

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self, function: None = None, /, *args: O.args, **options: O.kwargs
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def __get__(self, app: Any, owner: Any = None, /) -> TaskDecorator[O]:
        """Returns the decorator as a method of *app*."""


def decorator(declared: Callable[O, CommonOptions]) -> Callable[[Callable[..., Any]], TaskDecorator[O]]:
    """Gives a function or method of ``**options`` the signature of those that are *declared*."""
    return shows(declared)


@decorator(TaskOptions)
def task(function: Any = None, /, **options: Any) -> Any:
    """Defines a task of library code that has no app at hand; it binds to the app that includes its module."""
    return define(function, options, keep_unbound, Task, TaskOptions)


shared_task = task
"""Celery's word for it."""


class FBTasks(ByName, AnswersCelery):
    """An application's tasks and the database that holds their queue.

    *url* names the database, unless ``--url`` or the environment's FBTASKS_URL does; where nothing does it is
    ``fbtasks.fdb`` in the working folder. *include* lists modules with free-standing tasks. The
    other arguments are described in docs/reference/options.md. Nothing is opened before the first use.
    """

    _known_as = "an app"

    @typed(Settings)
    def __init__(self, *values: Any, **options: Any) -> None:
        refuse_unknown("option of FBTasks", options, Settings, error=ConfigurationError)
        try:
            inspect.signature(FBTasks).bind(*values, **options)
        except TypeError as error:  # in the words of what was called
            raise TypeError(f"FBTasks() got wrong arguments: {error}") from None
        settings = Settings(*values, **options)
        self.name = settings.name
        self.settings = settings
        accepted = settings.accept_content
        self.serializer = Serializer(
            default=settings.serializer,
            accept={"json", settings.serializer} if accepted is None else accepted,
            signing_keys=settings.signing_key or (),
            limit=settings.payload_limit,
        )
        self.features = Features(_features(FEATURES if settings.features is None else settings.features), self)
        """What the app has beside the core."""
        self._preparing: tuple[Feature, ...] = self.features.which("prepare")
        self.database = Database(settings, tuple(self.features))
        self.database.forgets.extend(feature.forget for feature in self.features.which("forget"))
        self.enqueuer = Enqueuer(settings, self.serializer, self.database, self.features)
        self.always_eager = settings.always_eager
        self.on_success = settings.on_success
        self.on_failure = settings.on_failure
        self.on_retry = settings.on_retry
        self.Task: type[Task[..., Any]] = check_class("task_class", settings.task_class or Task)
        """The class of its tasks, to derive others from."""
        self.middlewares = Middlewares()
        self._discovery = Discovery(settings.name, settings.include)
        self._included = False
        self._tasks: dict[str, Task[..., Any]] = {}
        self._unknown: set[str] = set()
        """The names that were sent and are none of its tasks'."""
        self._path = ""
        self._made_in = caller()
        self._listener = ResultListener(self.database)
        self.outcomes = OutcomeReader(self.database, self._listener)
        keep_app(self)

    def __repr__(self) -> str:
        return f"<FBTasks {self.name!r} at {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled_app(self, self._made_in)

    @property
    def url(self) -> str:
        """The URL of its database, with ``***`` for the password."""
        return str(self.settings.url)

    @property
    def path(self) -> str:
        """What names it on a command line, behind -A; MODULE where that is not known."""
        return self._path or path_of(self, self._made_in) or "MODULE"

    @path.setter
    def path(self, given: str) -> None:
        self._path = given

    @decorator(TaskOptions)
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Defines a task: ``@app.task`` or ``@app.task(queue="mail", max_retries=5)``.

        Raises :class:`TaskDefinitionError` when two tasks have one name or an option does not exist.
        """
        return define(function, options, self.register, self.Task, self.task_options)

    @cached_property
    def task_options(self) -> type[Any]:
        """The options of its tasks: those of the core, and those of its features."""
        return self._options(CommonOptions, "options")

    @cached_property
    def fed_options(self) -> type[Any]:
        """The options of tasks that a source calls."""
        return self._options(FedTaskOptions, "fed_options")

    def _options(self, base: Any, member: str) -> type[Any]:
        return with_options(base, *(found for each in self.features if (found := getattr(each, member)) is not None))

    @typed(OnChange)
    def on_change(self, table: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Defines a task that is called for changes of a table: ``@app.on_change("ORDERS", update=("STATUS",))``.

        The function is given a :class:`Change`, or a list of them with *batch*. Changes are noted from when
        ``fbtasks subscriptions apply`` has made the trigger. Raises :class:`TaskDefinitionError` and
        :class:`ConfigurationError` for options that cannot be.
        """
        return self.features["sources"].define(ChangeSource, "on_change", {"table": table, **options})  # type: ignore[no-any-return]

    @typed(OnEvent)
    def on_event(self, event: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Defines a task that is called for an event: ``@app.on_event("order.paid")``.

        The function is given an :class:`Event`, or a list of them with *batch*. An event has any number of handlers, in
        any number of apps, each with tries of its own. Raises what :meth:`on_change` raises.
        """
        return self.features["sources"].define(EventSource, "on_event", {"event": event, **options})  # type: ignore[no-any-return]

    @typed(Periodic)
    def periodic(self, *unnamed: Any, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Calls a task periodically: ``@app.periodic(cron="@daily")`` above ``@app.task``, or alone.

        On a function alone it takes the options of a task as well. A task may have any number of them, each with a
        ``name=`` of its own. Workers bring them into the database when they start, as does ``fbtasks migrate -A``.
        Raises :class:`TaskDefinitionError` and :class:`ConfigurationError` for what cannot be.
        """
        return self.features["schedules"].decorator(unnamed, options)  # type: ignore[no-any-return]

    @typed(AddPeriodic)
    def add_periodic(self, task: Task[..., Any] | str, **options: Any) -> Schedule:
        """Calls a task periodically: ``app.add_periodic(report, every=timedelta(hours=1), args=(7,))``.

        *task* may be the name of another app's task. Raises what :meth:`periodic` raises.
        """
        return self.features["schedules"].add(task, options)  # type: ignore[no-any-return]

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The app's schedules by name, with those of the included modules."""
        self.load()
        return self.features["schedules"].definitions if "schedules" in self.features else {}

    @typed(QueueArguments)
    def queue(self, name: str, **options: Any) -> QueueDefinition:
        """Says how much a queue may hold, when its tasks may run and how they age: ``app.queue("mail", age=60)``.

        It is brought into the database by workers when they start, by ``fbtasks migrate -A``, and by the first call
        into a queue of which nothing is known there. Without options it takes back what was said before. Raises
        :class:`ConfigurationError` for options that cannot be, and for a queue that is defined twice.
        """
        refuse_unknown("option of a queue", options, QueueArguments, error=ConfigurationError)
        limits = {option: options.pop(option) for option in options_of(QueueLimits) if option in options}
        definition: QueueDefinition = self.features["queues"].define(name, options)
        if limits or "limits" in self.features:
            self.features["limits"].define_queue(name, limits)
        return definition

    @shows(LimitOptions)
    def limit(self, name: str, **options: Any) -> LimitDefinition:
        """Says how many tasks run at once, or how often they begin: ``app.limit("sms", rate="10/s")``.

        Tasks name their limits: ``@app.task(limits={"sms": None})`` counts all calls together, ``{"sms": "customer"}``
        those of each value of an argument. Raises :class:`ConfigurationError` for options that cannot be, and for a
        limit that is defined twice.
        """
        return self.features["limits"].define(name, options)  # type: ignore[no-any-return]

    @typed(PollTable)
    def poll_table(self, table: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Defines a task that is called for rows of a table: ``@app.poll_table("INBOX", status="STATUS", ...)``.

        The function is given a :class:`Row`. Workers look for rows that wait, and write back what became of them; the
        table gets no trigger. Raises what :meth:`on_change` raises.
        """
        return self.features["sources"].define(PollSource, "poll_table", {"table": table, **options})  # type: ignore[no-any-return]

    def middleware(self, middleware: M) -> M:
        """Puts a class, or an object of one, around what the app enqueues and runs: ``@app.middleware``.

        It has one at least of ``around_enqueue(call, next)``, ``around_run(request, next)`` and
        ``observe_run(request)``. The first one is the outermost. It belongs where the app is made, before the first
        call. Raises :class:`ConfigurationError` for what is no middleware, and :class:`TaskDefinitionError` for one
        that cannot go around a task of the app.
        """
        middlewares = self.middlewares.with_inside(middleware)
        for task in self._tasks.values():
            middlewares.check_task(task.name, is_async=task.is_async)
        self.middlewares = middlewares
        return middleware

    def raise_event(
        self,
        event: str,
        data: Any = None,
        *,
        using: Any = None,
        start: float | timedelta | datetime | None = None,
        order_key: str | None = None,
    ) -> None:
        """Raises an event for all handlers that are registered: ``app.raise_event("order.paid", {"id": 1})``.

        *data* is anything that JSON has. *using* is a connection in whose open transaction it is raised (None: in one
        of its own); *start* a moment, or seconds from now, at which the handlers are called; events with one
        *order_key* are handled one after the other. Raises :class:`EnqueueError` and what :meth:`Task.delay` raises.
        """
        self.features["sources"].raise_event(event, data, using=using, start=start, order_key=order_key)

    def register(self, task: Any) -> Task[..., Any]:
        """Makes *task* one of this app's. Raises :class:`TaskDefinitionError` when a name of it is taken."""
        if not isinstance(task, Task):
            raise TaskDefinitionError(f"{checks.shown(task)} is not a task: register() takes what @fbtasks.task made.")
        if self._tasks.get(task.name) is task:
            return task
        for name in task.names:
            self._check_name(task, name)
        self.middlewares.check_task(task.name, is_async=task.is_async)
        self.enqueuer.check_queue(task.options.queue)
        if task.options.serializer is not None:
            self.serializer.check(task.options.serializer)
        self._check_options(task)
        task.prepared_by = tuple(each for each in self.features if each.declare(task) and each in self._preparing)
        task.bound_to(self)
        self._tasks |= dict.fromkeys(task.names, task)
        return self._tasks[task.name]

    def _check_name(self, task: Task[..., Any], name: str) -> None:
        """Raises :class:`TaskDefinitionError` when *name*, its own or an alias, is another task's, or no task's."""
        if is_hook(name):
            raise TaskDefinitionError(f"no task can be named {name!r}: this is the name of its on_failure hook.")
        if task.names.count(name) > 1:
            raise TaskDefinitionError(f"the task {task.name!r} has the name {name!r} twice: leave out one in aliases=.")
        other = self._tasks.get(name)
        if other is None or (other.name == task.name and same_code(other.function, task.function)):
            return
        where = f"one in {other.function.__module__}, one in {task.function.__module__}"
        if name == task.name == other.name:
            raise TaskDefinitionError(f"two tasks are named {name!r}: {where}. Give one of them another name=.")
        raise TaskDefinitionError(
            f"two tasks have the name {name!r}, as name= or in aliases=: {other.name!r} and {task.name!r}, {where}. "
            "Leave it to one of them."
        )

    def _check_options(self, task: Task[..., Any]) -> None:
        """Raises :class:`TaskDefinitionError` for an option of a feature that the app lacks."""
        known: Any = self.task_options if task.is_called else self.fed_options
        own: Any = type(task.options)
        for name, option in options_of(own).items():
            if name not in options_of(known) and getattr(task.options, name) != option.parameter.default:
                raise TaskDefinitionError(
                    f"the task {task.name!r} has {name}=, which is an option of a feature that the app {self.name!r} "
                    "was made without: add the feature to features=[...], or leave the option out."
                )

    def add_hooks(self) -> None:
        """Adds the tasks that call on_failure hooks: in a process that runs tasks."""
        from fbtasks.run.hooks import hook_tasks

        self._tasks |= hook_tasks(self, Task)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The app's tasks by name, also by former ones (``aliases=``), with those of the included modules."""
        self.load()
        return self._tasks

    def load(self) -> None:
        """Imports the included modules and binds their free-standing tasks. Once."""
        if self._included:
            return
        self._included = True  # now: an included module may ask for the tasks while it is imported
        try:
            self._discovery.load()
        except BaseException:
            self._included = False
            raise
        for task in unbound_tasks():
            if self.takes(task.function.__module__):
                self.register(task)

    def takes(self, module: str) -> bool:
        """Whether the free-standing tasks of *module* are this app's."""
        return self._discovery.takes(module)

    def autodiscover_tasks(
        self, packages: Packages | None = None, related_name: str | None = "tasks", force: bool = False
    ) -> None:
        """Includes the module *related_name* of each of *packages* that has one: ``app.autodiscover_tasks(["shop"])``.

        They are imported when the app's tasks are asked for, or now with *force*. *packages* may be a function that
        returns the names. Raises :class:`ConfigurationError` for what are no names of packages.
        """
        self._discovery.search(packages, related_name)
        self._included = False
        if force:
            self.load()

    @property
    def conf(self) -> Conf:
        """The settings, to be read: as attributes, or by name."""
        return Conf(self.settings)

    @shows(CallOptions)
    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[Any]:
        """Enqueues a task by its name, which this process need not know."""
        task = self.tasks.get(task_name("name", name))
        if task is not None:
            return task.apply_async(args, kwargs, **options)
        if self._tasks and name not in self._unknown:
            self._unknown.add(name)
            if close := checks.did_you_mean(name, self._tasks, 0.8):  # another app's name may be rather like one
                logger.warning("App %r sends %r, and has no task of that name.%s", self.name, name, close)
        arounds, make = self.middlewares.enqueue, partial(self.call_by_name, name)
        return enqueue_through(arounds, name, [(args, kwargs)], options, make, self.enqueue_calls)[0]

    def known_task(self, name: str) -> Task[..., Any] | None:
        """The task of that name, where it is defined by now. No module is imported."""
        return self._tasks.get(name)

    def call_by_name(
        self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, **options: Any
    ) -> Call:
        """A call of a task that this process need not know, as a record for the queue."""
        args, kwargs = as_arguments(args, kwargs)
        call = self.enqueuer.make_call(name, args, kwargs, **options)
        for feature in self._preparing:
            call = feature.prepare(call, None, args, kwargs)
        return call

    def enqueue_calls(
        self, calls: Sequence[Call], using: Any = None, *, ignored: bool = False
    ) -> list[AsyncResult[Any]]:
        """Enqueues *calls*, in a transaction of their own or in that of the connection *using*; eager ones are run.

        *ignored*: their task ignores its results.
        """
        if self.always_eager:
            from fbtasks.run.eager import run_eagerly

            return [run_eagerly(self, call) for call in calls]
        found = self.enqueuer.enqueue(calls, using)
        return [
            self.AsyncResult(
                call.task_id or str(enqueued.id),
                duplicate=enqueued.duplicate,
                ignored=ignored,
                number=(enqueued.id or None) if using is None else None,
            )
            for call, enqueued in zip(calls, found, strict=True)
        ]

    @shows(CallOptions)
    def signature(
        self,
        name: str,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[CallOptions],
    ) -> TaskSignature:
        """A call of the task *name* for workflows: see :meth:`Task.s`. Raises :class:`UnknownTaskError`."""
        return self.find_task(name).signature(args, kwargs, immutable=immutable, **options)

    def AsyncResult(self, id: str | int, **known: Any) -> AsyncResult[Any]:  # noqa: N802  # Celery's word
        """The result of an earlier call by its id; what is *known* of it is as :class:`AsyncResult` takes it."""
        return AsyncResult(id, self, **known)

    @property
    def GroupResult(self) -> Groups:  # noqa: N802  # Celery's word
        """``app.GroupResult(id)``: the results of a group that was saved, ``app.GroupResult.restore(id)`` the same."""
        return Groups(self)

    def connect(self, **options: Any) -> Any:
        """A connection of firebird-driver to the app's database, for the application's own data.

        It uses the engine and the lock directory that fbtasks uses, which an embedded database needs. A database that
        is missing is created with an empty queue, as by the first call. Its character set is the one that the url names
        (``?charset=``), or UTF8. Close the connection. To open one takes some hundred times what a query does: a task
        that often needs it keeps it.
        """
        self.database.make_ready(lends=False)
        self.enqueuer.make_ready(None)  # a SNAPSHOT transaction would not see what comes later
        return self.database.connect(**{"charset": self.settings.url.charset, **options})

    def migrate(self) -> list[int]:
        """Makes the tables of the queue, or brings them up to date, and what the app defines beside its tasks.

        That is what ``fbtasks migrate -A`` does: limits, queues, schedules, triggers and handlers of events. Returns
        the versions that were applied now. Raises :class:`ConfigurationError` for what cannot be deployed, such as
        changes of a table that is not there yet; all else is deployed then.
        """
        versions = self.database.migrate().versions
        self.load()
        with self.database.session() as session:
            deployed = self.features.deploy(session).values()
        problems = [f"{name}: {said}" for each in deployed for name, said in each.problems.items()]
        if problems:
            raise ConfigurationError(f"not all can be deployed: {' '.join(problems)} All else was deployed.")
        return versions

    def use_database(self, url: DatabaseURL | str) -> None:
        """Points the app at another database, for its tests above all: see :func:`fbtasks.testing.on_database`.

        Its connections are closed. Raises :class:`ConfigurationError` for what is no URL.
        """
        found = DatabaseURL.parse(url) if isinstance(url, str) else url
        self.close()
        self.settings = replace(self.settings, url=found)
        self.database.point_at(self.settings)

    def close(self) -> None:
        """Closes all connections; the next use opens new ones."""
        for feature in self.features:
            feature.close()
        self.outcomes.close()
        self._listener.close()
        self.database.close()

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises :class:`UnknownTaskError`."""
        task = self.tasks.get(name)
        if task is None:
            close = checks.did_you_mean(name, self.tasks)
            raise UnknownTaskError(f"the app {self.name!r} has no task named {checks.shown(name)}.{close}")
        return task

    def silence(self, connection: Any, *names: str) -> None:
        """Suppresses, in the open transaction of *connection*, the tasks that its changes call, or those of *names*.

        For bulk loads, and for changes that a task makes itself. It holds until the transaction ends, and adds to what
        was silenced before. A name may be that of another app's task. Tasks that are defined with ``always=True`` are
        called all the same. Raises :class:`EnqueueError` for what is no connection to the app's database, and
        :class:`ConfigurationError` for names that have no room, for what is not one name, such as ``"a,b"`` or
        ``"*"``, and for the name of a function whose task's name has its module before it.
        """
        self.features["sources"].silence(connection, names)

    def queues_served(self) -> list[str]:
        """The queues of a worker that was not told any: the default one and those that tasks name."""
        declared = {task.options.queue for task in self.tasks.values() if task.options.queue}
        scheduled = {each.call.queue for each in self.schedules.values()}
        return sorted({self.settings.default_queue, *declared, *scheduled, *(self.settings.queues or ())})

    def queues_known(self) -> list[str]:
        """All queues that the app's code names: those of :meth:`queues_served`, and those of :meth:`queue`."""
        queues = self.features["queues"].definitions if "queues" in self.features else ()
        return sorted({*self.queues_served(), *queues})
