"""Subscriptions in dashboards."""

from datetime import timedelta

import pytest
from support.draining import drain
from support.polls import fill
from support.sheets import Shown
from support.sources import apply
from support.sql import execute, one, rows

from fbtasks.errors import ConfigurationError
from fbtasks.features.sources import sheets
from fbtasks.sheet import Private, Ref, TaskRef

pytestmark = pytest.mark.emptied

TABLE = 'CREATE TABLE "od<d>\'" (ID INTEGER NOT NULL PRIMARY KEY, KEY_ VARCHAR(20) NOT NULL)'
NAME = '"od<d>\'"'
HOSTILE = "shop.<b>'\"/../?%00 é"


@pytest.fixture
def sources(app):
    return Shown(app, "sources")


@pytest.fixture
def changed(app):
    @app.on_change(NAME[1:-1], insert=True, key="KEY_", name=HOSTILE, stop_on_failure=True, max_retries=0)
    def changed(change):
        if change.key["KEY_"] == "bad":
            raise ValueError("refused")

    execute(app, TABLE)
    apply(app)
    return changed


def insert(app, *keys):
    for key in keys:
        execute(app, f"INSERT INTO {NAME} VALUES (COALESCE((SELECT MAX(ID) FROM {NAME}), 0) + 1, ?)", key)


def test_a_subscription_is_shown_with_what_waits_and_with_its_lanes_that_stand_still(app, sources, changed):
    insert(app, "bad", "good")
    drain(app)
    insert(app, "bad", "bad", "good")
    (line,) = sources.lines().values()
    assert line.cells == {
        "Task": Ref("sources", line.key, HOSTILE),
        "Kind": "change",
        "Source": NAME[1:-1],
        "Queue": "default",
        "State": "active",
        "Waiting": 3,
        "Lag": line.cells["Lag"],
        "Halted lanes": 1,
    }
    assert timedelta(0) <= line.cells["Lag"] < timedelta(minutes=5)
    assert (line.wrong, list(line.actions)) == ("a lane stands still since a task failed", ["pause"])
    detail = sources.detail(line.key)
    assert detail.facts["Order"] == "key"
    assert "stop_on_failure=True" in detail.facts["Options"]
    failed = one(app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE = 11")
    (lane,) = detail.tables["Lanes that stand still"]
    assert (lane["Failed task"], lane["Waiting"]) == (TaskRef(failed), 2)
    assert lane["First"] == Private(f"insert of {NAME[1:-1]}: KEY_='bad'")
    of_task = sources.of_task(failed)
    assert of_task["Source"] == Ref("sources", line.key, f"change of {NAME[1:-1]} for {HOSTILE}")
    assert of_task["Made of"] == [lane["First"]]
    assert sources.of_task(0) == {}


def test_what_waits_is_counted_up_to_a_bound(app, sources, changed, monkeypatch):
    monkeypatch.setattr(sheets, "MOST", 2)
    insert(app, *"abcdef")
    (line,) = sources.lines().values()
    assert line.cells["Waiting"] == "2 or more"


def test_a_subscription_is_paused_and_resumed(app, sources, changed):
    (key,) = sources.lines()
    assert sources.act("pause", key) == f"{HOSTILE}: nothing is given out."
    assert sources.sheet.actions["pause"].do(app, key, {}) == f"{key}: paused already."
    insert(app, "good")
    drain(app)
    (line,) = sources.lines().values()
    assert (line.cells["State"], line.cells["Waiting"], list(line.actions)) == ("paused", 1, ["resume"])
    assert sources.act("resume", key) == f"{HOSTILE}: resumed."
    drain(app)
    assert sources.lines()[key].cells["Waiting"] == 0
    with pytest.raises(ConfigurationError, match="there is no subscription '999'"):
        sources.sheet.actions["pause"].do(app, "999", {})
    assert sources.detail("999") is None


def test_what_is_not_deployed_and_events_without_a_handler_are_shown(app, sources):
    app.on_event("order.paid", name="paid")(lambda event: None)
    app.migrate()
    app.raise_event("order.lost", {"id": 1})
    found = sources.lines()
    assert sources.keys(1) == [*found]
    assert [line.cells["State"] for line in found.values()] == ["unhandled", "active"]
    assert found["unhandled:order.lost"].wrong.startswith("no handler is registered for it")
    assert not found["unhandled:order.lost"].actions
    app.on_change("NOWHERE", insert=True, name="new")(lambda change: None)
    assert sources.lines()["undeployed:new"].wrong
    assert sources.detail("undeployed:new").line.wrong


def test_what_a_task_was_made_of_is_said(app, sources):
    execute(app, "CREATE TABLE INBOX (ID INTEGER NOT NULL PRIMARY KEY, S VARCHAR(10))")
    status = {"status": "S", "ready": "R", "taken": "T", "done": "D", "failed": "E"}
    app.poll_table("INBOX", **status, name="polled", max_retries=0)(lambda row: 1 / 0)
    app.on_event("order.paid", name="paid", batch=100, order=None, max_retries=0)(lambda events: 1 / 0)
    app.migrate()
    fill(app, "INSERT INTO INBOX VALUES (7, 'R')")
    for number in range(12):
        app.raise_event("order.paid", number)
    drain(app)
    failed = dict(rows(app, "SELECT NAME, ID FROM QUEUE_HISTORY WHERE STATE = 11"))
    assert sources.of_task(failed["polled"])["Made of"] == [Private("row of INBOX: ID=7")]
    assert sources.of_task(failed["paid"])["Made of"] == [Private("event order.paid")] * 10
    assert {line.cells["Kind"]: line.cells["Waiting"] for line in sources.lines().values()} == {
        "poll": None,
        "event": 0,
    }
    execute(app, "UPDATE QUEUE_HISTORY SET PAYLOAD = '[[{\"x\": 1}, {' WHERE ID = ?", failed["paid"])
    (said,) = sources.of_task(failed["paid"])["Made of"]
    assert said.text.startswith("it cannot be read: ")
