"""Limits on tasks: how many run at once, how often they begin, in which order; for all calls, or for each key."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Self

from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks.declare import check_fields

Key = str | tuple[str, ...] | Callable[..., Any] | None
"""What a limit is counted by: the names of arguments, a function of them, or nothing."""
LARGEST: Final = 1_000_000
ORDERED: Final = "ordered:"
UNIQUE: Final = "unique:"
BATCH: Final = "batch:"
QUEUE: Final = "queue:"
"""What the names of the limits of ordered tasks, of unique tasks, of those with batches and of queues begin with."""
_RESERVED: Final = (ORDERED, UNIQUE, BATCH, QUEUE)
MOST_IN_BATCH: Final = 1000
_UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE: Final = re.compile(r"([0-9]{1,7})\s*/\s*(?:([0-9]{1,5})\s*)?(s|m|h|d)")
_BURST: Final = 100_000
"""Microseconds whose tokens may be used at once, where nothing else is said."""


def limit_name(what: str, value: object) -> str:
    """Checks the name of a limit: 1 to 100 printable characters."""
    name = checks.name(what, value, 100)
    if name.startswith(_RESERVED):
        raise ConfigurationError(f"{what} {checks.shown(name)} must not begin with any of {', '.join(_RESERVED)}.")
    return name


def check_rate(what: str, value: object) -> str:
    """Checks how many may begin in which time."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not int(found[1]) or found[2] == "0":
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must say how many may begin in which time: '10/s', '100/m' or '3/10s'."
        )
    if _period(found) < 1:
        raise ConfigurationError(f"{what} {checks.shown(value)} is more than a million a second, which is no limit.")
    return found.string


_many: Final = optional(partial(checks.number, least=1, most=LARGEST, unit="tasks"))


def _period(found: re.Match[str]) -> int:
    """Returns the microseconds between two that begin at a rate."""
    return _UNITS[found[3]] * int(found[2] or 1) // int(found[1])


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """The options of ``app.queue()`` that limit what runs. Raises :class:`ConfigurationError` for a wrong one."""

    at_once: Annotated[int | None, _many] = None
    """Tasks that may run at once, in all workers together; None: any number."""
    rate: Annotated[str | None, optional(check_rate)] = None
    """How many may begin in which time: ``"10/s"``, ``"100/m"``, ``"3/10s"``."""
    burst: Annotated[int | None, _many] = None
    """How many may begin at once after a pause; None: those of 100 milliseconds, at least 1."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.burst is not None and self.rate is None:
            raise ConfigurationError("burst= goes with rate=.")


@dataclass(frozen=True, kw_only=True)
class LimitOptions(QueueLimits):
    """The options of ``app.limit()``, for each key. Raises :class:`ConfigurationError` for a wrong one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.at_once is None) == (self.rate is None):
            raise ConfigurationError(
                "a limit is either on how many run at once or on a rate: give at_once= or rate=. For both, define two "
                "limits, and name both in limits= of the task."
            )


