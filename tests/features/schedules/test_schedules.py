"""Schedules: brought in from the code, ticked by whichever worker comes, once each; paused and changed by operators."""

import os
import random
import subprocess
from collections import Counter
from contextlib import closing, contextmanager, suppress
from datetime import UTC, timedelta

import pytest
from support.draining import drain
from support.programs import started
from support.sql import NOW, execute, held, one, rows
from support.users import with_role

from fbtasks import FBTasks
from fbtasks import timing as clock
from fbtasks.errors import AuthenticationError, ConfigurationError
from fbtasks.features.schedules import duty as ticks
from fbtasks.features.schedules import operations as service
from fbtasks.features.schedules import store as schedules
from fbtasks.features.schedules.duty import Ticks
from fbtasks.features.schedules.upkeep import sync_schedules
from fbtasks.queue.operations.workers import get_health

pytestmark = pytest.mark.emptied

HOUR = timedelta(hours=1)
TASKS = "SELECT NAME, QUEUE, PRIORITY, START_TIME FROM QUEUE_TASK ORDER BY START_TIME, ID"


@pytest.fixture
def ran(app):
    """What the task *note* was called with, and for which tick."""
    calls = []

    @app.task(name="note", bind=True)
    def note(self, *args, **kwargs):
        calls.append((self.request.eta, args, kwargs))

    return calls


def sync(app):
    with app.database.session() as session:
        return sync_schedules(session, app, app.schedules)


def tick(app):
    """One look of a worker at the schedules that are due; whether tasks were enqueued."""
    found = Ticks(lambda: True)
    with app.database.session() as session:
        return found.do(session)


def back(app, span, name="note"):
    """Has a schedule be to tick so much earlier."""
    execute(app, f"UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-{int(span.total_seconds())} SECOND TO NEXT_TIME) "
            "WHERE NAME = ?", name)  # fmt: skip


def shown(app, name="note"):
    (found,) = [row for row in service.list_schedules(app.database) if row.name == name]
    return found


def now(app):
    return one(app, f"SELECT {NOW} FROM RDB$DATABASE").replace(tzinfo=UTC)


def restarted(app):
    """The app as its next worker knows it: without schedules so far."""
    return FBTasks(app.name, app.settings.url.reveal())


# From the code


def test_it_ticks_for_the_first_time_after_its_span(app, ran):
    app.add_periodic("note", every=HOUR, args=(7,), kwargs={"a": "ä"}, priority=5)
    before = now(app)
    assert sync(app) == ["new: note"]
    assert sync(app) == []
    first = shown(app).next
    assert before + HOUR - timedelta(milliseconds=1) <= first <= now(app) + HOUR
    assert not tick(app)
    back(app, HOUR)
    assert tick(app)
    assert not tick(app)
    assert rows(app, TASKS) == [("note", "default", 5, (first - HOUR).replace(tzinfo=None))]
    assert (shown(app).last, shown(app).next) == (first - HOUR, first)
    drain(app)
    assert ran == [(first - HOUR, (7,), {"a": "ä"})]


def test_a_long_payload_and_an_expiry(app):
    @app.periodic(every=HOUR, args=("x" * 5000,))
    @app.task(name="note", expires=60)
    def note(text):
        return len(text)

    sync(app)
    back(app, 30 * HOUR)
    assert tick(app)
    (number, expires, long) = rows(
        app, f"SELECT ID, DATEDIFF(SECOND FROM {NOW} TO EXPIRE_TIME), IIF(PAYLOAD IS NULL, 1, 0) FROM QUEUE_TASK"
    )[0]
    assert (50 <= expires <= 60, long) == (True, 1)  # from now on, and not from the tick, which is long ago
    drain(app)
    assert app.AsyncResult(number).get(5) == 5000


def test_every_counts_on_over_restarts_and_changes_of_the_arguments(app, ran):
    app.add_periodic("note", every=HOUR)
    sync(app)
    first = shown(app).next
    with closing(restarted(app)) as later:
        later.add_periodic("note", every=HOUR, args=(1,), missed="all")
        assert sync(later) == ["changed: note"]
        assert shown(later).next == first
        assert shown(later).args == [1]


def test_a_changed_time_counts_from_the_last_tick(app):
    app.add_periodic("note", every=24 * HOUR)
    sync(app)
    back(app, 24 * HOUR + 10 * HOUR)
    tick(app)
    last = shown(app).last
    with closing(restarted(app)) as later:
        later.add_periodic("note", every=3 * HOUR)
        sync(later)
        assert shown(later).next == last + 12 * HOUR
    with closing(restarted(app)) as later:
        later.add_periodic("note", cron="0 0 1 1 *", tz="Asia/Tokyo")
        sync(later)
        assert (shown(later).next + 9 * HOUR).strftime("%d.%m. %H:%M") == "01.01. 00:00"


