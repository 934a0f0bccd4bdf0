"""Processes and sessions in different time zones agree on every time, also where the clocks change."""

import re
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from support.sql import execute, one, rows
from support.variants import slow

CLOCKS = [
    "Africa/Casablanca", "America/New_York", "America/Santiago", "America/St_Johns", "Antarctica/Troll", "Asia/Beirut",
    "Asia/Kathmandu", "Asia/Tokyo", "Australia/Adelaide", "Australia/Lord_Howe", "Europe/Dublin", "Europe/Vienna",
    "Pacific/Auckland", "Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Pago_Pago",
]  # fmt: skip
"""Regions whose clocks change by half an hour, one hour or two, in both halves of the world, or do not change."""
MINUTE = timedelta(minutes=1)
SOURCE = """
    import time
    from pathlib import Path

    @app.task
    def hold():
        with open("ledger", "a") as file:
            file.write("hold\\n")
        while not Path("go").exists():
            time.sleep(0.02)

    @app.task
    def run(): pass

    @app.periodic(every=1, missed="all")
    @app.task(ignore_result=False, queue="ticks")
    def each_second(): pass

    @app.periodic(cron="* * * * *", name="each minute")
    @app.task(queue="ticks")
    def each_minute(): pass
"""

EACH_SECOND = "SELECT START_TIME FROM {} WHERE NAME = 'proj.each_second'"
EACH_SECOND = f"{EACH_SECOND.format('QUEUE_TASK')} UNION ALL {EACH_SECOND.format('QUEUE_HISTORY')} ORDER BY 1"


def changes(zone, year=2026):
    """The moments of a year at which the clocks of a region change."""
    tz, moment = ZoneInfo(zone), datetime(year, 1, 1, tzinfo=UTC)
    while moment.year == year:
        later = moment + timedelta(minutes=30)
        if moment.astimezone(tz).utcoffset() != later.astimezone(tz).utcoffset():
            yield later
        moment = later


def moments(zone):
    """Moments around each change, down to a tenth of a millisecond, and some of other times; in UTC."""
    for change in changes(zone):
        for seconds in (-7200, -3600, -1800, -1, -0.0001, 0, 0.0001, 1, 1800, 3600, 7200):
            yield text_of(change + timedelta(seconds=seconds))
    yield from ("0001-01-02 00:00:00.0000", "1900-01-01 12:34:56.7891", "1999-12-31 23:59:59.9999")
    yield from ("2000-01-01 00:00:00.0000", "2024-02-29 23:59:59.9999", "9999-12-30 23:59:59.9999")


def text_of(moment):
    """As the engine writes it."""
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")[:-2]


def now():
    """The clock of this machine, as the tables have it."""
    return datetime.now(UTC).replace(tzinfo=None)


def sessions(app, *zones):
    """For each zone a cursor in a session that SET TIME ZONE has put there."""
    with app.connect() as connection, connection.cursor() as cursor:
        for zone in zones:
            connection.execute_immediate(f"SET TIME ZONE '{zone}'")
            yield cursor


def test_both_changes_of_the_clocks_are_among_the_moments():
    assert [f"{moment:%m-%d %H:%M}" for moment in changes("Europe/Vienna")] == ["03-29 01:00", "10-25 01:00"]
    assert [f"{moment:%m-%d %H:%M}" for moment in changes("Australia/Lord_Howe")] == ["04-04 15:00", "10-03 15:30"]


