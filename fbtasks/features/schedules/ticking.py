"""When schedules tick: by a cron expression on the wall clock of a zone, or every so many milliseconds.

All moments are aware, and come from the database's clock; no clock of this machine is read here.

On a day on which the clock is put forward or back, an expression whose minute and hour are both named (``30 2 * * *``)
ticks once, as in Debian's cron: at the change when its time is left out, the first time when it comes twice. With a
star in one of them (``*/30 * * * *``) it ticks whenever the wall clock reads so. The former is cronsim's work; the
latter is done here, since cronsim steps over a tick where the clock changes by half an hour (Lord Howe).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks

Missed = Literal["one", "skip", "all"]
"""What becomes of ticks at which no worker was there."""
MOST: Final = 1000
"""So many missed ticks are made up for one by one; of more, one is."""
LATE: Final = timedelta(seconds=60)
"""A tick that comes no later is not missed."""
SHORTEST: Final = 1000
"""The least milliseconds from one tick to the next."""
MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WRITE: Final = "Write minute, hour, day of the month, month and day of the week, such as '30 2 * * mon-fri', or @daily"
_SECOND: Final = timedelta(seconds=1)
_GOOD_DAY: Final = timedelta(hours=25)
_BACK: Final = tuple(timedelta(hours=hours) for hours in (1, 24, 31 * 24, 366 * 24))
"""How far back the latest tick is looked for, one after the other: so that few are computed, however old the first."""


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks every so many milliseconds."""

    ms: int

    def after(self, tick: datetime) -> datetime:
        """Returns the tick after *tick*."""
        return tick + self._span

    def latest(self, tick: datetime, now: datetime) -> datetime:
        """Returns the last of *tick* and those after it that is not later than *now*."""
        return tick + (now - tick) // self._span * self._span

    def begin(self, now: datetime, last: datetime | None) -> datetime:
        """Returns the first tick after *now*: a whole number of spans after *last*, or one after *now*."""
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        return self.after(now if last is None else self.latest(last, max(last, now)))

    @property
    def _span(self) -> timedelta:
        return timedelta(milliseconds=self.ms)


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks when the wall clock of *tz* reads what the expression *text* says."""

    text: str
    tz: str

    def after(self, tick: datetime) -> datetime | None:
        """Returns the first tick after the moment *tick*, in UTC."""
        text = fields(self.text)
        if any(field.startswith("*") for field in text.split()[:2]):
            return _first_reading(text, _zone(self.tz), tick.astimezone(UTC).replace(microsecond=0) + _SECOND)
        return _once(text, _zone(self.tz), tick)

    def latest(self, tick: datetime, now: datetime) -> datetime:
        """Returns the last of *tick* and those after it that is not later than *now*."""
        for span in _BACK:
            if now - span > tick and (found := self._last(now - span, now)) is not None:
                return found
        return self._last(tick, now) or tick

    def begin(self, now: datetime, last: datetime | None) -> datetime | None:  # noqa: ARG002  # the clock says it
        """Returns the first tick after *now*."""
        return self.after(now)

    def _last(self, begin: datetime, now: datetime) -> datetime | None:
        found, tick = None, self.after(begin)
        while tick is not None and tick <= now:
            found, tick = tick, self.after(tick)
        return found


Timing = Every | Cron
"""When a schedule ticks."""


def _once(text: str, zone: tzinfo, tick: datetime) -> datetime | None:
    from cronsim import CronSim

    for found in CronSim(text, tick.astimezone(zone)):
        moment = found.astimezone(UTC)
        if moment > tick:  # begun in an hour that comes twice, the first one may be behind
            return moment
    return None


def _first_reading(text: str, zone: tzinfo, begin: datetime) -> datetime | None:
    """Returns the first moment from *begin* on at which the wall clock reads *text*."""
    from cronsim import CronSim

    change = _change(zone, begin)
    wall = begin.astimezone(zone).replace(tzinfo=None)
    for found in CronSim(text, wall - _SECOND):
        if change is not None:  # up to it the wall clock runs evenly
            moment = begin + (found - wall)
            return moment if moment < change else _first_reading(text, zone, change)
        for fold in (0, 1):  # begun in an hour that comes twice, the first one may be behind
            moment = found.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            if moment >= begin and moment.astimezone(zone).replace(tzinfo=None) == found:  # else it is left out
                return moment
    return None


def _change(zone: tzinfo, begin: datetime) -> datetime | None:
    """Returns the second at which the wall clock is put forward or back in the good day after *begin*; None: never."""
    low, high = begin, begin + _GOOD_DAY
    offset = low.astimezone(zone).utcoffset()
    if high.astimezone(zone).utcoffset() == offset:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
    return high


@cache
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else checks.timezone("tz", name)


def timing(cron: str | None, every_ms: int | None, tz: str | None) -> Timing:
    """Returns the timing of a schedule with one of *cron* and *every_ms*."""
    if every_ms is not None:
        return Every(every_ms)
    assert cron is not None  # as it was checked
    return Cron(cron, tz or "UTC")


class Turn(NamedTuple):
    """What a worker does about a schedule that is due."""

    ticks: list[datetime]
    """For which a task is enqueued, the first one first."""
    next: datetime | None
    """When it ticks next."""
    left_out: bool
    """Whether other ticks were due, for which no task is enqueued."""


def turn(timing: Timing, missed: Missed, tick: datetime, now: datetime) -> Turn:
    """Returns what is to be done at *now* about a schedule that was to tick at *tick*, which is not later."""
    latest = timing.latest(tick, now)
    following = timing.after(latest)
    if missed == "all":
        found = list(islice(_ticks(timing, tick, latest), MOST + 1))
        if len(found) <= MOST:
            return Turn(found, following, left_out=False)
    if missed == "skip" and now - latest > LATE:
        return Turn([], following, left_out=True)
    return Turn([latest], following, left_out=latest != tick)


def _ticks(timing: Timing, tick: datetime | None, latest: datetime) -> Iterator[datetime]:
    while tick is not None and tick <= latest:
        yield tick
        tick = timing.after(tick)


def coming(timing: Timing, first: datetime, most: int) -> list[datetime]:
    """Returns up to *most* ticks, from *first* on, as the clock reads that *timing* goes by."""
    zone = _zone(timing.tz) if isinstance(timing, Cron) else UTC
    return [tick.astimezone(zone) for tick in islice(_ticks(timing, first, datetime.max.replace(tzinfo=UTC)), most)]


def in_words(cron: str) -> str:
    """Returns a cron expression in words."""
    from cronsim import CronSim

    return str(CronSim(fields(cron), datetime.now(UTC)).explain())


# What is given


def fields(text: str) -> str:
    """Returns the five fields of a cron expression; those of a name such as ``@daily`` as well."""
    return MACROS.get(text.strip().lower(), text)


def cron_text(what: str, value: object) -> str:
    """Checks a cron expression, which must tick at some time."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} {checks.shown(value)} must be a cron expression. {_WRITE}.")
    text = fields(value)
    number = len(text.split())
    if text.strip().startswith("@"):
        raise ConfigurationError(f"{what} {checks.shown(value)} is none of {', '.join(MACROS)}.")
    if number == 6:
        raise ConfigurationError(
            f"{what} {checks.shown(value)} has 6 fields, of which one would be seconds or years. {_WRITE}; for seconds "
            "give every=timedelta(seconds=10)."
        )
    if not text.isascii() or len(value) > 255:
        raise ConfigurationError(f"{what} {checks.shown(value)} must have up to 255 ASCII characters. {_WRITE}.")
    if number != 5:
        raise ConfigurationError(f"{what} {checks.shown(value)} has {number} fields, and needs 5. {_WRITE}.")
    if _never(what, value, text):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} never ticks: no month that it names has such a day. {_WRITE}."
        )
    return " ".join(value.split())


