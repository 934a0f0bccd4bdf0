"""A task that asks to be run again later: no try is counted, and nothing has failed."""

import pytest
from support.draining import drain
from support.feeding import subscribe
from support.recorded import capture, inserts
from support.sql import execute, one, rows

from fbtasks import ConfigurationError, FBTasks, QueueFull, ResultTimeout
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied


def wake(app):
    """Has what is scheduled be due."""
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO START_TIME) WHERE STATE = 1")


def test_it_is_scheduled_and_no_try_is_counted(app):
    heard = []

    @app.task(
        name="poll",
        bind=True,
        max_retries=0,
        autoretry_for=(Exception,),
        on_failure=lambda *_: heard.append("failed"),
        on_retry=lambda *_: heard.append("retried"),
    )
    def poll(self):
        heard.append(self.request.retries)
        if len(heard) < 3:
            self.snooze(600)
        return "there"

    result = poll.delay()
    for ran in (1, 2):
        drain(app)  # a burst does not run it again at once
        assert heard == [0] * ran
        state, tries, seconds = rows(
            app,
            "SELECT STATE, TRY_COUNT, DATEDIFF(SECOND FROM QUEUE_NOW() TO START_TIME) FROM QUEUE_TASK",
        )[0]
        assert (state, tries, result.status) == (1, 0, "PENDING")
        assert 590 < seconds <= 600
        wake(app)
    drain(app)
    assert result.get(timeout=5) == "there"
    assert one(app, "SELECT TRY_COUNT FROM QUEUE_HISTORY") == 1


@pytest.mark.usefixtures("url")  # it changes the schema
def test_its_effects_are_undone(app):
    execute(app, "CREATE TABLE NOTE (ID INTEGER)")

    @app.task(name="effect", bind=True, transactional=True)
    def effect(self):
        self.connection.execute_immediate("INSERT INTO NOTE VALUES (1)")
        self.snooze(600)

    effect.delay()
    drain(app)
    assert one(app, "SELECT COUNT(*) FROM NOTE") == 0
    assert rows(app, "SELECT STATE, CLAIM_ID FROM QUEUE_TASK") == [(1, None)]


def test_it_has_no_place_of_a_limit_meanwhile_and_keeps_that_of_its_queue(app):
    app.queue("few", max_length=2, when_full="reject")
    app.limit("one", at_once=1)
    ran = []

    @app.task(name="first", bind=True, queue="few", limits={"one": None})
    def first(self):
        ran.append("first")
        if len(ran) == 1:
            self.snooze(600)

    second = app.task(name="second", queue="few", limits={"one": None})(lambda: ran.append("second"))
    first.delay()
    drain(app, ["few"])
    second.delay()
    with pytest.raises(QueueFull):
        second.delay()
    drain(app, ["few"])
    assert ran == ["first", "second"]
    wake(app)
    drain(app, ["few"])
    assert ran == ["first", "second", "first"]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


@pytest.mark.usefixtures("url")  # it changes the schema
def test_of_a_run_of_changes_what_was_done_stays_done(app):
    seen = []

    def look(self, change):
        seen.append((change.new["N"], self.request.retries))
        if change.new["N"] == 1 and len(seen) == 2:
            self.snooze(600)

    app.on_change("T", insert=True, name="fed", bind=True)(look)
    subscribe(app, "fed", id=1)
    capture(app, inserts(3, None), ordered=False)
    drain(app)
    assert len(seen) in (2, 3)
    wake(app)
    drain(app)
    assert sorted(seen) == [(0, 0), (1, 0), (1, 0), (2, 0)]


def test_eager_mode_does_not_wait(tmp_path):
    app = FBTasks("eager", f"firebird://{tmp_path}/none.fdb")
    late = app.task(name="late", bind=True)(lambda self: self.snooze(5))
    with eager(app):
        result = late.delay()
    assert (result.status, result.ready()) == ("PENDING", False)
    with pytest.raises(ResultTimeout, match="asked to be run again in 5 seconds"):
        result.get()
    for wrong in (0, -1, "5", None):
        with pytest.raises(ConfigurationError, match="snooze"):
            late.snooze(wrong)
    app.close()