def test_what_vanished_from_the_code_is_kept_and_ticks_no_more(app, ran):
    app.add_periodic("note", every=HOUR)
    app.add_periodic("note", every=HOUR, name="other")
    sync(app)
    with closing(restarted(app)) as later:
        later.add_periodic("note", every=HOUR, name="other")
        assert sync(later) == ["orphaned: note"]
        assert sync(later) == []
    back(app, 5 * HOUR)
    assert not tick(app)
    assert (shown(app).state, shown(app).next, shown(app, "other").state) == ("orphaned", None, "active")
    assert sync(app) == ["changed: note"]
    assert shown(app).state == "active"
    assert shown(app).next > now(app)  # what lay between is not made up for


def test_another_apps_schedule_is_refused_until_it_is_orphaned(app, url):
    app.add_periodic("note", every=HOUR)
    sync(app)
    with closing(FBTasks("second", url)) as second:
        second.add_periodic("note", every=HOUR)
        with pytest.raises(ConfigurationError, match="the schedule 'note' is of the app 'test', and the app 'second'"):
            sync(second)
        with closing(restarted(app)) as later:
            sync(later)
        assert sync(second) == ["changed: note"]
        assert sync(second) == []
        assert shown(second).app == "second"


def test_workers_bring_them_in_and_a_burst_ticks_what_is_due(app, ran):
    app.add_periodic("note", every=HOUR)
    drain(app)
    assert ran == []
    back(app, HOUR)
    drain(app)
    assert len(ran) == 1


# What was missed


@pytest.mark.parametrize(("missed", "expected"), [("skip", []), ("all", [0, 1, 2, 3, 4])])
def test_missed_ticks(app, missed, expected):
    app.add_periodic("note", every=HOUR, missed=missed)
    sync(app)
    back(app, 5 * HOUR + timedelta(minutes=10))
    first = one(app, "SELECT NEXT_TIME FROM QUEUE_SCHEDULE")
    assert tick(app) == bool(expected)
    assert [row[-1] for row in rows(app, TASKS)] == [first + number * HOUR for number in expected]
    assert shown(app).next == (first + 5 * HOUR).replace(tzinfo=UTC)
    assert not tick(app)


