"""Windows: what the wall clock reads, on both days of daylight saving and through midnight."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fbtasks import FBTasks
from fbtasks.errors import ConfigurationError
from fbtasks.features.queues.definition import window_from
from fbtasks.tasks.windows import DAYS, Window

BERLIN = "Europe/Berlin"
MINUTE = timedelta(minutes=1)


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def at(text, tz=BERLIN, fold=0):
    """What the wall clock reads there, as a moment."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)


def test_both_passes_of_a_doubled_hour_count():
    """On 25 October 2026 in Berlin, 03:00 of summer is 02:00 again."""
    window = Window(("02:00", "02:30"), None, BERLIN)
    assert [window.is_open(at("2026-10-25T02:15", fold=fold)) for fold in (0, 1)] == [True, True]
    assert not window.is_open(at("2026-10-25T02:45", fold=0))
    assert list(window.shifts(utc("2026-10-24T12:00"), utc("2026-10-25T12:00"))) == [
        (utc("2026-10-25T00:00"), utc("2026-10-25T00:30")),
        (utc("2026-10-25T01:00"), utc("2026-10-25T01:30")),
    ]


def test_a_missing_hour_is_left_out():
    """On 29 March 2026 in Berlin, 02:00 is 03:00 of summer."""
    within = Window(("02:00", "02:30"), None, BERLIN)
    assert list(within.shifts(utc("2026-03-28T12:00"), utc("2026-03-29T12:00"))) == []
    assert within.next_opening(utc("2026-03-28T12:00")) == at("2026-03-30T02:00")
    begins_within = Window(("02:30", "04:00"), None, BERLIN)
    assert begins_within.next_opening(utc("2026-03-28T12:00")) == at("2026-03-29T03:00")
    assert begins_within.next_opening(utc("2026-03-28T12:00")) == utc("2026-03-29T01:00")


def test_an_opening_on_one_day_that_falls_into_the_missing_hour_is_the_next_weeks():
    assert Window(("02:00", "03:00"), "sun", BERLIN).next_opening(utc("2026-03-23T00:00")) == at("2026-04-05T02:00")


TIMES = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
WINDOWS = st.builds(
    Window,
    st.none() | st.tuples(TIMES, TIMES).filter(lambda pair: pair[0] != pair[1]),
    st.none() | st.sets(st.sampled_from(DAYS), min_size=1).map(lambda days: ",".join(sorted(days))),
    st.sampled_from([BERLIN, "Europe/Vienna", "Australia/Lord_Howe", "UTC", "America/New_York", "Asia/Kathmandu"]),
)
CHANGES = [utc("2026-03-28T00:00"), utc("2026-10-24T00:00"), utc("2026-04-04T00:00"), utc("2026-10-03T00:00")]


def reads_open(window, moment):
    """The rule as one would say it, of what the wall clock shows: hours, minutes and the day."""
    wall = moment.astimezone(ZoneInfo(window.tz))
    now, days = f"{wall:%H:%M}", (window.days or ",".join(DAYS)).split(",")
    begin, end = window.run_between or ("00:00", "24:00")
    today, yesterday = DAYS[wall.weekday()], DAYS[(wall.weekday() - 1) % 7]
    if begin < end:
        return today in days and begin <= now < end
    return (today in days and now >= begin) or (yesterday in days and now < end)


@settings(max_examples=30, deadline=None)
@given(WINDOWS, st.sampled_from(CHANGES), st.integers(0, 60))
@example(Window(("22:00", "06:00"), "mon,tue,wed,thu,fri", BERLIN), CHANGES[1], 0)
def test_shifts_are_the_minutes_at_which_the_wall_clock_reads_open(window, begin, offset):
    begin += offset * MINUTE
    end = begin + timedelta(days=2)
    shifts = list(window.shifts(begin, end))
    assert all(one.begin < one.end for one in shifts)
    assert all(one.end < other.begin for one, other in pairwise(shifts))
    moment = begin
    while moment < end:
        is_open = any(shift.begin <= moment < shift.end for shift in shifts)
        assert is_open == reads_open(window, moment) == window.is_open(moment)
        moment += MINUTE


