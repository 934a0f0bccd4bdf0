"""When a call may start, and when it expires."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from typing import Any

from fbtasks import timing as clock
from fbtasks.errors import EnqueueError
from fbtasks.system import checks
from fbtasks.tasks.call import When


def countdown(what: str, value: object) -> timedelta:
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
    return _moment(what, value, timezone) if isinstance(value, datetime) else countdown(what, value)


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
