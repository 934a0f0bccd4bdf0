"""When schedules tick: on the days on which clocks change, and after a time in which no worker was there."""

import bisect
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fbtasks.errors import ConfigurationError
from fbtasks.features.schedules.ticking import LATE, MOST, Cron, Every, cron_text, every_ms, turn

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
CHANGES = [
    ("Europe/Vienna", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Vienna", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
]
READS = {
    "*/30 * * * *": lambda wall: wall.minute % 30 == 0,
    "*/7 * * * *": lambda wall: wall.minute % 7 == 0,
    "0 * * * *": lambda wall: wall.minute == 0,
    "45 * * * *": lambda wall: wall.minute == 45,
    "*/15 2 * * *": lambda wall: wall.minute % 15 == 0 and wall.hour == 2,
    "*/20 1-3 * * sun": lambda wall: wall.minute % 20 == 0 and 1 <= wall.hour <= 3 and wall.weekday() == 6,
}


def ticks(timing, begin, end):
    found, tick = [], timing.after(begin)
    while tick < end:
        found.append(tick)
        tick = timing.after(tick)
    return found


def wall(moments, tz):
    return [moment.astimezone(ZoneInfo(tz)).strftime("%d. %H:%M") for moment in moments]


@pytest.mark.parametrize(("tz", "change"), CHANGES)
@pytest.mark.parametrize("text", READS)
def test_with_a_star_it_ticks_whenever_the_wall_clock_reads_so(text, tz, change):
    begin = change - timedelta(hours=30, minutes=1)
    minutes = [begin + MINUTE * number for number in range(1, 9 * 24 * 60)]
    expected = [moment for moment in minutes if READS[text](moment.astimezone(ZoneInfo(tz)))]
    cron = Cron(text, tz)
    assert ticks(cron, begin, minutes[-1] + MINUTE) == expected
    for number in range(0, 60 * 60, 13):  # from whichever moment it is asked
        assert cron.after(minutes[number]) == expected[bisect.bisect_right(expected, minutes[number])]


@pytest.mark.parametrize(
    ("text", "tz", "change", "expected"),
    [
        ("30 2 * * *", *CHANGES[0], ["28. 02:30", "29. 03:00", "30. 02:30"]),
        ("30 2 * * *", *CHANGES[1], ["24. 02:30", "25. 02:30", "26. 02:30"]),
        ("0 2,3 * * *", *CHANGES[0], ["28. 02:00", "28. 03:00", "29. 03:00", "30. 02:00", "30. 03:00"]),
        ("45 1 * * *", *CHANGES[2], ["04. 01:45", "05. 01:45", "06. 01:45"]),
        ("15 2 * * *", *CHANGES[3], ["03. 02:15", "04. 02:30", "05. 02:15"]),
        ("@daily", *CHANGES[3], ["03. 00:00", "04. 00:00", "05. 00:00"]),
    ],
)
def test_a_time_of_the_day_comes_once_on_each_day(text, tz, change, expected):
    local = change.astimezone(ZoneInfo(tz))
    begin = datetime(local.year, local.month, local.day, tzinfo=ZoneInfo(tz)) - timedelta(days=1)
    cron, start = Cron(text, tz), begin.astimezone(UTC) - MINUTE
    found = ticks(cron, start, start + timedelta(days=4))
    assert wall(found, tz)[: len(expected)] == expected
    for number in range(0, 50 * 60, 7):
        moment = start + number * MINUTE
        assert cron.after(moment) == found[bisect.bisect_right(found, moment)]


def test_the_first_of_a_twice_come_hour_is_not_ticked_again_in_the_second():
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30 in Vienna, which comes again an hour later
    cron = Cron("30 2 * * *", "Europe/Vienna")
    assert cron.after(first - MINUTE) == first
    assert cron.after(first + 40 * MINUTE) == first + timedelta(hours=25)
    found = turn(cron, "all", first, first + 40 * MINUTE)
    assert found == ([first], first + timedelta(hours=25), False)


def test_every_counts_on():
    hourly = Every(3_600_000)
    assert hourly.begin(NOON, None) == NOON + HOUR
    assert hourly.begin(NOON, NOON - 10 * MINUTE) == NOON + 50 * MINUTE
    assert hourly.begin(NOON, NOON - 130 * MINUTE) == NOON + 50 * MINUTE
    assert hourly.begin(NOON, NOON) == NOON + HOUR


@pytest.mark.parametrize("timing", [Every(3_600_000), Cron("0 * * * *", "UTC")])
@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        ("one", NOON, [0]),
        ("skip", NOON + LATE, [0]),
        ("skip", NOON + LATE * 2, []),
        ("all", NOON + MINUTE, [0]),
        ("one", NOON + 200 * MINUTE, [3]),
        ("skip", NOON + 200 * MINUTE, []),
        ("skip", NOON + 3 * HOUR, [3]),
        ("all", NOON + 200 * MINUTE, [0, 1, 2, 3]),
        ("all", NOON + MOST * HOUR, [MOST]),
        ("all", NOON + (MOST - 1) * HOUR, range(MOST)),
    ],
)
def test_what_was_missed(timing, missed, now, expected):
    found = turn(timing, missed, NOON, now)
    assert found.ticks == [NOON + number * HOUR for number in expected]
    latest = (now - NOON) // HOUR
    assert found.next == NOON + (latest + 1) * HOUR
    assert found.left_out == (len(expected) < latest + 1)