@settings(max_examples=60, deadline=None)
@given(WINDOWS, st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)))
def test_the_next_opening_is_open_and_nothing_before_it(window, now):
    now = now.replace(tzinfo=UTC)
    opening = window.next_opening(now)
    assert opening is not None
    assert window.is_open(opening)
    assert opening >= now
    assert opening == now or not window.is_open(opening - timedelta(microseconds=1))
    probe = now
    while probe < opening:
        assert not window.is_open(probe)
        probe += timedelta(minutes=29)


REFUSED = {
    "empty": ({"run_between": ("22:00", "22:00")}, "is empty"),
    "text": ({"run_between": "22:00-06:00"}, "two times of the day"),
    "no time": ({"run_between": ("22:00", "25:00")}, "'25:00', which is no time of the day"),
    "from 24": ({"run_between": ("24:00", "06:00")}, "write that as '00:00'"),
    "day": ({"days": "mon-fry"}, "'mon-fry', which is no day of the week"),
    "zone": ({"days": "mon", "tz": "Europe/Berln"}, "Did you mean 'Europe/Berlin'"),
    "zone alone": ({"tz": BERLIN}, "give one of them, or leave it out"),
}
QUEUE_REFUSED = {
    "no task": ({"max_length": 0}, "from 1 to 1000000"),
    "when full": ({"max_length": 1, "when_full": "drop"}, "'drop' must be 'wait'"),
    "no limit": ({"when_full": "reject"}, "give max_length= as well"),
    "wait for": ({"max_length": 1, "when_full": "reject", "wait_for": 1}, "wait_for= is of when_full='wait'"),
    "no age": ({"age": 0}, "age 0 must be a number of seconds above 0"),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_window_is_refused_with_a_remedy(options, said):
    app = FBTasks("a", "firebird:///nosuch/queue.fdb")
    with pytest.raises(ConfigurationError, match=said):
        app.queue("imports", **options)
    with pytest.raises(ConfigurationError, match=said):
        app.task(**options)(print)


@pytest.mark.parametrize(("options", "said"), QUEUE_REFUSED.values(), ids=QUEUE_REFUSED)
def test_what_is_no_limit_is_refused_with_a_remedy(options, said):
    with pytest.raises(Exception, match=said):
        FBTasks("a", "firebird:///nosuch/queue.fdb").queue("imports", **options)


def test_a_queue_is_defined_once():
    app = FBTasks("a", "firebird:///nosuch/queue.fdb")
    app.queue("imports", max_length=1)
    app.queue("imports", max_length=1)
    with pytest.raises(ConfigurationError, match="defined twice"):
        app.queue("imports", max_length=2)


def test_the_zone_is_the_apps_or_utc_and_never_the_machines():
    for timezone, zone in ((None, "UTC"), ("Europe/Vienna", "Europe/Vienna")):
        app = FBTasks("a", "firebird:///nosuch/queue.fdb", timezone=timezone)
        assert app.queue("imports", days="mon").window.tz == zone
        assert app.task(days="mon")(lambda: None).window.tz == zone


def test_a_window_is_read_back_from_what_the_database_keeps():
    app = FBTasks("a", "firebird:///nosuch/queue.fdb")
    definition = app.queue("imports", run_between=("22:00", "06:00"), days="mon-fri", tz=BERLIN)
    assert window_from(definition.text) == definition.window
    assert window_from(app.queue("others", max_length=2).text) is None


def test_idle_is_the_lowest_priority():
    app = FBTasks("a", "firebird:///nosuch/queue.fdb")
    assert app.task(idle=True)(lambda: None).options.priority == -9999
    with pytest.raises(ConfigurationError, match="leave out one"):
        app.task(idle=True, priority=3)
