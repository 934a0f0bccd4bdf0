"""Limits on tasks: how many run at once, how often they begin, in which order; for all calls, or for each key."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from fbtasks import checks
from fbtasks.call import Gate
from fbtasks.checks import optional
from fbtasks.declare import check_fields
from fbtasks.errors import ConfigurationError, EnqueueError, TaskDefinitionError

Key = str | tuple[str, ...] | Callable[..., Any] | None
"""What a limit is counted by: the names of arguments, a function of them, or nothing."""
LARGEST: Final = 1_000_000
ORDERED: Final = "ordered:"
"""What the name of the limit of an ordered task begins with."""
_UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE: Final = re.compile(r"([0-9]{1,7})\s*/\s*(?:([0-9]{1,5})\s*)?(s|m|h|d)")
_BURST: Final = 20_000
"""Microseconds whose tokens may be used at once, where nothing else is said."""
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


def limit_name(what: str, value: object) -> str:
    """The name of a limit: 1 to 100 printable characters."""
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable() or value != value.strip():
        raise ConfigurationError(f"{what} {checks.shown(value)} must be text of 1 to 100 printable characters.")
    if value.startswith(ORDERED):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} begins with {ORDERED!r}, as the limits of ordered tasks do."
        )
    return value


def _rate(what: str, value: object) -> str:
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not int(found[1]) or found[2] == "0":
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must say how many may begin in which time: '10/s', '100/m', '5/h', or '3/10s'."
        )
    if _period(found) < 1:
        raise ConfigurationError(f"{what} {checks.shown(value)} is more than a million a second, which is no limit.")
    return found.string


def _period(found: re.Match[str]) -> int:
    """The microseconds between two that begin at a rate."""
    return _UNITS[found[3]] * int(found[2] or 1) // int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The options of ``app.limit()``. Raises :class:`ConfigurationError` for a value that cannot be used."""

    at_once: Annotated[int | None, optional(partial(checks.number, least=1, most=LARGEST, unit="tasks"))] = None
    """Tasks that may run at once for each key."""
    rate: Annotated[str | None, optional(_rate)] = None
    """How many may begin in which time for each key: ``"10/s"``, ``"100/m"``, ``"3/10s"``."""
    burst: Annotated[int | None, optional(partial(checks.number, least=1, most=LARGEST, unit="tasks"))] = None
    """How many may begin at once after a pause; None: those of 20 milliseconds, at least 1."""

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.at_once is None) == (self.rate is None):
            raise ConfigurationError("a limit is either on how many run at once or on a rate: give at_once= or rate=.")
        if self.burst is not None and self.rate is None:
            raise ConfigurationError("burst= is of a limit with rate=.")


class LimitDefinition(NamedTuple):
    """A limit as its app defines it."""

    name: str
    at_once: int | None = None
    period: int | None = None
    """Microseconds between two that begin."""
    burst: int | None = None
    in_order: bool = False
    stops: bool = False

    @property
    def text(self) -> str:
        """The definition as JSON, as the database keeps it."""
        return json.dumps({name: value for name, value in self._asdict().items() if value}, sort_keys=True)

    @property
    def hash(self) -> str:
        """What tells it from another one."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def define_limit(name: str, options: LimitOptions) -> LimitDefinition:
    """The definition that *options* make of the limit *name*."""
    if options.rate is None:
        return LimitDefinition(name, options.at_once)
    found = _RATE.fullmatch(options.rate)
    assert found is not None  # as it was checked
    period = _period(found)
    return LimitDefinition(name, None, period, options.burst or max(1, _BURST // period))


def _key(what: str, value: Any) -> Key:
    """Names of arguments, a function, or None."""
    if value is None or callable(value):
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
        "or None for all calls."
    )


def limit_keys(what: str, value: object) -> Mapping[str, Key]:
    """Limits of a task, with what each is counted by."""
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, Mapping) or not value:
        raise ConfigurationError(f"{what} {checks.shown(value)} must be a dict: {what}={{'customer': 'customer_id'}}.")
    return {limit_name(f"{what} has the name", name): _key(f"{what}[{name!r}]", key) for name, key in value.items()}


def _retry(what: str, value: object) -> str:
    if value not in ("wait", "pass"):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be 'wait' (those behind it wait until it has ended) or 'pass'."
        )
    return value


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
    """An order, or what it goes by; True: one for all calls."""
    if isinstance(value, Ordered):
        return value
    if value is True:
        return Ordered(None)
    return Ordered(_key(what, value))


class Gates:
    """The limits of one task, and which gate a call of it has to pass for each."""

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        first: tuple[Any, ...],
        limits: Mapping[str, Key] | None,
        order: Ordered | None,
    ) -> None:
        """*first*: the arguments that *function* gets before those of a call.

        Raises :class:`TaskDefinitionError` for an argument that the function does not have.
        """
        self._task = task
        self._first = first
        self._keys = [(name, key, False) for name, key in (limits or {}).items()]
        self.own: LimitDefinition | None = None
        """The limit of its order."""
        if order is not None:
            keeps = order.during_retry == "wait"
            self.own = LimitDefinition(f"{ORDERED}{task}", 1, in_order=True, stops=order.stop_on_failure)
            self._keys.insert(0, (self.own.name, order.by, keeps))
        try:
            self._signature = inspect.signature(function)
        except ValueError as error:
            raise TaskDefinitionError(
                f"the task {task!r} has limits, and its function does not tell its parameters."
            ) from error
        self.names = tuple(name for name, _, _ in self._keys)
        for name, key, _ in self._keys:
            self._check(name, key)

    def _check(self, limit: str, key: Key) -> None:
        if not isinstance(key, tuple):
            return
        parameters = [*self._signature.parameters.values()][len(self._first) :]
        known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        for name in key:
            if name not in known:
                raise TaskDefinitionError(
                    f"the limit {limit!r} of the task {self._task!r} goes by the argument {name!r}, which its function "
                    f"does not have.{checks.did_you_mean(name, known)}"
                )

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Gate, ...]:
        """The gates of a call. Raises :class:`EnqueueError` when its key cannot be told."""
        given: Mapping[str, Any] | None = None
        found = []
        for limit, key, keeps in self._keys:
            if key is None:
                found.append(Gate(limit, 0, keeps))
                continue
            if callable(key):
                value = self._call(limit, key, args, kwargs)
            else:
                given = self._bind(args, kwargs) if given is None else given
                value = tuple(given[name] for name in key)
            found.append(Gate(limit, lane_of(limit, value), keeps))
        return tuple(found)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        bound = self._signature.bind(*self._first, *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _call(self, limit: str, key: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return key(*args, **kwargs)
        except Exception as error:
            raise EnqueueError(
                f"the key of the limit {limit!r} of the task {self._task!r} raised {type(error).__name__}: {error}. "
                "Nothing was enqueued."
            ) from error


def lane_of(limit: str, value: object) -> int:
    """The number of the gate of *value*. Raises :class:`EnqueueError` for what is no key."""
    values: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    texts = [_text(limit, each) for each in values]
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def _text(limit: str, value: object) -> str:
    text = str(value)
    if not isinstance(value, _PLAIN) and text.startswith("<"):
        raise EnqueueError(
            f"the key of the limit {limit!r} is {checks.shown(value)}: a key is text, a number, a date or a tuple of them."
        )
    return text
