"""When a task is tried again: decisions from values, with the random numbers passed in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from fbtasks.errors import ConfigurationError

Exceptions = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a task is tried again, after which exceptions, and after how long. Times are in seconds.

    ``autoretry_for`` is a tuple of exception types, or a mapping from a type to the delay after it; of several that
    fit, the most specific decides. The back-off doubles with each retry up to ``retry_backoff_max``; with jitter
    the delay is drawn evenly between 0 and that ("full jitter", from the AWS architecture blog, as in Celery).
    """

    max_retries: int | None = 3
    """None: without limit."""
    autoretry_for: Exceptions | Mapping[type[BaseException], float] = ()
    dont_autoretry_for: Exceptions = ()
    retry_backoff: bool | float = False
    """True: from one second; a number: from so many seconds; False: always ``default_retry_delay``."""
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    default_retry_delay: float = 180

    def __post_init__(self) -> None:
        limit = self.max_retries
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigurationError(f"max_retries {limit!r} must be a whole number from 0, or None for no limit.")
        for option in ("retry_backoff", "retry_backoff_max", "default_retry_delay"):
            value = getattr(self, option)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigurationError(f"{option} {value!r} must be a number of seconds from 0.")
        for option in ("autoretry_for", "dont_autoretry_for"):
            for kind in getattr(self, option):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise ConfigurationError(f"{option} holds {kind!r}, which is not an exception type.")
        if isinstance(self.autoretry_for, Mapping):
            for kind, delay in self.autoretry_for.items():
                if not isinstance(delay, int | float) or delay < 0:
                    raise ConfigurationError(f"autoretry_for[{kind.__name__}] {delay!r} must be seconds from 0.")

    def delay(self, retries: int, exc: BaseException | None, rng: random.Random) -> float:
        """Seconds to wait before the retry that follows *retries* earlier ones."""
        if isinstance(self.autoretry_for, Mapping) and exc is not None:
            kind = self._most_specific(exc)
            if kind is not None:
                return float(self.autoretry_for[kind])
        if self.retry_backoff is False:
            return float(self.default_retry_delay)
        top = min(float(self.retry_backoff) * 2.0 ** min(retries, 1000), float(self.retry_backoff_max))
        return rng.uniform(0.0, top) if self.retry_jitter else top

    def decide(self, exc: BaseException, tries: int, max_tries: int | None, rng: random.Random) -> float | None:
        """Seconds until the next try after *tries* have ended, or None: it has failed for good.

        *max_tries* is the call's own limit (0: none); None leaves it to the policy.
        """
        if self._most_specific(exc) is None or isinstance(exc, tuple(self.dont_autoretry_for)):
            return None
        if max_tries is None:
            max_tries = 0 if self.max_retries is None else self.max_retries + 1
        if max_tries and tries >= max_tries:
            return None
        return self.delay(tries - 1, exc, rng)

    def _most_specific(self, exc: BaseException) -> type[BaseException] | None:
        wanted = set(self.autoretry_for)
        return next((kind for kind in type(exc).__mro__ if kind in wanted), None)
