"""The clock and the pauses of this process, for durations and for times given by a caller.

What two machines must agree on is decided by the database's clock, in SQL. These functions serve what stays
within one process: how long something took, and what a datetime given by a caller means.

No other module imports ``time``. A test of an application replaces what is there, to freeze the time or to skip the
pauses of a task, and would stop or hurry the threads and the waits of this package, too.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
LONGEST: Final = timedelta(days=36_525)
"""A hundred years: the most that a countdown, an expiry, the wait for the next try or the life of a result may be."""

# freezegun looks for Python's functions in all modules, by which names they may have, and time-machine changes the
# function itself: neither knows this one, which is what time.monotonic calls on Linux.
monotonic: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC) if hasattr(time, "CLOCK_MONOTONIC") else partial(time.monotonic)
)
"""Seconds from an arbitrary start; never goes back, and goes on while a test has frozen the time."""

wall = time.time
"""Seconds since 1970 by the clock of this machine."""


def sleep(seconds: float) -> None:
    """Pauses this thread, also where ``time.sleep`` was replaced.

    By a lock, and one that is made here: gevent may have replaced the threads since this module was imported.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=max(0.0, seconds))


def wait_for(condition: threading.Condition, predicate: Callable[[], bool], seconds: float) -> bool:
    """Waits up to so many seconds until *predicate* is true, as ``condition.wait_for`` does, but by :data:`monotonic`.

    Returns False when it is not.
    """
    until = monotonic() + seconds
    while not predicate():
        left = until - monotonic()
        if left <= 0:
            return False
        condition.wait(left)
    return True


def within(seconds: float) -> float:
    """A monotonic time at random in the next so many seconds."""
    return monotonic() + random.random() * seconds  # noqa: S311  # no secret


def utcnow() -> datetime:
    """The current time of this machine as an aware datetime in UTC."""
    return datetime.now(UTC)


def from_ms(milliseconds: int) -> datetime:
    """The moment so many milliseconds after 1970 began, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def to_ms(moment: datetime) -> int:
    """The milliseconds from the beginning of 1970 to an aware datetime."""
    return (moment - _EPOCH) // _MILLISECOND


def as_utc(moment: datetime, timezone: tzinfo | None) -> datetime:
    """*moment* in UTC.

    An aware datetime is converted. A naive one is taken to be in *timezone*, or, when that is None, in the
    local time of this machine, which is what Python's own ``datetime.timestamp`` does.
    """
    if moment.tzinfo is None:
        moment = moment.astimezone() if timezone is None else moment.replace(tzinfo=timezone)
    return moment.astimezone(UTC)


class Backoff:
    """Pauses between attempts: each *factor* times as long as the one before, until an attempt succeeds."""

    __slots__ = ("_factor", "_first", "_pause", "last", "until")

    def __init__(self, first: float, last: float, factor: float = 2.0) -> None:
        self._first = self._pause = first
        self._factor = factor
        self.last = last
        """Seconds of the longest pause."""
        self.until = 0.0
        """The monotonic time of the next attempt, as :meth:`wait` has set it."""

    def next(self) -> float:
        """Seconds until the next attempt."""
        pause = min(self._pause, self.last)
        self._pause = min(self._factor * pause, self.last)
        return pause

    def wait(self) -> float:
        """Returns the next pause, and notes when it is over."""
        pause = self.next()
        self.until = monotonic() + pause
        return pause

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._pause = self._first
        self.until = 0.0


class Quiet:
    """Limits how often the same thing is logged: once in so many seconds."""

    __slots__ = ("_seconds", "_until")

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._until: dict[Hashable, float] = {}

    def over(self, what: Hashable = None) -> bool:
        """Whether *what* is to be said now; then not for a while."""
        now = monotonic()
        if self.until(what) > now:
            return False
        self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[what] = now + self._seconds
        return True

    def until(self, what: Hashable = None) -> float:
        """The monotonic time from which *what* may be said."""
        return self._until.get(what, 0.0)