class LimitDefinition(NamedTuple):
    """A limit as its app defines it."""

    name: str
    at_once: int | None = None
    period: int | None = None
    """Microseconds between two that begin."""
    burst: int | None = None
    in_order: bool = False
    stops: bool = False
    until: str | None = None
    """Of unique tasks: whether calls are merged into one that has not begun ("start") or not ended ("end")."""
    replaces: bool = False
    """Whether the newest one is kept."""
    quiet_ms: int = 0
    """How long it then waits for a newer one."""
    most_ms: int = 0
    """How long the first one waits at most."""
    lasts_ms: int = 0
    """How long after one was let in others are merged into it."""
    batch: int | None = None
    """How many are let in together."""
    wait_ms: int = 0
    """How long the oldest one waits for so many."""

    def text_with(self, others: Mapping[str, Self]) -> str:
        """The definition as JSON, as the database keeps it, with those of *others*: apps that say something else."""
        said = {"also": {app: other._said() for app, other in others.items()}} if others else {}
        return json.dumps(self._said() | said, sort_keys=True)

    def _said(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value}

    @property
    def text(self) -> str:
        """The definition as JSON."""
        return self.text_with({})

    @classmethod
    def read(cls, text: str) -> tuple[Self, dict[str, Self]]:
        """Returns what :meth:`text_with` wrote: the definition, and those of other apps."""
        said = json.loads(text)
        others = said.pop("also", {})
        return cls._of(said), {app: cls._of(other) for app, other in others.items()}

    @classmethod
    def _of(cls, said: Mapping[str, Any]) -> Self:
        """Returns the definition that another release may have written."""
        return cls(**{name: value for name, value in said.items() if name in cls._fields})

    @property
    def words(self) -> str:
        """What it says, for people."""
        rest = {
            name: value for name, value in self._said().items() if name not in ("name", "at_once", "period", "burst")
        }
        said = [in_words(self.at_once, self.period), *(f"{name} {value}" for name, value in sorted(rest.items()))]
        return ", ".join(each for each in said if each) or "any number"

    @property
    def queue(self) -> str | None:
        """The queue that it is of; None: tasks name it."""
        return self.name.removeprefix(QUEUE) if self.name.startswith(QUEUE) else None

    @property
    def hash(self) -> str:
        """What tells it from another one."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def rate_text(period: int) -> str:
    """Returns the rate at which *period* microseconds pass between two that begin, as ``app.limit`` takes it."""
    for unit, size in _UNITS.items():
        many = round(size / period)
        if many and size // many == period:
            return f"{many}/{unit}"
    for unit, size in reversed(_UNITS.items()):
        if period % size == 0:
            return f"1/{period // size}{unit}"
    return f"1/{period / 1_000_000:g}s"


def define_limit(name: str, options: QueueLimits) -> LimitDefinition:
    """Returns the definition that *options* make of the limit *name*. That of a queue may be on nothing."""
    if options.rate is None:
        return LimitDefinition(name, options.at_once)
    found = _RATE.fullmatch(options.rate)
    assert found is not None  # as it was checked
    period = _period(found)
    return LimitDefinition(name, options.at_once, period, options.burst or max(1, _BURST // period))


def in_words(at_once: int | None, period: int | None) -> str | None:
    """Returns what a limit says, for people: ``3 at once, 10/s``. *period*: microseconds between two that begin."""
    said = [] if at_once is None else [f"{at_once} at once"]
    if period is not None:
        said.append(rate_text(period))
    return ", ".join(said) or None


def _key(what: str, value: Any, *, all_calls: str = "None") -> Key:
    """Checks a key: names of arguments, a function, or None, which the caller writes as *all_calls*."""
    if value is None or checks.is_function(value):
        return value  # type: ignore[no-any-return]
    names = (value,) if isinstance(value, str) else value
    if (
        isinstance(names, tuple | list)
        and names
        and all(isinstance(name, str) and name.isidentifier() for name in names)
    ):
        return tuple(names)
    raise ConfigurationError(
        f"{what} {checks.shown(value)} must be the name of an argument, a tuple of them, a function of the arguments, "
        f"or {all_calls} for all calls.{checks.no_class(value)}"
    )


def limit_keys(what: str, value: object) -> Mapping[str, Key]:
    """Limits of a task, with what each is counted by."""
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, Mapping) or not value:
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be a dict of limits and their keys: "
            f"{what}={{'customer': 'customer_id', 'sms': None}}."
        )
    return {limit_name(f"{what} has the name", name): _key(f"{what}[{name!r}]", key) for name, key in value.items()}


_retry: Final = checks.one_of({"wait": "those behind it wait until it has ended", "pass": "they do not"})


@dataclass(frozen=True, slots=True)
class Ordered:
    """One at a time, in the order of enqueueing: ``@app.task(ordered=Ordered("order_id", stop_on_failure=True))``."""

    by: Annotated[Key, _key]
    """The names of arguments, a function of them, or None: each value has an order of its own."""
    stop_on_failure: Annotated[bool, checks.flag] = False
    """Whether those behind a task that failed wait until it is retried or discarded."""
    during_retry: Annotated[str, _retry] = "wait"
    """Whether those behind a task that is to be tried again "wait" for it, or "pass" it."""

    def __post_init__(self) -> None:
        check_fields(self)


def ordered(what: str, value: object) -> Ordered:
    """Returns an order, or makes one of what it goes by; True: one for all calls."""
    if isinstance(value, Ordered):
        return value
    if value is True:
        return Ordered(None)
    return Ordered(_key(what, value, all_calls="True"))


_until: Final = checks.one_of(
    {"start": "calls are merged into one that has not begun", "end": "into one that has not ended"}
)


@dataclass(frozen=True, slots=True)
class debounce:  # noqa: N801  # reads as a call: conflict=debounce(10)
    """The newest call is kept, and waits until there has been none for *wait* seconds; the first at most *max_wait*."""

    wait: Annotated[float, partial(checks.seconds, zero=False)]
    max_wait: Annotated[float | None, optional(partial(checks.seconds, zero=False))] = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_wait is not None and self.max_wait < self.wait:
            raise ConfigurationError(f"max_wait {self.max_wait!r} must be at least wait, {self.wait!r}.")


def _conflict(what: str, value: object) -> str | debounce:
    if isinstance(value, debounce):
        return value
    if value not in ("keep", "replace", "raise"):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be 'keep' (the first call runs), 'replace' (the newest does), 'raise' "
            "(the second one is refused) or debounce(SECONDS)."
        )
    return value


@dataclass(frozen=True, slots=True)
class Unique:
    """Calls with one key are merged while one of them waits: ``@app.task(unique=Unique(by="order"))``."""

    by: Annotated[Key, _key] = None
    """The names of arguments, or a function of them; None: all arguments."""
    until: Annotated[str, _until] = "start"
    period: Annotated[float | None, optional(partial(checks.seconds, zero=False))] = None
    """Seconds after one was let in for which others are merged into it."""
    conflict: Annotated[str | debounce, _conflict] = "keep"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.until == "end" and self.conflict not in ("keep", "raise"):
            raise ConfigurationError(
                f"conflict={checks.shown(self.conflict)} replaces a call that waits, and until='end' merges into one "
                "that runs: leave out one."
            )


def unique(what: str, value: object) -> Unique | None:
    """Returns what makes a task unique; True: its arguments, False: nothing."""
    if isinstance(value, Unique):
        return value
    if isinstance(value, bool):
        return Unique() if value else None
    raise ConfigurationError(f"{what} {checks.shown(value)} must be True, False or Unique(by=...).")


def order_limit(task: str, options: Ordered) -> LimitDefinition:
    """Returns the limit of an ordered task."""
    return LimitDefinition(f"{ORDERED}{task}", 1, in_order=True, stops=options.stop_on_failure)


def unique_limit(task: str, options: Unique) -> LimitDefinition:
    """Returns the limit of a unique task."""
    conflict = options.conflict
    waits = conflict if isinstance(conflict, debounce) else None
    quiet = 0 if waits is None else round(waits.wait * 1000)
    return LimitDefinition(
        f"{UNIQUE}{task}",
        until=options.until,
        replaces=waits is not None or conflict == "replace",
        quiet_ms=quiet,
        most_ms=quiet if waits is None else round((waits.max_wait or clock.LONGEST.total_seconds()) * 1000),
        lasts_ms=round((options.period or 0) * 1000),
    )


def batch_limit(task: str, size: int, wait: float) -> LimitDefinition:
    """Returns the limit of a task with batches: up to *size* calls, when the oldest has waited *wait* seconds."""
    return LimitDefinition(f"{BATCH}{task}", batch=size, wait_ms=round(wait * 1000))
