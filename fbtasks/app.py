"""The app: settings, tasks and database put together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, Never, ParamSpec, TypeVar, overload

from fbtasks import checks
from fbtasks.call import MOST_TRIES, Call, Enqueued
from fbtasks.config import Settings, as_timezone, check_queue_name
from fbtasks.definition import (
    Hook,
    Task,
    as_arguments,
    check_name,
    check_priority,
    expiry_of,
    make_options,
    start_of,
    unbound_tasks,
    unknown_options,
)
from fbtasks.errors import (
    ConfigurationError,
    EnqueueError,
    EnqueueUncertain,
    TaskDefinitionError,
    UnknownQueueError,
    UnknownTaskError,
)
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.modules import import_named
from fbtasks.notify.outcomes import OutcomeReader
from fbtasks.notify.results import ResultListener, Waiter
from fbtasks.result import AsyncResult
from fbtasks.serialize import Serializer
from fbtasks.services.database import migrate
from fbtasks.store import guests, settlement, tasks
from fbtasks.store.database import Database
from fbtasks.store.settlement import ENQUEUE, InDoubt
from fbtasks.url import resolve_url

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_ASKED: Final = 10.0
"""Seconds for which a database that is away is asked what became of an enqueue."""


class FBTasks:
    """An application's tasks and the database that holds their queue.

    *url* names the database (default: the environment's FBTASKS_URL, else ``fbtasks.fdb`` in the working
    folder); *include* lists modules with free-standing tasks. The other arguments are described in
    docs/reference/options.md. Nothing is opened before the first use.
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        include: Iterable[str] = (),
        default_queue: str = "default",
        queues: Iterable[str] | None = None,
        serializer: str = "json",
        accept_content: Iterable[str] | None = None,
        signing_key: bytes | str | Sequence[bytes | str] | None = None,
        payload_limit: int = 64 * 1024 * 1024,
        result_expires: timedelta = timedelta(days=1),
        failed_expires: timedelta = timedelta(days=30),
        unknown_task_timeout: timedelta = timedelta(days=1),
        timezone: tzinfo | str | None = None,
        auto_migrate: bool | None = None,
        crash_limit: int = 3,
        pool_size: int = 5,
        pool_timeout: float = 10.0,
        always_eager: bool = False,
        on_success: Hook | None = None,
        on_failure: Hook | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise ConfigurationError(unknown_options("option of FBTasks", unknown, "APP_OPTIONS", FBTasks.__init__))
        for what, hook in (("on_success", on_success), ("on_failure", on_failure)):
            checks.hook(what, hook)
        checks.flag("always_eager", always_eager)
        checks.text("serializer", serializer)
        if accept_content is None:
            accept_content = ["json", serializer]
        self.name = _check_app_name(name)
        self.settings = Settings(
            url=resolve_url(url),
            default_queue=default_queue,
            queues=None if queues is None else frozenset(checks.names("queues", queues, "queue names")),
            serializer=serializer,
            accept_content=frozenset(checks.names("accept_content", accept_content, "serializers")),
            signing_keys=_signing_keys(signing_key),
            payload_limit=payload_limit,
            result_expires=result_expires,
            failed_expires=failed_expires,
            unknown_task_timeout=unknown_task_timeout,
            timezone=as_timezone(timezone),
            auto_migrate=auto_migrate,
            crash_limit=crash_limit,
            pool_size=pool_size,
            pool_timeout=pool_timeout,
        )
        self.serializer = Serializer(
            default=serializer,
            accept=self.settings.accept_content,
            signing_keys=self.settings.signing_keys,
            limit=payload_limit,
        )
        self.database = Database(self.settings)
        self.always_eager = always_eager
        self.on_success = on_success
        self.on_failure = on_failure
        self._include = checks.names("include", include, "names of modules")
        self._included = False
        self._tasks: dict[str, Task[..., Any]] = {}
        self._listener = ResultListener(self.database)
        self.outcomes = OutcomeReader(self.database, self._listener)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.celery_words import APP_ATTRIBUTES, no_attribute

            raise AttributeError(no_attribute("an app", name, APP_ATTRIBUTES), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<FBTasks {self.name!r} at {self.settings.url}>"

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Defines a task: ``@app.task`` or ``@app.task(queue="mail", max_retries=5)``.

        Raises :class:`TaskDefinitionError` when two tasks have one name or an option does not exist.
        """
        checked = make_options(options)

        def define(target: Callable[..., Any]) -> Task[..., Any]:
            return self.register(Task(target, checked, None))

        return define if function is None else define(function)

    def register(self, task: Task[..., Any]) -> Task[..., Any]:
        """Makes *task* one of this app's. Raises :class:`TaskDefinitionError` when its name is taken."""
        if not isinstance(task, Task):
            raise TaskDefinitionError(f"{checks.shown(task)} is not a task: register() takes what @fbtasks.task made.")
        other = self._tasks.get(task.name)
        if other is task:
            return task
        if other is not None and not _same_code(other, task):
            raise TaskDefinitionError(
                f"two tasks are named {task.name!r}: one in {other.function.__module__}, one in "
                f"{task.function.__module__}. Give one of them another name=."
            )
        self.check_queue(task.options.queue)
        if task.options.serializer is not None:
            self.serializer.check(task.options.serializer)
        self._tasks[task.name] = task.bound_to(self)
        return task

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The app's tasks by name, with those of the included modules."""
        self.load()
        return self._tasks

    def load(self) -> None:
        """Imports the included modules and binds their free-standing tasks. Once."""
        if self._included:
            return
        self._included = True  # now: an included module may ask for the tasks while it is imported
        try:
            for module in self._include:
                import_named(module, f"include of the app {self.name!r}")
        except BaseException:
            self._included = False
            raise
        for task in unbound_tasks():
            home = task.function.__module__
            if any(home == module or home.startswith(f"{module}.") for module in self._include):
                self.register(task)

    def send_task(
        self, name: str, args: Sequence[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[Any]:
        """Enqueues a task by its name, which this process need not know."""
        task = self.tasks.get(check_name(name))
        if task is not None:
            return task.apply_async(args, kwargs, **options)
        return self.enqueue(self.make_call(name, *as_arguments(args, kwargs), **options), None)

    def make_call(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        priority: int = 0,
        queue: str | None = None,
        expires: float | timedelta | datetime | None = None,
        max_retries: int | None = None,
        task_id: str | None = None,
        serializer: str | None = None,
        **unknown: Never,
    ) -> Call:
        """A call as the record that is enqueued. Raises when it cannot be one; nothing is written here."""
        if unknown:
            raise EnqueueError(unknown_options("option of a call", unknown, "CALL_OPTIONS", Task.apply_async))
        check_name(name)
        if serializer is not None:
            self.serializer.check(serializer)
        start = start_of(countdown, eta, self)
        payload = self.serializer.dump_call(args, kwargs, task=name, serializer=serializer)
        return Call(
            name=name,
            queue=self.check_queue(queue) or self.settings.default_queue,
            content_type=payload.content_type,
            payload=payload.data,
            priority=check_priority(priority),
            start=start,
            expires=expiry_of(expires, start, self),
            max_tries=None if max_retries is None else _max_tries(max_retries),
            task_id=None if task_id is None else check_task_id(task_id),
        )

    def enqueue(self, call: Call, task: Task[..., Any] | None) -> AsyncResult[Any]:
        """Writes one call in a transaction of its own."""
        return self.enqueue_many([call], task)[0]

    def enqueue_many(
        self, calls: Sequence[Call], task: Task[..., Any] | None, using: Any = None
    ) -> list[AsyncResult[Any]]:
        """Writes calls in one transaction: a new one, or with *using* the caller's."""
        if self.always_eager:
            from fbtasks.eager import run_eagerly

            return [run_eagerly(self, call) for call in calls]
        ignored = task is not None and task.options.ignore_result
        if using is not None:
            refuse_fork()
            found, _ = tasks.enqueue(guests.transaction(using, self.database), calls)
        else:
            found = self._enqueue_once(calls)
        return [
            AsyncResult(
                call.task_id or str(enqueued.id),
                self,
                duplicate=enqueued.duplicate,
                ignored=ignored,
                number=(enqueued.id or None) if using is None else None,
            )
            for call, enqueued in zip(calls, found, strict=True)
        ]

    def check_connection(self, connection: Any) -> None:
        """Raises :class:`EnqueueError` unless calls can be enqueued in the transaction of *connection*."""
        if connection is None or not self.always_eager:  # eager calls need none
            guests.transaction_of(connection, self.database)

    def _enqueue_once(self, calls: Sequence[Call]) -> list[Enqueued]:
        """Writes calls in a transaction of its own. What became of a commit whose answer was lost is asked.

        Raises :class:`EnqueueUncertain` when the database is away for too long to be asked.
        """
        self.database.make_ready()
        try:
            return settlement.once(self._use, lambda t: tasks.enqueue(t, calls), ENQUEUE, _ASKED)
        except InDoubt as doubt:
            raise _uncertain(calls, doubt) from doubt

    def _use(self, work: Callable[[Transaction], T], kind: bytes) -> T:
        point = "enqueue" if kind == ENQUEUE else ""
        return self.database.use(lambda session: session.run(work, kind, point))

    def AsyncResult(self, id: str | int) -> AsyncResult[Any]:  # noqa: N802  # Celery's word
        """The result of an earlier call by its id."""
        return AsyncResult(id, self)

    def connect(self, **options: Any) -> Any:
        """A connection of firebird-driver to the app's database, for the application's own data.

        It uses the engine and the lock directory that fbtasks uses, which an embedded database needs. A database that
        is missing is created with an empty queue, as by the first call. Close the connection.
        """
        self.database.make_ready()
        return self.database.connect(**options)

    def migrate(self) -> list[int]:
        """Creates the tables of the queue or brings them up to date. Returns the versions that were applied now."""
        return migrate(self.database).applied

    @contextmanager
    def waiting(self) -> Iterator[Waiter]:
        """A wait that ends early when some task finishes."""
        with self._listener.waiter() as waiter:
            yield waiter

    def close(self) -> None:
        """Closes all connections; the next use opens new ones."""
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

    def queues_served(self) -> list[str]:
        """The queues of a worker that was not told any: the default one and those that tasks name."""
        declared = {task.options.queue for task in self.tasks.values() if task.options.queue}
        return sorted({self.settings.default_queue, *declared, *(self.settings.queues or ())})

    def check_queue(self, queue: str | None) -> str | None:
        """*queue* itself, when the app may use it. Raises :class:`UnknownQueueError` or :class:`ConfigurationError`."""
        if queue is None:
            return None
        check_queue_name(queue)
        if self.settings.queues is not None and queue not in self.settings.queues:
            known = ", ".join(sorted(self.settings.queues))
            raise UnknownQueueError(f"the app {self.name!r} declares no queue {queue!r}. Declared: {known}.")
        return queue


def _signing_keys(given: bytes | str | Sequence[bytes | str] | None) -> tuple[bytes, ...]:
    """The keys as bytes. What is none stays as it is, for the serializer to refuse."""
    if given is None:
        return ()
    keys = (given,) if isinstance(given, str | bytes) or not isinstance(given, list | tuple) else given or (b"",)
    return tuple(key.encode() if isinstance(key, str) else key for key in keys)


def _check_app_name(name: str) -> str:
    if isinstance(name, str) and "://" in name:  # not shown: it may hold a password
        raise ConfigurationError("the first argument of FBTasks is the app's name, and the url comes second.")
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise ConfigurationError(f"the app's name {checks.shown(name)} must be text: FBTasks('shop', url).")
    return name


def _same_code(one: Task[..., Any], other: Task[..., Any]) -> bool:
    """Whether both come from one line: a module that was run as a script and is imported again."""
    first, second = (getattr(inspect.unwrap(task.function), "__code__", None) for task in (one, other))
    if first is None or second is None:  # a function written in C
        return one.function is other.function
    return (first.co_filename, first.co_firstlineno) == (second.co_filename, second.co_firstlineno)


def _uncertain(calls: Sequence[Call], doubt: InDoubt) -> EnqueueUncertain:
    given = next((call.task_id for call in calls if call.task_id), None)
    found: list[Enqueued] = doubt.written
    task_id = given or str(found[0].id)
    return EnqueueUncertain(
        f"the connection was lost while task {task_id} was committed, and whether it was enqueued cannot be told: "
        f"{doubt} Look for it with app.AsyncResult({task_id!r}), or enqueue it again under the same task_id.",
        task_id=task_id,
    )


def _max_tries(max_retries: int) -> int:
    checks.retries("max_retries", max_retries, EnqueueError)
    return 0 if max_retries >= MOST_TRIES else max_retries + 1


def check_task_id(task_id: str) -> str:
    """*task_id* itself. Raises :class:`EnqueueError` unless it has 1 to 255 printable characters, not only digits."""
    if not isinstance(task_id, str) or not 0 < len(task_id) <= 255 or not task_id.isprintable():
        raise EnqueueError(f"task_id {checks.shown(task_id)} must be a string of 1 to 255 printable characters.")
    if task_id.isascii() and task_id.isdigit():
        raise EnqueueError(
            f"task_id {task_id!r} is a number, and numbers are given by the database. Prefix it: 'order-{task_id}'."
        )
    return task_id
