"""A burst waits for what can still become ready by itself, and leaves the rest, which it names."""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from support.sql import execute, one, rows

from fbtasks import Ordered, Unique, debounce, group
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.queue.register.registration import Registration
from fbtasks.tasks.call import Failed, Finished, Reason, Requeue, Succeeded
from fbtasks.testing import drain
from fbtasks.worker import drain as draining
from fbtasks.worker import fetcher, loop

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
COUNT = "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 10"


@pytest.fixture
def other(session):
    """Another worker: what it claims, and how that ends."""

    class Other:
        def claim(self, most=100):
            self.claims = session.run(lambda t: tasks.claim(t, self.id, "default", most))
            return self.claims

        def end(self, outcome=DONE):
            done = [Finished(each, outcome) for each in self.claims]
            assert session.run(lambda t: tasks.finish(t, self.id, 0, done)) == []

    Other.id = Registration("worker", Rhythm(3600), name="other", queues="default").register(session.run)
    return Other()


@pytest.fixture
def make(app):
    def make(name="work", **options):
        return app.task(name=name, **options)(lambda *_: name)

    return make


def left(caplog):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("Left in")]


def test_it_waits_for_tokens_and_for_quiet_and_looks_when_they_come(app, make, monkeypatch):
    """Whatever the pause between two polls, also in the worker that serves others meanwhile."""
    for module in (loop, fetcher):
        monkeypatch.setattr(module, "POLL_FIRST", 600.0)
    monkeypatch.setattr(fetcher, "POLL_LAST", 600.0)
    app.limit("sms", rate="50/s", burst=1)
    make(limits={"sms": None}).delay_many([(n,) for n in range(4)])
    quiet = make("quiet", unique=Unique(conflict=debounce(0.2)))
    for _ in range(3):
        quiet.delay(1)
    began = time.monotonic()
    drain(app)
    assert one(app, COUNT) == 5
    assert time.monotonic() - began < 300


def test_it_waits_for_a_place_that_another_worker_gives_back(app, make, other, waits):
    app.limit("one", at_once=1)
    app.limit("two", at_once=2)
    make(limits={"one": None, "two": None}).delay_many([(1,), (2,)])
    assert len(other.claim()) == 1
    waits(other.end)
    assert one(app, COUNT) == 1
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_it_waits_for_a_place_of_the_queue(app, make, other, waits):
    app.queue("default", at_once=1)
    with app.database.session() as session:
        app.features["limits"].deploy(session)
    make().delay_many([(1,), (2,)])
    assert len(other.claim()) == 1
    waits(other.end)
    assert one(app, COUNT) == 1


def test_it_waits_for_a_step_that_another_worker_runs(app, make, other, waits):
    first, last = make("first"), make("last")
    (group(first.si(), group(first.si(), first.si())) | last.si()).delay()
    assert len(other.claim()) == 3
    waits(other.end)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE NAME = 'last' AND STATE = 10") == 1


@pytest.fixture
def waits(app, caplog, monkeypatch, wait_for):
    """Runs a burst that waits until what is given has been done."""

    def waits(act):
        thread = threading.Thread(target=drain, args=(app,))
        with caplog.at_level(logging.INFO, "fbtasks.worker"):
            thread.start()
            try:
                wait_for(lambda: f"{draining.OPENS} Left in queue default: " in caplog.text)
                assert thread.is_alive()
            finally:
                act()
                thread.join(30)
        assert not thread.is_alive()
        assert left(caplog) == []

    monkeypatch.setattr(draining, "BURST_SAYS", 0.05)
    return waits


def stays(app, caplog, *said):
    """Whether a burst ends and says *said* of what it leaves."""
    with caplog.at_level(logging.INFO, "fbtasks.worker"):
        drain(app)
    assert left(caplog) == [f"Left in queue default: {what}." for what in said]
    return True


def test_it_leaves_what_waits_behind_a_failure_or_a_retry(app, caplog, other):
    @app.task(name="move", ordered=Ordered("key", stop_on_failure=True))
    def move(key):
        pass

    move.delay_many([(1,), (1,), (1,)])
    other.claim()
    other.end(Failed("builtins.ValueError", "no"))
    assert stays(app, caplog, "2 tasks wait for limits")


def test_it_leaves_what_waits_for_an_undefined_limit(app, make, caplog):
    app.limit("one", at_once=1)
    make(limits={"one": None}).delay(1)
    execute(app, "DELETE FROM QUEUE_NOTE")
    execute(app, "DELETE FROM QUEUE_LIMIT")
    assert stays(app, caplog, "1 task waits for a limit")


def test_it_leaves_steps_of_what_does_not_run(app, make, caplog, other):
    first, last = make("first"), make("last")
    (first.s() | last.s() | last.s()).delay()
    other.claim()
    other.end(Requeue(Reason.PARKED))
    app.tasks.pop("first")
    assert stays(app, caplog, "2 tasks wait for tasks that come before them")


@pytest.mark.parametrize("paused", [False, True])
def test_it_leaves_a_queue_that_is_closed(app, make, caplog, paused):
    now = datetime.now(UTC)
    window = [f"{now + timedelta(hours=hours):%H:%M}" for hours in (2, 4)]
    if not paused:
        app.queue("default", run_between=tuple(window), tz="UTC")
    app.limit("sms", rate="1000/s", burst=1)
    make(limits={"sms": None}).delay_many([(1,), (2,)])
    make("plain").delay(1)
    if paused:
        pausing.pause(app.database, ["default"])
    assert stays(app, caplog, "1 task is ready, and not claimed now", "2 tasks wait for limits")
    assert rows(app, COUNT) == [(0,)]
