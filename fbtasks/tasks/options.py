"""The options of tasks, of calls and of ``self.retry()``. docs/reference/options.md describes them one by one."""

from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cache, partial
from typing import Annotated, Any, Final, TypedDict, is_typeddict

from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError, EnqueueError, TaskDefinitionError
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import windows
from fbtasks.tasks.call import MOST_TRIES, When
from fbtasks.tasks.declare import chosen
from fbtasks.tasks.request import Hook
from fbtasks.tasks.retry import RetryPolicy
from fbtasks.tasks.serialize import is_headers

_OURS: Final = "fbtasks."
"""The beginning of names that no caller may give."""


def task_name(what: str, value: object) -> str:
    """The name of a task. Raises :class:`TaskDefinitionError` for what cannot be one."""
    if not isinstance(value, str):
        own = getattr(value, "name", None)
        hint = f": {own!r}" if isinstance(own, str) else ""
        raise TaskDefinitionError(f"the task {what} {checks.shown(value)} must be text{hint}.")
    if not checks.is_name(value, 255):
        raise TaskDefinitionError(
            f"the task {what} {checks.shown(value)} must have 1 to 255 printable characters, without spaces at its "
            "ends."
        )
    if value.startswith(_OURS):
        raise TaskDefinitionError(
            f"the task {what} {checks.shown(value)} must not begin with {_OURS!r}: such names are kept for tasks of "
            "fbtasks itself, and the database enqueues none of them. Choose another one."
        )
    return value


def _aliases(what: str, value: object) -> tuple[str, ...]:
    """Former names of a task. Raises :class:`TaskDefinitionError` for what cannot be the name of one."""
    return tuple(task_name("alias", each) for each in checks.names(what, value, "former names"))


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


def headers_of(what: str, value: Any) -> dict[str, str]:
    """The headers of a call. Raises :class:`EnqueueError` for what cannot be any."""
    if not is_headers(value):
        raise EnqueueError(f"{what} {checks.shown(value)} must be a dict of strings: {{'request-id': '4711'}}.")
    return dict(value)


def countdown_of(what: str, value: object) -> timedelta:
    """The span from the database's now to the start of a call."""
    span = _span(what, value)
    if span < timedelta(0):
        raise EnqueueError(f"{what} {value!r} must not be negative; 0 means at once.")
    return span


def start_of(countdown: timedelta | None, eta: datetime | None, timezone: tzinfo | None) -> When:
    """When a call may start: a span from the database's now, or a moment in UTC."""
    if eta is None:
        return countdown
    if countdown is not None:
        raise EnqueueError("give countdown or eta, not both.")
    return _moment("eta", eta, timezone)


def moment_of(what: str, value: object, timezone: tzinfo | None) -> When:
    """When something is to be: a span from the database's now, in seconds or as a timedelta, or a moment in UTC."""
    if value is None:
        return None
    return _moment(what, value, timezone) if isinstance(value, datetime) else countdown_of(what, value)


def expiry_of(expires: float | timedelta | datetime, start: When, timezone: tzinfo | None) -> datetime | timedelta:
    """When a call that has not begun is cancelled: later than now, and later than its *start*."""
    now = clock.utcnow()
    end: datetime | timedelta
    if isinstance(expires, datetime):
        end = _moment("expires", expires, timezone)
    else:
        end = _span("expires", expires, ", or a datetime")
    if _at(end, now) <= now:
        raise EnqueueError(f"expires {expires} must be later than now.")
    if start is not None and _at(end, now) <= _at(start, now):
        raise EnqueueError(
            f"expires {expires} is not later than the eta or countdown ({start}), so the call could never run: "
            "give a later expires, or an earlier start."
        )
    return end


def _at(when: datetime | timedelta, now: datetime) -> datetime:
    return when if isinstance(when, datetime) else now + when


def _span(what: str, value: Any, also: str = "") -> timedelta:
    """*value*, in seconds or a span already, as a span. Raises :class:`EnqueueError`."""
    span = value if isinstance(value, timedelta) else None
    if span is None and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            span = timedelta(seconds=value)
    if span is None or not -clock.LONGEST <= span <= clock.LONGEST:
        raise EnqueueError(f"{what} {checks.shown(value)} must be a number of seconds, at most a hundred years{also}.")
    return span


def _moment(what: str, value: Any, timezone: tzinfo | None) -> datetime:
    """*value* in UTC. Raises :class:`EnqueueError`."""
    try:
        return clock.as_utc(value, timezone)
    except (AttributeError, TypeError, ValueError, OverflowError):
        hint = ""
        if isinstance(value, str):
            hint = f": datetime.fromisoformat({checks.shown(value)})"
        elif isinstance(value, int | float | timedelta):
            hint = f"; give seconds from now as countdown={checks.shown(value)}" if what == "eta" else ""
        raise EnqueueError(f"{what} {checks.shown(value)} must be a datetime of the years 2 to 9998{hint}.") from None


IDLE: Final = -9999
"""The lowest priority: tasks of it are claimed when nothing else is ready in the queues of a worker."""
_limit = optional(partial(checks.seconds, zero=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(RetryPolicy):
    """The options of all tasks, whether they are called or fed by a source; those for retries among them."""

    name: Annotated[str | None, optional(task_name)] = None
    aliases: Annotated[tuple[str, ...], _aliases] = ()
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


class CallOptions(TypedDict, total=False):
    """The options of one call. Those left out, or None, are as the task says.

    What is right for the last ones depends on the app, which checks them:
    :meth:`fbtasks.queue.enqueuing.Enqueuer.make_call`.
    Of *link* and *link_error* the tasks of an app with workflows make one.
    """

    countdown: Annotated[float | None, countdown_of]
    priority: Annotated[int | None, checks.priority]
    max_retries: Annotated[int | None, _max_tries]
    task_id: Annotated[str | None, _task_id]
    headers: Annotated[dict[str, str] | None, headers_of]
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


def chosen_of_call(options: CallOptions) -> dict[str, Any]:
    """Returns those of *options* that are not None, checked. Raises :class:`EnqueueError` for an unknown one."""
    return chosen("option of a call", CallOptions, options, EnqueueError)


def check_options(what: str, declared: Any) -> None:
    """Raises :class:`ConfigurationError` unless :func:`with_options` can add *declared*; None adds nothing."""
    is_record = isinstance(declared, type) and issubclass(declared, CommonOptions)
    if declared is not None and not is_record and not is_typeddict(declared):
        raise ConfigurationError(
            f"{what} {checks.shown(declared)} must be a TypedDict, such as "
            "class AuditOptions(TypedDict, total=False): audit: bool | None"
        )


@cache
def with_options(base: type[CommonOptions], *more: type) -> type[CommonOptions]:
    """Returns *base* with the options of *more*, which are dataclasses derived from it, or TypedDicts."""
    records = tuple(each for each in more if issubclass(each, CommonOptions))
    said = {name: each for one in more if one not in records for name, each in one.__annotations__.items()}
    bases = records if base is CommonOptions and records else (base, *records)
    if not said and len(bases) == 1:
        return bases[0]
    fields = [(name, each, field(default=None)) for name, each in said.items()]
    return make_dataclass("TaskOptions", fields, bases=bases, frozen=True, kw_only=True)
