"""Schedules in dashboards."""

from datetime import timedelta
from itertools import pairwise

import pytest
from support.sheets import Shown
from support.sql import execute, rows

from fbtasks.errors import ConfigurationError
from fbtasks.features.schedules.ticking import in_words
from fbtasks.sheet import Called, Private, Ref, TaskRef
from fbtasks.testing import drain

pytestmark = pytest.mark.emptied

HOSTILE = "<img src=x>'\"/../?&%00 é"


@pytest.fixture
def schedules(app):
    task = app.task(name="report", max_retries=0)(lambda n=1: 1 / n)
    app.add_periodic(task, cron="30 2 * * mon-fri", tz="Europe/Berlin", name=HOSTILE, args=[1], kwargs={})
    app.add_periodic(task, every=timedelta(minutes=15), name="often")
    app.add_periodic(task, every=90, name="asleep", paused=True)
    app.migrate()
    return Shown(app, "schedules")


def test_a_page_says_when_a_schedule_ticks(schedules):
    assert schedules.keys(2) == sorted(["often", "asleep", HOSTILE])
    detail = schedules.detail(HOSTILE)
    assert detail.line == schedules.lines()[HOSTILE]
    cells = detail.line.cells
    assert cells["Schedule"] == Ref("schedules", HOSTILE, HOSTILE)
    assert (cells["When"], cells["Call"]) == ("30 2 * * mon-fri Europe/Berlin", Called("report", [1], {}))
    assert detail.facts["In words"] == "At 02:30 on Monday through Friday (Europe/Berlin)"
    ticks = detail.tables["Next ticks"]
    assert [each["On its clock"].split()[2] for each in ticks] == ["02:30:00"] * 5
    assert ticks[0]["Tick"] == cells["Next"]
    often = schedules.detail("often")
    assert often.facts["In words"] == "every 15 min"
    moments = [each["Tick"] for each in often.tables["Next ticks"]]
    assert {later - sooner for sooner, later in pairwise(moments)} == {timedelta(minutes=15)}
    assert schedules.detail("none such") is None


def test_names_for_expressions_have_words_too():
    assert in_words("@daily") == in_words("0 0 * * *") == "At 00:00 every day"


def test_why_a_schedule_does_not_tick_is_said(app, schedules):
    asleep = schedules.detail("asleep")
    assert (asleep.line.cells["State"], asleep.facts["Paused by"]) == ("paused", "its app")
    assert asleep.tables["Next ticks"] == []
    assert schedules.act("pause", "often") == "often: paused."
    assert schedules.detail("often").facts["Paused by"] == "an operator"
    assert schedules.act("resume", "often") == "often: resumed."
    execute(app, "UPDATE QUEUE_SCHEDULE SET ERROR_MSG = 'the queue is full' WHERE NAME = 'often'")
    line = schedules.lines()["often"]
    assert line.wrong == Private("the queue is full", "it stands still")
    assert {"resume", "pause"} <= set(line.actions)
    execute(app, "UPDATE QUEUE_SCHEDULE SET ORPHANED = 1 WHERE NAME = 'often'")
    assert schedules.lines()["often"].wrong == "its app defines it no longer"


def test_the_last_tasks_of_a_schedule_are_shown(app, schedules):
    """Those of ticks and those that an operator has asked for: the last ten."""
    ran = schedules.act("run", HOSTILE)
    first = int(ran.rpartition(" ")[2].rstrip("."))
    assert ran == f"{HOSTILE}: enqueued task {first}."
    drain(app)
    schedules.act("set-call", HOSTILE, args="[0]", kwargs="{}")
    for _ in range(10):
        schedules.act("run", HOSTILE)
    second, *_, last = (task for (task,) in rows(app, "SELECT ID FROM QUEUE_TASK ORDER BY ID"))
    drain(app)
    runs = schedules.detail(HOSTILE).tables["Last runs"]
    assert [runs[0]["Task"], runs[-1]["Task"]] == [TaskRef(last, "report"), TaskRef(second, "report")]
    assert {(each["State"], each["Error"]) for each in runs} == {
        ("failed", Private("division by zero", "builtins.ZeroDivisionError"))
    }
    spark = schedules.detail(HOSTILE).line.cells["Runs"]
    assert min(spark.values["failed"]) > 0
    assert (len(spark.values["failed"]), spark.values["succeeded"]) == (10, [0] * 10)
    lines = schedules.lines()
    assert (lines[HOSTILE].cells["Runs"], lines["often"].cells["Runs"]) == (spark, None)
    assert schedules.of_task(last) == {"Schedule": Ref("schedules", HOSTILE, HOSTILE)}
    assert schedules.of_task(first) == schedules.of_task(last * 10) == {}
    execute(app, "DELETE FROM QUEUE_HISTORY WHERE ID = ?", last)
    assert schedules.detail(HOSTILE).tables["Last runs"][0] == {"Task": TaskRef(last), "State": "no longer kept"}


def test_a_tick_notes_its_task(app, schedules):
    execute(app, "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 SECOND TO NEXT_TIME), LAST_TIME = NULL")
    execute(app, "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 SECOND TO QUEUE_NOW()) WHERE NAME = 'often'")
    drain(app)
    (run,) = schedules.detail("often").tables["Last runs"]
    assert run["State"] == "succeeded"
    assert schedules.of_task(run["Task"].id) == {"Schedule": Ref("schedules", "often", "often")}


def test_what_an_operator_says_of_a_schedule_is_set_and_reset(schedules):
    assert "reset" not in schedules.lines()["often"].actions
    assert schedules.act("set-every", "often", every="2h") == "often: every 2 h."
    assert schedules.act("set-cron", "often", cron="@hourly", tz="Asia/Tokyo") == "often: @hourly Asia/Tokyo."
    assert schedules.act("set-call", "often", kwargs='{"n": 2}') == "often: its arguments are set."
    assert schedules.act("set-call", "often", args="[3]") == "often: its arguments are set."
    line = schedules.lines()["often"]
    assert line.values == {"cron": "@hourly", "tz": "Asia/Tokyo", "every": ""}
    assert line.cells["Call"] == Called("report", [3], {"n": 2}), "a field that is left empty keeps what there was"
    assert schedules.detail("often").facts["Set by operators"] == ["cron", "tz", "args"]
    assert schedules.act("reset", "often") == "often: every 15 min."
    assert schedules.act("remove", "often") == "often: gone."
    assert "often" not in schedules.lines()


@pytest.mark.parametrize(
    ("action", "values", "said"),
    [
        ("set-cron", {"cron": "61 * * * *"}, r"cron '61 \* \* \* \*' has a wrong minute"),
        ("set-cron", {"cron": "@daily", "tz": "Europe/Wien"}, "there is no tz 'Europe/Wien'"),
        ("set-cron", {"cron": " "}, "cron is empty: fill it in"),
        ("set-every", {"every": "soon"}, "every 'soon' must be seconds"),
        ("set-call", {}, "args and kwargs are empty: fill in one of them"),
        ("set-call", {"args": "{}"}, "args '{}' must be a JSON list"),
        ("set-call", {"args": "[" * 100_000}, "args '\\[+.* is not JSON"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(schedules, action, values, said):
    with pytest.raises(ConfigurationError, match=said):
        schedules.act(action, "often", **values)
    with pytest.raises(ConfigurationError, match="there is no schedule 'nosuch'"):
        schedules.sheet.actions["run"].do(schedules.app, "nosuch", {})
