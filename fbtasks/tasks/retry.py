"""When a task is tried again: decisions from values, with the random numbers passed in."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks.declare import Given, check_fields, given

Exceptions = tuple[type[BaseException], ...]
_backoff = partial(checks.seconds, flag=True, bounded=False)
CONFLICT_BACKOFF: Final = 0.1
"""Seconds before the first retry after a conflict, doubled with each further one, where a policy does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """The retry options after one type of exception. None: as the policy of the task says.

    Raises :class:`ConfigurationError` for a value that cannot be used.
    """

    max_retries: Annotated[int | None, checks.retries] = None
    delay: Annotated[float | None, optional(checks.seconds)] = None
    """Always so many seconds."""
    backoff: Annotated[bool | float | None, optional(_backoff)] = None
    """As ``retry_backoff`` of the policy."""

    def __post_init__(self) -> None:
        check_fields(self, "RetryRule.")
        if self.delay is not None and self.backoff:
            raise ConfigurationError(
                f"RetryRule has delay {self.delay!r} and backoff {self.backoff!r}: give one of them."
            )


Rules = Mapping[type[BaseException], float | RetryRule]


def _exceptions(what: str, value: object) -> Exceptions:
    if isinstance(value, type) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} {value!r} must be a tuple of exception types: (OSError,).")
    kinds = tuple(value)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"{what} holds {kind!r}, which is not an exception type.")
    return kinds


def _rules(what: str, value: Any) -> Exceptions | Rules:
    """A copy: the policy does not change when the caller's list or dict does."""
    kinds = _exceptions(what, value)
    if not isinstance(value, Mapping):
        return kinds
    for kind, rule in value.items():
        if not isinstance(rule, RetryRule):
            checks.seconds(f"{what}[{kind.__name__}]", rule, also=" or a RetryRule")
    return dict(value)


def _kinds(exc: BaseException) -> Iterator[type[Any]]:
    """The classes of *exc*, the most specific one first; of a group its own, then those of each exception in it."""
    if not isinstance(exc, BaseExceptionGroup):
        yield from type(exc).__mro__
        return
    yield from (kind for kind in type(exc).__mro__ if kind not in BaseException.__mro__ and kind is not Exception)
    for inner in exc.exceptions:
        yield from _kinds(inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a task is tried again, after which exceptions, and after how long. Times are in seconds.

    ``autoretry_for`` is a tuple of exception types, or a mapping from a type to the delay after it or to a
    :class:`RetryRule`; of several that fit, the most specific class decides. What is in
    ``dont_autoretry_for``, or derives from it, is never retried by itself. A group of exceptions is all that is in it:
    the first that fits decides.

    Raises :class:`ConfigurationError` for a value that cannot be used.
    """

    max_retries: Annotated[int | None, checks.retries] = 3
    """Tries after the first; None: without limit."""
    autoretry_for: Annotated[Given[Iterable[type[BaseException]] | Rules, Exceptions | Rules], _rules] = given(())
    dont_autoretry_for: Annotated[Given[Iterable[type[BaseException]], Exceptions], _exceptions] = given(())
    retry_backoff: Annotated[bool | float, _backoff] = False
    """Seconds before the first retry, doubled with each further one.

    True: 1 second. False or 0: no back-off, but always ``default_retry_delay``.
    """
    retry_backoff_max: Annotated[float, partial(checks.seconds, bounded=False)] = 600
    """The most that the back-off grows to."""
    retry_jitter: Annotated[bool, checks.flag] = True
    """Whether a back-off is drawn evenly between 0 and what it has grown to."""
    default_retry_delay: Annotated[float, checks.seconds] = 180
    """The delay, always the same and without jitter, where there is no back-off."""

    def __post_init__(self) -> None:
        check_fields(self)

    def delay(self, retries: int, exc: BaseException | None, rng: random.Random) -> float:
        """Seconds to wait before the retry that follows *retries* earlier ones.

        The back-off is ``retry_backoff * 2 ** retries``, at most ``retry_backoff_max``. With jitter it is
        drawn evenly between 0 and that, so that tasks that failed together do not come back together: the
        "full jitter" of "Exponential Backoff And Jitter" in the AWS architecture blog, as in Celery.
        """
        rule = self._rule(exc)
        if rule.delay is not None:
            return float(rule.delay)
        backoff = self.retry_backoff if rule.backoff is None else rule.backoff
        if not backoff:
            return float(self.default_retry_delay)
        top = min(backoff * 2.0 ** min(max(0, retries), 1000), float(self.retry_backoff_max))
        return rng.uniform(0.0, top) if self.retry_jitter else top

    def decide(self, exc: BaseException, tries_ended: int, max_tries: int | None, rng: random.Random) -> float | None:
        """Seconds until the next try, when the last of *tries_ended* ended with *exc*.

        None: it has failed for good. *max_tries* is the call's own limit of tries (0: without limit); without
        one (None) the limit is that of the rule for *exc*, or else the policy's.
        """
        if self._names(exc) and self._more(exc, tries_ended, max_tries):
            return self.delay(tries_ended - 1, exc, rng)
        return None

    def after_conflict(
        self, exc: BaseException, tries_ended: int, max_tries: int | None, rng: random.Random
    ) -> float | None:
        """Decides after a conflict with another transaction, which ``autoretry_for`` need not name.

        Where neither that nor a back-off says how long to wait, it is a back-off that begins with
        :data:`CONFLICT_BACKOFF`: the other transaction is mostly over by then.
        """
        if not self._more(exc, tries_ended, max_tries):
            return None
        said = self._names(exc) or self.retry_backoff
        policy = self if said else replace(self, retry_backoff=CONFLICT_BACKOFF, retry_jitter=True)
        return policy.delay(tries_ended - 1, exc, rng)

    def _names(self, exc: BaseException) -> bool:
        return any(kind in self.autoretry_for for kind in _kinds(exc))

    def _more(self, exc: BaseException, tries_ended: int, max_tries: int | None) -> bool:
        """Whether another try is allowed, where *exc* is one to be tried again after."""
        if any(kind in self.dont_autoretry_for for kind in _kinds(exc)):
            return False
        if max_tries is None:
            rule = self._rule(exc)
            retries = self.max_retries if rule.max_retries is None else rule.max_retries
            max_tries = 0 if retries is None else retries + 1
        return not max_tries or tries_ended < max_tries

    def _rule(self, exc: BaseException | None) -> RetryRule:
        if exc is None or not isinstance(self.autoretry_for, Mapping):
            return RetryRule()
        rules = self.autoretry_for
        rule = next((rules[kind] for kind in _kinds(exc) if kind in rules), RetryRule())
        return rule if isinstance(rule, RetryRule) else RetryRule(delay=rule)
