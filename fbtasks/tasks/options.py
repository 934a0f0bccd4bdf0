"""The options of tasks, of calls and of ``self.retry()``. docs/reference/options.md describes them one by one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final, TypedDict

from fbtasks.errors import ConfigurationError, EnqueueError, FBTasksError, TaskDefinitionError
from fbtasks.features.limits import definition as limiting
from fbtasks.features.limits.definition import Ordered, Unique
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import times, windows
from fbtasks.tasks.call import MOST_TRIES
from fbtasks.tasks.declare import Given, Refuse, given, options_of
from fbtasks.tasks.request import Hook
from fbtasks.tasks.retry import RetryPolicy


def task_name(what: str, value: object) -> str:
    """The name of a task. Raises :class:`TaskDefinitionError` for what cannot be one."""
    if not isinstance(value, str):
        own = getattr(value, "name", None)
        hint = f": {own!r}" if isinstance(own, str) else ""
        raise TaskDefinitionError(f"the task {what} {checks.shown(value)} must be text{hint}.")
    if len(value) > 255 or not value.isprintable() or not value.strip():
        raise TaskDefinitionError(f"the task {what} {checks.shown(value)} must have 1 to 255 printable characters.")
    return value


def _task_id(what: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 255 or not value.isprintable():
        raise EnqueueError(f"{what} {checks.shown(value)} must be a string of 1 to 255 printable characters.")
    if value.isascii() and value.isdigit():
        raise EnqueueError(
            f"{what} {value!r} is a number, and numbers are given by the database. Prefix it: 'order-{value}'."
        )
    return value


def _expires(what: str, value: object) -> float | timedelta:
    if isinstance(value, timedelta):
        return checks.duration(what, value)
    return checks.seconds(what, value, zero=False, also=", or a timedelta")


def _max_tries(what: str, max_retries: int) -> int:
    checks.retries(what, max_retries, EnqueueError)
    return 0 if max_retries >= MOST_TRIES else max_retries + 1


def _exception(what: str, value: object) -> BaseException:
    if not isinstance(value, BaseException):
        raise ConfigurationError(f"{what} {checks.shown(value)} must be an exception: retry(exc=error).")
    return value


_OWN: Final = ("PENDING", "RETRY", "SUCCESS", "FAILURE", "REVOKED")


def progress_word(what: str, value: object) -> str:
    """How a task calls the state that it is in while it runs. Raises :class:`ConfigurationError` for what cannot be."""
    if not isinstance(value, str) or not 0 < len(value) <= 50 or not value.isprintable():
        raise ConfigurationError(f"{what} {checks.shown(value)} must be text of 1 to 50 printable characters.")
    if value in _OWN:
        raise ConfigurationError(
            f"{what} {value!r} is said of a task that does not run: return, or raise an error, and it has that state."
        )
    return value


IDLE: Final = -9999
"""The lowest priority: tasks of it are claimed when nothing else is ready in the queues of a worker."""
BATCH_WAIT: Final = 1.0
"""Seconds that a call waits for its batch to be full, where nothing else is said."""
_limit = optional(partial(checks.seconds, zero=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(RetryPolicy):
    """The options of all tasks, whether they are called or fed by a source; those for retries among them."""

    name: Annotated[str | None, optional(task_name)] = None
    queue: Annotated[str | None, optional(checks.queue_name)] = None
    priority: Annotated[int, checks.priority] = 0
    bind: Annotated[bool, checks.flag] = False
    ignore_result: Annotated[bool, checks.flag] = False
    transactional: Annotated[bool, checks.flag] = False
    expires: Annotated[float | timedelta | None, optional(_expires)] = None
    serializer: Annotated[str | None, optional(checks.text)] = None
    soft_time_limit: Annotated[float | None, _limit] = None
    time_limit: Annotated[float | None, _limit] = None
    heartbeat_timeout: Annotated[float | None, _limit] = None
    run_between: Annotated[tuple[str, str] | None, optional(windows.hours)] = None
    days: Annotated[str | None, optional(windows.day_names)] = None
    tz: Annotated[str | None, optional(windows.zone)] = None
    idle: Annotated[bool, checks.flag] = False
    limits: Annotated[
        Given[Mapping[str, limiting.Key] | str | None, Mapping[str, limiting.Key] | None], optional(limiting.limit_keys)
    ] = given(None)
    ordered: Annotated[Given[limiting.Key | bool | Ordered, Ordered | None], optional(limiting.ordered)] = given(None)
    unique: Annotated[Given[bool | Unique | None, Unique | None], optional(limiting.unique)] = given(None)
    on_success: Annotated[Hook | None, checks.hook] = None
    on_failure: Annotated[Hook | None, checks.hook] = None
    on_retry: Annotated[Hook | None, checks.hook] = None
    base: type[Any] | None = None

    def __post_init__(self) -> None:
        RetryPolicy.__post_init__(self)
        soft, hard = self.soft_time_limit, self.time_limit
        if soft is not None and hard is not None and soft >= hard:
            raise ConfigurationError(
                f"soft_time_limit {soft!r} must be less than time_limit {hard!r}, which ends the task before."
            )
        windows.check_window_options(self.run_between, self.days, self.tz)
        if self.idle:
            if self.priority not in (0, IDLE):
                raise ConfigurationError(
                    f"idle=True is the lowest priority there is, and priority {self.priority} was given: leave out one."
                )
            object.__setattr__(self, "priority", IDLE)

    @property
    def batching(self) -> tuple[int, float] | None:
        """How many calls are run together at most, and how many seconds one waits for that; None: each by itself."""
        return None


_batch = optional(partial(checks.number, least=1, most=limiting.MOST_IN_BATCH, unit="calls"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(CommonOptions):
    """The options of ``@app.task``."""

    batch: Annotated[int | None, _batch] = None
    wait: Annotated[float | None, optional(checks.seconds)] = None

    def __post_init__(self) -> None:
        CommonOptions.__post_init__(self)
        if self.batch is not None:
            self._check_batch()
        elif self.wait is not None:
            raise ConfigurationError(
                f"wait={self.wait!r} is how long a call waits for its batch to be full: give batch= as well. To have "
                "each call begin later, give it countdown=."
            )

    @property
    def batching(self) -> tuple[int, float] | None:
        """The same."""
        return None if self.batch is None else (self.batch, BATCH_WAIT if self.wait is None else self.wait)

    def _check_batch(self) -> None:
        """Raises :class:`ConfigurationError` for what makes no sense with ``batch``."""
        size = f"batch={self.batch}"
        if self.ordered is not None:
            raise ConfigurationError(
                f"{size} runs calls together, and ordered= has one run at a time: leave out one. Within a batch, calls "
                "of one priority come in the order of enqueueing."
            )
        if self.limits is not None:
            raise ConfigurationError(
                f"{size} lets in calls together, and limits={[*self.limits]} one by one, so that no batch would be "
                "full: leave out one. How many batches run at once is limited by a queue with a worker of its own: "
                "fbtasks worker -Q NAME -c 2."
            )
        if self.transactional:
            raise ConfigurationError(
                f"{size} gives each call an end of its own, and transactional=True is one transaction, which cannot "
                "undo what was done for one of them alone: leave out one. The function can use a connection of "
                "app.connect()."
            )


class CallOptions(TypedDict, total=False):
    """The options of one call. Those left out, or None, are as the task says.

    What is right for the last ones depends on the app, which checks them:
    :meth:`fbtasks.queue.enqueuing.Enqueuer.make_call`.
    Of *link* and *link_error* :meth:`fbtasks.features.workflows.canvas.Signature.set` makes a workflow.
    """

    countdown: Annotated[float | None, times.countdown]
    priority: Annotated[int | None, checks.priority]
    max_retries: Annotated[int | None, _max_tries]
    task_id: Annotated[str | None, _task_id]
    eta: datetime | None
    expires: float | timedelta | datetime | None
    queue: str | None
    serializer: str | None
    link: Any
    link_error: Any


class RetryOptions(TypedDict, total=False):
    """The arguments of ``self.retry()``."""

    exc: Annotated[BaseException | None, _exception]
    countdown: Annotated[float | None, checks.seconds]
    max_retries: Annotated[int | None, checks.retries]


def unknown(what: str, words: str, *declared: type, kind: type[FBTasksError] = TaskDefinitionError) -> Refuse:
    """Returns what makes the error for options that none of *declared* has; *words* names the table of Celery's."""

    def refuse(names: Iterable[str]) -> FBTasksError:
        from fbtasks.tasks import celery_words  # for mistakes alone

        known = {name: option for each in declared for name, option in options_of(each).items()}
        return kind(celery_words.unknown_options(what, names, getattr(celery_words, words), known))

    return refuse


unknown_of_task = unknown("task option", "TASK_OPTIONS", TaskOptions)
unknown_of_call = unknown("option of a call", "CALL_OPTIONS", CallOptions, kind=EnqueueError)
unknown_of_retry = unknown("argument of retry()", "RETRY_OPTIONS", RetryOptions, kind=ConfigurationError)
