"""The clock of this process, for durations and for times given by a caller.

What two machines must agree on is decided by the database's clock, in SQL. These functions serve what stays
within one process: how long something took, and what a datetime given by a caller means.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
LONGEST: Final = timedelta(days=36_525)
"""A hundred years: the most that a countdown, an expiry, the wait for the next try or the life of a result may be."""

monotonic = time.monotonic
"""Seconds from an arbitrary start; never goes back."""


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
