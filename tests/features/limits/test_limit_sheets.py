"""Limits in dashboards."""

import pytest
from support.sheets import Shown
from support.sql import execute, one, rows

from fbtasks import Ordered
from fbtasks.errors import ConfigurationError
from fbtasks.features.limits import sheets
from fbtasks.sheet import Ref, TaskRef
from fbtasks.tasks.call import Failed

pytestmark = pytest.mark.emptied

HOSTILE = "<script>'\"; DROP TABLE QUEUE_LIMIT --/../?%00 é"


@pytest.fixture
def limits(app):
    return Shown(app, "limits")


def test_a_line_says_what_a_limit_lets_in_and_its_page_which_tasks(app, limits, claim):
    app.limit(HOSTILE, at_once=2)
    send = app.task(name="send", limits={HOSTILE: "number"})(lambda number: None)
    ids = [int(each.id) for each in send.delay_many([(1,)] * 5)]
    other = int(send.delay(2).id)
    claim()
    line = limits.lines()[HOSTILE]
    assert line.cells == {
        "Limit": Ref("limits", HOSTILE, HOSTILE),
        "Lets in": "2 at once",
        "App": app.name,
        "State": "active",
        "In": 3,
        "Waiting": 3,
        "Keys": 2,
        "Closed keys": None,
    }
    assert (line.wrong, list(line.actions)) == ("", ["set-at-once"])
    detail = limits.detail(HOSTILE)
    assert detail.line == line
    inside, waiting = detail.tables["Let in"], detail.tables["Waiting, in order"]
    assert [each["Task"] for each in waiting] == [TaskRef(each, "send") for each in ids[2:]]
    assert {each["Task"].id for each in inside} == {*ids[:2], other}
    assert {each["State"] for each in inside} == {"running"}
    assert len({each["Key"] for each in inside}) == 2
    assert {each["Key"] for each in waiting} == {each["Key"] for each in inside if each["Task"].id in ids}
    assert limits.of_task(other) == {"Limits": [Ref("limits", HOSTILE, HOSTILE)]}
    assert limits.of_task(0) == {}
    assert limits.detail("none such") is None


def test_pages_have_each_limit_once(app, limits):
    names = [f"l{n}" for n in range(7)]
    for name in names:
        app.limit(name, at_once=1)
        app.task(name=name, limits=name)(lambda: None).delay()
    assert limits.keys(3) == names
    assert list(limits.lines("gone", 2)) == names[:2]


def test_tasks_are_counted_and_shown_up_to_a_bound(app, limits, claim, monkeypatch):
    """Tasks that are let in are shown however many wait."""
    monkeypatch.setattr(sheets, "MOST", 5)
    monkeypatch.setattr(sheets, "SHOWN", 3)
    app.limit("all", at_once=1)
    app.limit("each", at_once=1)
    app.queue("wide", at_once=1)
    task = app.task(name="t", limits={"each": "n"})(lambda n: None)
    app.task(name="a", limits="all")(lambda: None).delay_many([()] * 9)
    task.delay_many([(n,) for n in range(9)])
    app.task(name="q", queue="wide")(lambda: None).delay_many([()] * 9)
    claim()
    claim(queue="wide")
    found = limits.lines()
    assert {name: (line.cells["In"], line.cells["Waiting"]) for name, line in found.items()} == {
        "all": (1, "5 or more"),
        "each": ("5 or more", "0 or more"),  # of nine keys
        "queue:wide": (1, "5 or more"),
    }
    for name, inside, waiting in (("all", 1, 3), ("each", 3, 0), ("queue:wide", 1, 3)):
        tables = limits.detail(name).tables
        assert (len(tables["Let in"]), len(tables["Waiting, in order"])) == (inside, waiting)


def test_what_an_operator_says_of_a_limit_is_set_and_reset(app, limits):
    app.limit("all", at_once=2)
    app.limit("sms", rate="10/s", burst=3)
    app.task(name="t", limits={"all": None, "sms": None})(lambda: None).delay()
    assert limits.act("set-at-once", "all", at_once=" 5 ") == "all: 5 at once (set; the code: 2 at once)."
    assert limits.act("reset", "all") == "all: 2 at once."
    line = limits.lines()["sms"]
    assert (list(line.actions), line.values["rate"], line.values["burst"]) == (["set-rate"], "10/s", "3")
    assert limits.act("set-rate", "sms", burst="7").startswith("sms: 10/s (burst 7) (set;")
    with pytest.raises(ConfigurationError, match="at_once is empty: fill it in"):
        limits.act("set-at-once", "all", at_once="")
    with pytest.raises(ConfigurationError, match="at_once 'two' must be a whole number"):
        limits.act("set-at-once", "all", at_once="two")
    with pytest.raises(ConfigurationError, match="rate 'fast' must say how many"):
        limits.act("set-rate", "sms", rate="fast")
    with pytest.raises(ConfigurationError, match="there is no limit 'al'"):
        limits.sheet.actions["reset"].do(app, "al", {})


def test_a_key_that_a_failed_task_has_closed_is_shown_and_resumed(app, limits, claim, end):
    move = app.task(name="move", ordered=Ordered("key", stop_on_failure=True))(lambda key: None)
    failing, behind = (int(move.delay(key).id) for key in ("a", "a"))
    (other, beside) = (int(move.delay(key).id) for key in ("b", "b"))
    end(claim(), Failed("builtins.ValueError", "no"))
    claim()
    line = limits.lines()["ordered:move"]
    assert (line.cells["Closed keys"], line.wrong) == (2, f"a key is closed since task {failing} failed")
    closed = limits.detail("ordered:move").tables["Closed keys"]
    assert [(each["Failed task"].id, each["Waiting"]) for each in closed] == [(failing, 1), (other, 1)]
    said = limits.act("resume", "ordered:move", task=str(other))
    assert said == f"ordered:move: goes on behind task {other}, which stays failed."
    assert [each.id for each in claim()] == [beside]
    limits.act("resume", "ordered:move")  # which is filled in with the first one
    assert [each.id for each in claim()] == [behind]
    assert not limits.lines()["ordered:move"].actions


def test_a_limit_that_no_app_defines_is_shown_with_what_waits(app, limits):
    app.limit("all", at_once=1)
    task = app.task(name="t", limits="all")(lambda: None).delay()
    number = one(app, "SELECT ID FROM QUEUE_LIMIT")
    execute(app, "DELETE FROM QUEUE_LIMIT")
    (line,) = limits.lines().values()
    assert (line.key, line.cells["Waiting"]) == (f"(not defined) {number}", 1)
    assert line.wrong == "tasks wait for it, and no app defines it"
    (waiting,) = limits.detail(line.key).tables["Waiting, in order"]
    assert waiting["Task"].id == int(task.id)
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK") == [(1,)]