def _never(what: str, value: object, text: str) -> bool:
    from cronsim import CronSim, CronSimError

    now = datetime.now(UTC)
    try:
        return next(CronSim(text, now), None) is None
    except CronSimError as error:
        minute, hour, day, _, weekday = text.split()
        try:
            CronSim(f"{minute} {hour} {day} * {weekday}", now)
        except CronSimError:
            pass
        else:
            if "day-of-month" in str(error):
                return True
        for field, each in zip(_FIELDS, text.split(), strict=True):
            for span in _SPAN.finditer(each):
                if rising := _rising(field, *span.groups()):
                    raise ConfigurationError(
                        f"{what} {checks.shown(value)} has {span[0]!r}, and a range must rise: write {rising!r}."
                    ) from None
        wrong = str(error).removeprefix("Bad ").replace("-", " ")
        raise ConfigurationError(f"{what} {checks.shown(value)} has a wrong {wrong}. {_WRITE}.") from None


class _Field(NamedTuple):
    """A field of a cron expression, with the first and the last of its values."""

    at: int
    first: str
    last: str
    names: tuple[str, str] | None = None
    """Those two by their names."""


_FIELDS: Final = (
    _Field(0, "0", "59"),
    _Field(1, "0", "23"),
    _Field(2, "1", "31"),
    _Field(3, "1", "12", ("jan", "dec")),
    _Field(4, "0", "6", ("sun", "sat")),
)
_SPAN: Final = re.compile(r"(\w+)-(\w+)")


def _rising(field: _Field, begin: str, end: str) -> str | None:
    """Returns the ranges that go from *begin* over the end of the field to *end*; None: it is no range that falls."""
    if _parses(field, f"{begin}-{end}") or not _parses(field, f"{end}-{begin}"):
        return None
    first, last = field.names if field.names and begin.isalpha() else (field.first, field.last)
    head = begin if begin.lower() == last else f"{begin}-{last}"
    return f"{head},{end if end.lower() == first else f'{first}-{end}'}"


def _parses(field: _Field, text: str) -> bool:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(" ".join(text if at == field.at else "*" for at in range(5)), datetime.now(UTC))
    except CronSimError:
        return False
    return True


def every_ms(what: str, value: Any) -> int:
    """Returns the milliseconds that a span, or a number of seconds, has."""
    span = (
        value
        if isinstance(value, timedelta)
        else timedelta(seconds=checks.seconds(what, value, also=", or a timedelta"))
    )
    if span > timedelta(0):
        checks.duration(what, span)
    found = span // timedelta(milliseconds=1)
    if found < SHORTEST:
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be at least a second: give timedelta(seconds=1), or have one task "
            "work in a loop."
        )
    return found