@given(
    minutes=st.integers(1, 500_000),
    text=st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "0 9 * * mon", "0 0 29 2 *"]),
    tz=st.sampled_from(["UTC", "Europe/Vienna", "Australia/Lord_Howe"]),
)
def test_the_latest_tick_is_the_last_before_the_next(minutes, text, tz):
    cron = Cron(text, tz)
    first = cron.after(NOON)
    now = first + minutes * MINUTE
    latest = cron.latest(first, now)
    assert first <= latest <= now
    following = cron.after(latest)
    assert following is None or following > now


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0 30 2 *", "never ticks"),
        ("0 0 31 4,6,9,11 *", "never ticks"),
        ("61 * * * *", "has a wrong minute"),
        ("0 25 * * *", "has a wrong hour"),
        ("0 0 * * funday", "has a wrong day of week"),
        ("0 9 * * fri-mon", "has 'fri-mon', and a range must rise: write 'fri-sat,sun-mon'."),
        ("0 9 * * mon,wed-SUN", "write 'wed-sat,SUN'."),
        ("0 9 * * sat-1", "write 'sat,sun-1'."),
        ("0 22-6/2 * * *", "has '22-6', and a range must rise: write '22-23,0-6'."),
        ("50-5 * * * *", "write '50-59,0-5'."),
        ("0 0 28-2 * *", "write '28-31,1-2'."),
        ("0 0 1 nov-feb *", "write 'nov-dec,jan-feb'."),
        ("0 0 1 12-2 *", "write '12,1-2'."),
        ("0 0 1 13-2 *", "has a wrong month"),
        ("0 0 * * fri-day", "has a wrong day of week"),
        ("* * * *", "has 4 fields, and needs 5"),
        ("* * * * * *", "for seconds give every=timedelta(seconds=10)"),
        ("@reboot", "is none of @yearly,"),
        ("", "has 0 fields"),
        (5, "must be a cron expression"),
    ],
)
def test_a_cron_expression_that_cannot_be(text, said):
    with pytest.raises(ConfigurationError, match=f"^cron {text!r:.10}".replace("*", r"\*").replace("[", "")) as refused:
        cron_text("cron", text)
    assert said in str(refused.value)


def test_cron_expressions_that_can_be():
    assert cron_text("cron", " 0  0 29 2 * ") == "0 0 29 2 *"
    assert cron_text("cron", "@Daily") == "@Daily"
    assert Cron("@Daily", "UTC").after(NOON) == datetime(2026, 11, 23, tzinfo=UTC)
    assert Cron("0 0 29 2 *", "UTC").after(NOON) == datetime(2028, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("value", [0, 0.999, timedelta(milliseconds=999), timedelta(days=-1)])
def test_less_than_a_second_is_refused(value):
    with pytest.raises(ConfigurationError, match="must be at least a second: give timedelta"):
        every_ms("every", value)


@pytest.mark.parametrize("value", [-1, "60", True, float("nan"), timedelta(days=40_000)])
def test_what_is_no_span_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"^every "):
        every_ms("every", value)