@pytest.mark.emptied
@pytest.mark.parametrize("zones", [CLOCKS, slow("all")])
def test_queue_utc_is_right_for_every_moment_and_zone_in_every_session(app, zones):
    known = {name for (name,) in rows(app, "SELECT TRIM(RDB$TIME_ZONE_NAME) FROM RDB$TIME_ZONES")}
    zones = sorted(known & available_timezones()) if zones == "all" else zones
    assert known.issuperset(zones)
    values = [(text, zone) for zone in zones for text in moments(zone)]
    assert len(values) > 300
    given = "".join(f"{text}{zone:40}" for text, zone in values)
    statement = """EXECUTE BLOCK (GIVEN BLOB SUB_TYPE TEXT CHARACTER SET ASCII = ?)
        RETURNS (MOMENT CHAR(24), ZONE CHAR(40), FOUND TIMESTAMP) AS DECLARE PLACE INTEGER = 1; BEGIN
            WHILE (PLACE < CHAR_LENGTH(GIVEN)) DO BEGIN
                MOMENT = SUBSTRING(GIVEN FROM PLACE FOR 24);
                ZONE = SUBSTRING(GIVEN FROM PLACE + 24 FOR 40);
                FOUND = QUEUE_UTC(CAST(MOMENT || ' +00:00' AS TIMESTAMP WITH TIME ZONE) AT TIME ZONE TRIM(ZONE));
                SUSPEND;
                PLACE = PLACE + 64;
            END END"""
    for cursor in sessions(app, "UTC", "+14:00", "America/New_York", "Australia/Lord_Howe"):
        found = cursor.execute(statement, (given,)).fetchall()
        assert len(found) == len(values)
        assert [row for row in found if text_of(row[2]) != row[0]] == []


@pytest.mark.emptied
def test_the_times_of_plain_sql_are_right_in_every_session(app):
    """One time for a whole statement; a start with a zone is that moment, and one without is in the session's zone."""
    same = """EXECUTE BLOCK RETURNS (FIRST_TIME TIMESTAMP, DIFFERENT INTEGER) AS DECLARE N INTEGER = 0; BEGIN
        FIRST_TIME = QUEUE_UTC(CURRENT_TIMESTAMP);
        DIFFERENT = 0;
        WHILE (N < 5000) DO BEGIN DIFFERENT = DIFFERENT + IIF(QUEUE_NOW() = FIRST_TIME, 0, 1); N = N + 1; END
        SUSPEND; END"""
    put = "SELECT ID FROM FBTASKS.ENQUEUE('t', '[]', '{{}}', {})"
    for cursor in sessions(app, "UTC", "+14:00", "Pacific/Pago_Pago"):  # whose clocks do not change
        began = now()
        first, different = cursor.execute(same).fetchone()
        assert (began - timedelta(milliseconds=1) <= first <= now(), different) == (True, 0)
        for start in ("DATEADD(1 HOUR TO CURRENT_TIMESTAMP)", "DATEADD(1 HOUR TO LOCALTIMESTAMP)"):
            task = cursor.execute(put.format(start)).fetchone()
            (found,) = cursor.execute("SELECT START_TIME FROM QUEUE_TASK WHERE ID = ?", task).fetchone()
            assert timedelta(minutes=59) < found - began < timedelta(minutes=61)


@pytest.mark.parametrize(
    ("zone", "moment"),
    [("America/New_York", "0001-01-01 00:00:00"), ("Europe/Vienna", "9999-12-31 23:59:59.9999")],
)
def test_a_task_is_shown_whose_time_has_no_local_one(app, project, monkeypatch, zone, moment):
    task = app.task(name="t")(lambda: None).delay()
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = TIMESTAMP '{moment}'")
    project.env["TZ"] = zone
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        shown = project.run("inspect", "task", str(task.id), check=False).stdout
    time.tzset()
    assert re.search(rf"DUE .*{moment[4:19]} \+0000", shown), shown


