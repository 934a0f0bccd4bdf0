"""When work may be done: hours of the day and days of the week, as the wall clock of a time zone reads.

The one place for this rule. It is a function of a moment, which the caller takes from the database's clock. That of a
task is asked by the worker that has claimed it; what it means for a queue is written ahead, as the times at which the
queue opens and closes (QUEUE_SHIFT), which the claim compares with the database's own clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)
_MINUTES: Final = 24 * 60
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")
_STEP: Final = timedelta(hours=1)
_AHEAD: Final = timedelta(days=16)
"""How far the next opening may be: a window on one day of the week, one of which falls into a missing hour."""
_EXAMPLE: Final = '("22:00", "06:00")'


def hours(what: str, value: object) -> tuple[str, str]:
    """Two times of the day, from and to; the latter may be 24:00."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigurationError(f"{what} {checks.shown(value)} must be two times of the day, such as {_EXAMPLE}.")
    begin, end = (_minutes(what, each) for each in value)
    if begin == _MINUTES:
        raise ConfigurationError(f"{what} {checks.shown(value)} begins at 24:00: write that as '00:00'.")
    if begin == end:
        raise ConfigurationError(
            f"{what} {checks.shown(value)} is empty: it ends when it begins. For whole days give days= alone, or "
            '("00:00", "24:00").'
        )
    return value[0], value[1]


def _minutes(what: str, value: object) -> int:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    minutes = int(found[1]) * 60 + int(found[2]) if found else _MINUTES + 1
    if minutes > _MINUTES:
        raise ConfigurationError(
            f"{what} holds {checks.shown(value)}, which is no time of the day: write hours and minutes, {_EXAMPLE}."
        )
    return minutes


def day_names(what: str, value: object) -> str:
    """Days of the week: ``mon-fri``, ``sat,sun``."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{what} {checks.shown(value)} must be days of the week: 'mon-fri', 'sat,sun'.")
    _weekdays(what, value)
    return value


def _weekdays(what: str, value: str) -> frozenset[int]:
    found: set[int] = set()
    for part in value.lower().split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if first not in DAYS or (last if dash else first) not in DAYS:
            raise ConfigurationError(
                f"{what} {checks.shown(value)} has {part.strip()!r}, which is no day of the week: 'mon-fri', 'sat,sun'."
            )
        begin, end = DAYS.index(first), DAYS.index(last if dash else first)
        found.update((begin + n) % 7 for n in range((end - begin) % 7 + 1))
    return frozenset(found)


def zone(what: str, value: object) -> str:
    """The name of a time zone."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} {checks.shown(value)} must be the name of a time zone: 'Europe/Berlin'.")
    checks.timezone(what, value)
    return value


class Shift(NamedTuple):
    """A time for which a window is open, in UTC: from *begin* to just before *end*."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """Hours and days on the wall clock of a zone. Raises :class:`ConfigurationError` for a zone that is not known.

    The days are those on which it opens: one that is open from 22:00 to 06:00 on fridays is open on Saturday at 05:00.
    An hour that the clock goes through twice counts both times, and one that it leaves out is left out.
    """

    run_between: tuple[str, str] | None
    """None: the whole day."""
    days: str | None
    """None: every day."""
    tz: str

    def __post_init__(self) -> None:
        zone("tz", self.tz)

    def is_open(self, moment: datetime) -> bool:
        """Whether it is open at *moment*, an aware datetime."""
        return self._reads_open(moment.astimezone(self._zone))

    def next_opening(self, moment: datetime) -> datetime | None:
        """*moment* when it is open then, else when it opens next, in UTC; None: not within two weeks."""
        for shift in self.shifts(moment, moment + _AHEAD):
            return max(shift.begin, moment.astimezone(UTC))
        return None

    def shifts(self, begin: datetime, end: datetime) -> Iterator[Shift]:
        """The times for which it is open that overlap *begin* to *end*; the first and the last are cut off there."""
        opened: datetime | None = None
        for moment in (*self._turns(begin, end), end.astimezone(UTC)):
            is_open = moment < end and self.is_open(moment)
            if is_open and opened is None:
                opened = moment
            elif not is_open and opened is not None:
                yield Shift(opened, moment)
                opened = None

    @property
    def _zone(self) -> Any:
        from zoneinfo import ZoneInfo  # for those who have a window

        return ZoneInfo(self.tz)

    def _bounds(self) -> tuple[int, int]:
        begin, end = self.run_between or ("00:00", "24:00")
        return _minutes("run_between", begin), _minutes("run_between", end)

    def _reads_open(self, wall: datetime) -> bool:
        begin, end = self._bounds()
        days = _weekdays("days", self.days or "mon-sun")
        minutes, day = wall.hour * 60 + wall.minute, wall.weekday()
        if begin < end:
            return begin <= minutes < end and day in days
        return (minutes >= begin and day in days) or (minutes < end and (day - 1) % 7 in days)

    def _turns(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """The moments in UTC at which it may open or close, and others; *begin* first."""
        tz, at = self._zone, begin.astimezone(UTC)
        times = [timedelta(minutes=each) for each in (0, *self._bounds())]
        while at < end:
            yield at
            wall = at.astimezone(tz)
            since_midnight = wall.replace(tzinfo=None) - datetime.combine(wall, time())
            later = at + min(_STEP, *((each - since_midnight) % _DAY or _DAY for each in times))
            if later.astimezone(tz).utcoffset() != wall.utcoffset():  # the wall clock is put forward or back
                later = at.replace(second=0, microsecond=0) + timedelta(minutes=1)
            at = later


def window_of(run_between: tuple[str, str] | None, days: str | None, tz: str | None, default_tz: str) -> Window | None:
    """The window that these options make; None: they make none."""
    if run_between is None and days is None:
        return None
    return Window(run_between, days, tz or default_tz)


def check_window_options(run_between: object, days: object, tz: object) -> None:
    """Raises :class:`ConfigurationError` for a zone of no window."""
    if tz is not None and run_between is None and days is None:
        raise ConfigurationError(f"tz {tz!r} is the zone of run_between= or days=: give one of them, or leave it out.")