def test_of_many_missed_ticks_each_is_made_up_for_and_of_more_one(app, session, monkeypatch):
    monkeypatch.setattr(ticks, "BATCH", 400)
    app.add_periodic("note", every=HOUR, missed="all")
    sync(app)
    back(app, 1000 * HOUR)
    found = Ticks(lambda: True)
    while found.due() <= clock.monotonic():
        assert found.do(session)
    assert one(app, "SELECT COUNT(DISTINCT START_TIME) FROM QUEUE_TASK") == 1000
    back(app, 1001 * HOUR)
    assert tick(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1001


# One task for each tick, whoever ticks


TICKER = """
import sys, time
from fbtasks import FBTasks
from fbtasks.features.schedules import duty as ticks
ticks.BATCH = 3
app = FBTasks("test", sys.argv[1])
with app.database.session() as session:
    print("ready", flush=True)
    sys.stdin.readline()
    found = ticks.Ticks(lambda: True)
    looks = found._next_tick = 0
    while found._next_tick < time.monotonic() + 60:
        looks += found.do(session)
        if looks == int(sys.argv[2]):  # the rest is for those that are to be killed, until they are
            sys.stdin.readline()
            looks += 1
app.close()
"""
FEW = 5
"""Looks of a process that is not killed, until the others are: they come to the tick at which they are."""


def _ticker(url, number):
    fault = (
        {} if number % 2 else {"FBTASKS_FAULT": f"tick.{random.choice(['before', 'after'])}:{random.randint(2, 20)}"}
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return started(TICKER, url, -1 if fault else FEW, env={**os.environ, **fault}, **pipes)


def _go(process):
    with suppress(BrokenPipeError):  # it may have ended
        os.write(process.stdin.fileno(), b"go\n")


@pytest.mark.parametrize(
    ("processes", "most"), [(4, 150), pytest.param(8, 1000, marks=pytest.mark.slow)], ids=["four", "eight"]
)
def test_one_task_for_each_tick_and_none_missing_whatever_is_killed(app, url, processes, most):
    names = [f"s{number}" for number in range(4)]
    for name in names:
        app.add_periodic("note", every=HOUR, missed="all", name=name, args=(name,))
    sync(app)
    for name in names:
        back(app, most * HOUR, name)
    first = dict(rows(app, "SELECT NAME, NEXT_TIME FROM QUEUE_SCHEDULE"))
    running = [_ticker(url, number) for number in range(processes)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        _go(process)
    killed, others = running[::2], running[1::2]
    assert {process.wait(120) for process in killed} == {-9}
    for process in others:
        _go(process)
    assert {process.wait(120) for process in others} == {0}
    for process in running:
        process.stdin.close()
        process.stdout.close()
    expected = {(name, first[name] + number * HOUR) for name in names for number in range(most)}
    found = Counter((payload[3 : 3 + 2].decode(), start) for payload, start in rows(
        app, "SELECT PAYLOAD, START_TIME FROM QUEUE_TASK"))  # fmt: skip
    assert set(found) == expected
    assert set(found.values()) == {1}


def test_what_another_worker_has_begun_to_make_up_for_is_looked_at_again_at_once(app, session, monkeypatch):
    monkeypatch.setattr(ticks, "BATCH", 3)
    app.add_periodic("note", every=HOUR, missed="all")
    sync(app)
    back(app, 10 * HOUR)
    first, second, read = ticks.Ticks(lambda: True), ticks.Ticks(lambda: True), schedules.due

    def overtaken(session, most):
        found = read(session, most)
        monkeypatch.setattr(schedules, "due", read)
        assert first.do(session)
        return found

    monkeypatch.setattr(schedules, "due", overtaken)
    assert not second.do(session)
    assert second.due() <= clock.monotonic()
    assert second.do(session)
    assert len(rows(app, TASKS)) == 6


def test_a_schedule_that_another_transaction_holds_is_looked_at_again(app, session, ran, monkeypatch):
    moment = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: moment)
    app.add_periodic("note", every=HOUR)
    sync(app)
    back(app, HOUR)
    found = Ticks(lambda: True)
    with held(app, "QUEUE_SCHEDULE", 1):
        assert not found.do(session)
        assert found._next_tick == moment + ticks.HELD_FIRST
        assert found.due() > moment
    moment += ticks.HELD_FIRST
    assert found.due() <= moment
    assert found.do(session)


# What goes wrong


def test_a_task_that_cannot_be_enqueued_stops_its_schedule_and_no_other(app, ran):
    app.add_periodic("note", every=HOUR, queue="small")
    app.add_periodic("note", every=HOUR, name="other")
    sync(app)
    execute(app, "UPDATE QUEUE_SCHEDULE SET QUEUE = 'small, and others' WHERE NAME = 'note'")
    for name in ("note", "other"):
        back(app, HOUR, name)
    due = shown(app).next
    assert tick(app)
    assert (shown(app).state, shown(app, "other").state) == ("failed", "active")
    assert shown(app).error.startswith("'small, and others' is not a queue name")
    assert [each.what for each in get_health(app.database, 300).problems["schedules"]] == ["schedule note"]
    assert not tick(app)
    execute(app, "UPDATE QUEUE_SCHEDULE SET QUEUE = 'small' WHERE NAME = 'note'")
    assert service.resume(app.database, ["note"]) == ["note"]
    assert (shown(app).state, shown(app).error, shown(app).next) == ("active", None, due)
    assert tick(app)
    assert {row[1] for row in rows(app, TASKS)} == {"small", "default"}
    assert get_health(app.database, 300).problems["schedules"] == []


def test_missed_ticks_fill_a_queue_and_the_rest_waits_for_room(app, session, ran):
    app.queue("small", max_length=5, when_full="reject")
    app.add_periodic("note", every=HOUR, queue="small", missed="all")
    app.send_task("note", queue="small").revoke()
    sync(app)
    back(app, 8 * HOUR)
    first = one(app, "SELECT NEXT_TIME FROM QUEUE_SCHEDULE")
    found = Ticks(lambda: True)
    while found.due() <= clock.monotonic():
        found.do(session)
    assert [row[-1] for row in rows(app, TASKS)] == [first + number * HOUR for number in range(5)]
    assert shown(app).state == "active"
    drain(app, ["small"])
    drain(app, ["small"])
    assert [call[0].replace(tzinfo=None) for call in ran] == [first + number * HOUR for number in range(8)]


def test_what_was_written_by_hand_and_is_no_expression(app):
    app.add_periodic("note", cron="@hourly")
    app.add_periodic("note", cron="@hourly", name="other")
    sync(app)
    execute(app, "UPDATE QUEUE_SCHEDULE SET CRON = 'sometimes' WHERE NAME = 'note'")
    execute(app, f"UPDATE QUEUE_SCHEDULE SET NEXT_TIME = {NOW}")
    assert tick(app)
    assert shown(app).error == "its next tick cannot be told: CronSimError: Wrong number of fields"
    assert shown(app, "other").state == "active"


def test_a_zone_that_is_unknown_here_is_left_to_other_machines(app, ran, caplog):
    app.add_periodic("note", cron="@hourly")
    app.add_periodic("note", cron="@hourly", name="other")
    sync(app)
    execute(app, "UPDATE QUEUE_SCHEDULE SET TZ = 'Mars/Olympus' WHERE NAME = 'note'")
    execute(app, f"UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-2 MINUTE TO {NOW})")
    drain(app)  # a burst ends though one is left
    assert len(ran) == 1
    assert (shown(app).state, shown(app, "other").last is not None) == ("active", True)
    assert [each.problem[:12] for each in get_health(app.database, 300).problems["schedules"]] == ["its tick is "]
    assert "The schedule note is left to other workers: there is no tz 'Mars/Olympus'" in caplog.text


def test_schedules_that_are_left_to_others_do_not_keep_those_behind_them_from_ticking(app, session, monkeypatch):
    monkeypatch.setattr(ticks, "TURN", 2)
    for number in range(5):
        app.add_periodic("note", cron="@hourly", name=f"of Mars {number}")
    app.add_periodic("note", every=HOUR)
    sync(app)
    execute(app, f"UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 MINUTE TO {NOW})")
    execute(app, f"UPDATE QUEUE_SCHEDULE SET TZ = 'Mars/Olympus', NEXT_TIME = DATEADD(-2 MINUTE TO {NOW}) "
            "WHERE NAME STARTING WITH 'of Mars'")  # fmt: skip
    found = Ticks(lambda: True)
    looks = 1
    while not found.do(session):
        assert found.due() <= clock.monotonic()
        looks += 1
    assert (looks, len(rows(app, TASKS))) == (3, 1)


def test_due_times_follow_whatever_is_written(app):
    """Also what is written by hand: the index of what is due has a key for active schedules alone."""
    app.add_periodic("note", every=HOUR)
    sync(app)
    for change, is_active in (
        ("NEXT_TIME = DATEADD(1 DAY TO NEXT_TIME)", True),
        ("SET_PAUSED = 1", False),
        ("SET_PAUSED = NULL", True),
        ("ERROR_MSG = 'why'", False),
        ("ERROR_MSG = NULL, ORPHANED = 1", False),
        ("ORPHANED = 0", True),
    ):
        execute(app, f"UPDATE QUEUE_SCHEDULE SET {change}")
        ((due, next),) = rows(app, "SELECT DUE_TIME, NEXT_TIME FROM QUEUE_SCHEDULE")
        assert due == (next if is_active else None), change


# What operators do


def test_pause_and_resume(app):
    app.add_periodic("note", every=HOUR)
    sync(app)
    assert service.pause(app.database, ["note", "note"]) == ["note"]
    assert service.pause(app.database, ["note"]) == []
    back(app, 3 * HOUR)
    assert not tick(app)
    with closing(restarted(app)) as later:
        later.add_periodic("note", every=HOUR, args=(1,))
        sync(later)  # what an operator said survives
        assert shown(later).state == "paused"
    assert service.resume(app.database, ["note"]) == ["note"]
    assert service.resume(app.database, ["note"]) == []
    assert (shown(app).state, shown(app).set) == ("active", [])
    assert shown(app).next > now(app)  # the pause is not made up for
    with pytest.raises(ConfigurationError, match=r"there is no schedule 'nite'\. Did you mean 'note'\?"):
        service.pause(app.database, ["nite"])


def test_paused_by_the_code_until_an_operator_resumes_it(app):
    app.add_periodic("note", every=HOUR, paused=True)
    sync(app)
    assert shown(app).state == "paused"
    service.resume(app.database, ["note"])
    with closing(restarted(app)) as later:
        later.add_periodic("note", every=HOUR, paused=True, args=(1,))
        sync(later)
        assert (shown(later).state, shown(later).set) == ("active", ["paused"])
    service.pause(app.database, ["note"])
    assert (shown(app).state, shown(app).set) == ("paused", [])


def test_what_operators_set_survives_new_code_and_is_taken_back(app, ran):
    app.add_periodic("note", cron="@daily", tz="Europe/Vienna", args=(1,), kwargs={"a": 1})
    sync(app)
    before = shown(app)
    set_ = service.change(app.database, "note", every=60, args=[2])
    assert (set_.cron, set_.every, set_.args, set_.kwargs, set_.set) == (None, 60, [2], {"a": 1}, ["every", "args"])
    assert set_.next - now(app) <= timedelta(minutes=1)
    with closing(restarted(app)) as later:
        later.add_periodic("note", cron="@weekly", tz="Europe/Vienna", args=(3,), kwargs={"a": 1})
        sync(later)
        assert (shown(later).every, shown(later).args, shown(later).next) == (60, [2], set_.next)
    back(app, timedelta(minutes=2))
    drain(app)
    assert [call[1:] for call in ran] == [((2,), {"a": 1})]
    other = service.change(app.database, "note", cron="0 5 * * *", tz="UTC")
    assert (other.cron, other.every, other.tz) == ("0 5 * * *", None, "UTC")
    assert service.reset(app.database, "note") == before.__class__(
        **{name: getattr(before, name) for name in before.__slots__} | {"last": other.last}
    )


def test_run_and_remove(app, ran):
    app.add_periodic("note", every=HOUR, args=(5,), paused=True)
    sync(app)
    before = shown(app)
    (number,) = service.run(app.database, ["note"]).values()
    assert shown(app) == before
    app.add_periodic("note", every=HOUR, args=(5,), paused=True)
    drain(app)
    assert [call[1] for call in ran] == [(5,)]
    assert app.AsyncResult(number).status == "SUCCESS"
    assert service.remove(app.database, ["note"]) == ["note"]
    assert service.list_schedules(app.database) == []
    drain(app)  # the code still has it
    assert shown(app).state == "paused"


def test_nothing_ticks_before_its_time_or_by_an_older_definition(app, session):
    """By the clock of the database, whatever a worker takes for the time; and a change after its read is seen."""
    app.add_periodic("note", every=HOUR)
    sync(app)

    def tick_by(active, at):
        return session.run(lambda t: schedules.tick(t, active, at, at, at + HOUR))

    ((active,), _) = schedules.due(session, 10)
    for at in (active.next, active.next - HOUR):
        assert tick_by(active, at) is schedules.Done.CHANGED
    back(app, HOUR)
    ((active,), _) = schedules.due(session, 10)
    service.change(app.database, "note", args=[9])
    assert tick_by(active, active.next) is schedules.Done.CHANGED
    assert rows(app, TASKS) == []
    assert tick(app)


def test_a_call_of_a_schedule_passes_the_limits_of_its_task(app, claim):
    app.limit("one", at_once=1)
    note = app.task(name="note", limits="one", ignore_result=True)(lambda: None)
    app.add_periodic(note, every=HOUR)
    sync(app)
    back(app, HOUR)
    note.delay()
    assert len(claim()) == 1
    assert tick(app)
    assert claim() == []


# Roles


@pytest.mark.usefixtures("url")
def test_a_worker_brings_in_and_ticks_and_an_operator_does_the_rest(app, ran):
    app.add_periodic("note", every=HOUR, args=("x" * 3000,))
    with _as(app, "worker") as worker:
        assert sync_schedules(worker, app, app.schedules) == ["new: note"]
        back(app, HOUR)
        found = Ticks(lambda: True)
        assert found.do(worker)
        with pytest.raises(AuthenticationError):
            worker.call("FBTASKS_SCHEDULES_ADMIN.RUN_SCHEDULE", 1)
    with _as(app, "operator") as operator:
        operator.run(lambda t: schedules.hold(t, 1, held=True))
        operator.call("FBTASKS_SCHEDULES_ADMIN.SET_SCHEDULE", 1, None, 60_000, None, None, None)
        assert operator.call("FBTASKS_SCHEDULES_ADMIN.RUN_SCHEDULE", 1) > 0
        (row,) = schedules.read(operator)
        assert (row.state, row.when) == ("paused", (None, 60_000, None))
        with pytest.raises(AuthenticationError):
            operator.call("FBTASKS_SCHEDULES.ORPHAN_SCHEDULE", 1)
        operator.call("FBTASKS_SCHEDULES_ADMIN.REMOVE_SCHEDULE", 1)
    with _as(app, "producer") as producer, pytest.raises(AuthenticationError):
        schedules.read(producer)
    drain(app, ["default"])
    assert [len(call[1][0]) for call in ran] == [3000, 3000]


@contextmanager
def _as(app, role):
    with (
        with_role(app, role) as url,
        closing(FBTasks("test", url, auto_migrate=False)) as other,
        other.database.session() as session,
    ):
        yield session