@pytest.mark.acceptance
def test_workers_and_callers_of_five_zones_agree_on_every_time(project, wait_for):
    """The test's process is in the fifth. Nobody is taken for dead, and what has a time runs at that time, and once."""
    with project.producer(SOURCE) as app:
        run = app.task(name="proj.run")(lambda: None)
        began = now()
        project.env["TZ"] = "UTC"
        project.worker("-c", "2", "--lease", "3", "--pool", "threads", "-Q", "default")
        held = app.send_task("proj.hold")
        wait_for(project.lines)
        project.env["TZ"] = "Europe/Vienna"
        project.worker("-c", "2", "--lease", "3", "--pool", "threads", "-Q", "default,ticks")
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 2)
        both = now()

        later, due = [], []
        for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
            with app.connect() as connection:
                connection.execute_immediate(f"SET TIME ZONE '{zone}'")
                call = run.using(connection).apply_async
                later.append(call(countdown=600))
                due += [call(countdown=0.5), call(expires=120), call(eta=datetime.now(UTC))]
                connection.commit()
        assert [result.get(timeout=30) for result in due] == [None] * len(due)  # one that has expired is revoked
        starts = rows(app, "SELECT START_TIME FROM QUEUE_TASK WHERE STATE = 1")
        assert len(starts) == len(later)
        assert all(timedelta(0) <= start - both - timedelta(minutes=10) < MINUTE for (start,) in starts)

        minute = "SELECT NEXT_TIME FROM QUEUE_SCHEDULE WHERE NAME = 'each minute'"
        missed = one(app, minute) - timedelta(seconds=61.5)  # a tick that comes by itself has no fraction
        execute(app, "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = ? WHERE NAME = 'each minute'", missed)
        wait_for(lambda: one(app, minute) != missed)
        following = one(app, minute)
        assert following == following.replace(second=0, microsecond=0)
        assert began < following <= now() + MINUTE
        wait_for(lambda: len(rows(app, EACH_SECOND)) >= 3)
        ticks = [tick for (tick,) in rows(app, EACH_SECOND)]
        assert {after - before for before, after in pairwise(ticks)} == {timedelta(seconds=1)}
        assert began < ticks[0] < ticks[-1] <= now()

        beat = "SELECT MIN(HEARTBEAT_TIME) FROM QUEUE_PROCESS"
        wait_for(lambda: one(app, beat) - both > timedelta(seconds=4))  # both have looked after the other for a lease
        shown = project.run("inspect", "task", str(held.id)).stdout
        assert re.search(r"ENQUEUED.*\(\d+ s ago\)", shown), shown
        (project.folder / "go").touch()
        held.get(timeout=30)
        assert project.lines() == ["hold"]
        assert "dead" not in project.logs()


MOVED = """
    CREATE OR ALTER FUNCTION QUEUE_NOW RETURNS TIMESTAMP AS
    BEGIN RETURN QUEUE_UTC(DATEADD({} MILLISECOND TO CURRENT_TIMESTAMP) AT TIME ZONE '{}'); END
"""
"""The clock of the database, some milliseconds ahead and in a zone."""


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1], ids=["forward", "back"])
def test_leases_countdowns_and_ticks_go_on_when_the_clocks_change(project, wait_for, which):
    """The clock of the database is moved to a few seconds before a change of next year, with workers in that zone."""
    zone = project.env["TZ"] = "Europe/Vienna"
    change = list(changes(zone, now().year + 1))[which].replace(tzinfo=None)
    ahead = change - timedelta(seconds=10) - now()
    with project.producer(SOURCE, MOVED.format(ahead // timedelta(milliseconds=1), zone)) as app:
        run = app.task(name="proj.run")(lambda: None)
        held = app.send_task("proj.hold")
        for _ in range(2):
            project.worker("-c", "2", "--lease", "3", "--pool", "threads", "-Q", "default,ticks")
        wait_for(project.lines)
        due, later = [], []
        while now() + ahead < change + timedelta(seconds=1):
            due += [run.apply_async(countdown=2), run.apply_async(expires=120)]
            later.append(run.apply_async(countdown=600))
            time.sleep(0.5)
        assert [result.get(timeout=30) for result in due] == [None] * len(due)
        wait_for(lambda: now() + ahead > change + timedelta(seconds=5))  # for longer than a lease
        (project.folder / "go").touch()
        held.get(timeout=30)
        assert project.lines() == ["hold"]
        assert "dead" not in project.logs()
        starts = [start for (start,) in rows(app, "SELECT START_TIME FROM QUEUE_TASK WHERE STATE = 1 ORDER BY ID")]
        assert len(starts) == len(later)
        assert all(timedelta(0) < after - before < MINUTE for before, after in pairwise(starts))
        ticks = [tick for (tick,) in rows(app, EACH_SECOND)]
        assert {after - before for before, after in pairwise(ticks)} == {timedelta(seconds=1)}
        assert ticks[0] < change < ticks[-1] < now() + ahead + MINUTE
