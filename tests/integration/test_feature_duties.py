"""Duties of a feature of another distribution: one that fails or takes long holds up neither tasks nor the lease."""

import math
import threading
import time
from contextlib import closing

import pytest
from support.loops import opened, running
from support.sql import NOW, one

from fbtasks import FBTasks
from fbtasks.app import FEATURES
from fbtasks.errors import ConflictError
from fbtasks.feature import Duty, Feature
from fbtasks.worker.pools.solo import SoloExecutor


class Once(Duty):
    """It does something once."""

    name = "doing it"

    def __init__(self, act, *, apart):
        self._act = act
        self.apart = apart
        self._next = 0.0

    def due(self):
        return self._next

    def do(self, session):
        self._next = math.inf
        self._act(session)
        return False


class Busy(Feature):
    name = "busy"

    def __init__(self, act, *, apart=False):
        self._act = act
        self._apart = apart

    def duties(self, worker):
        yield Once(self._act, apart=self._apart)


@pytest.fixture
def run(url):
    def run(act, lease=30.0):
        app = FBTasks("test", url, auto_migrate=True, features=[*FEATURES, Busy(act)])
        result = app.task(name="add")(lambda a, b: a + b).delay(1, 2)
        with closing(app), opened(app, burst=True, lease=lease, grace=1.0) as loop:
            loop.run(listen=False)
            assert result.get(timeout=0) == 3

    return run


def test_the_lease_is_renewed_while_one_takes_long(app, run):
    lives = []

    def act(session):
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            session.read("now")
            time.sleep(0.02)
        lives.append(one(app, f"SELECT COUNT(*) FROM QUEUE_PROCESS WHERE LEASE_UNTIL > {NOW}"))

    run(act, lease=1.5)
    assert lives == [1]


@pytest.fixture
def working(url):
    """A worker with a duty that is apart and waits until it may go."""
    go, seen = threading.Event(), []

    def act(session):
        seen.append("begun")
        go.wait(60)
        seen.append(session.read("now") is not None)

    app = FBTasks("test", url, auto_migrate=True, features=[*FEATURES, Busy(act, apart=True)])
    app.task(name="add")(lambda a, b: a + b)
    with closing(app), opened(app, lease=1.5, grace=1.0) as loop, running(loop) as thread:
        try:
            yield loop, thread, go, seen
        finally:
            go.set()


def test_one_that_waits_apart_holds_up_neither_tasks_nor_the_lease_nor_the_end(app, working, wait_for, caplog):
    loop, thread, _, seen = working
    caplog.set_level("INFO")
    wait_for(lambda: seen == ["begun"])
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        assert loop._app.tasks["add"].delay(1, 2).get(timeout=10) == 3
        assert one(app, f"SELECT COUNT(*) FROM QUEUE_PROCESS WHERE LEASE_UNTIL > {NOW}") == 1
        time.sleep(0.1)
    loop.drain.begin()
    began = time.monotonic()
    thread.join(20)
    assert not thread.is_alive()
    assert 0.9 < time.monotonic() - began < 5
    assert seen == ["begun"]
    assert "Waiting up to 1 s for doing it; a second signal stops it." in caplog.text
    loop.close()
    assert "doing it has not ended; the worker ends without it." in caplog.text


def test_a_worker_that_ends_waits_for_one_apart_as_long_as_it_may(working, wait_for, caplog):
    loop, thread, go, seen = working
    wait_for(lambda: seen == ["begun"])
    loop.drain._grace = 60.0
    loop.drain.begin()
    thread.join(0.5)
    assert thread.is_alive()
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert seen == ["begun", True]
    loop.close()
    assert "has not ended" not in caplog.text


class Four(SoloExecutor):
    """With room for four, one after the other."""

    def free(self):
        return 0 if self._done else 4

    def submit(self, claims):
        for claim in claims:
            super().submit([claim])
        return []


def test_claims_that_a_feature_cannot_look_at_for_now_go_back(url):
    """Another transaction is in its way: nothing that was claimed is forgotten, and the connection stays."""

    class Looks(Feature):
        name = "looks"
        met = 0

        def receives(self, task):
            return True

        def received(self, session, claim):
            self.met += 1
            if self.met == 3:
                raise ConflictError("a row is locked")
            return claim

    looks = Looks()
    app = FBTasks("test", url, auto_migrate=True, features=[*FEATURES, looks])
    add = app.task(name="add")(lambda a, b: a + b)
    results = [add.delay(n, 1) for n in range(4)]
    with closing(app), opened(app, Four(app), burst=True) as loop:
        loop.run(listen=False)
        assert [result.get(timeout=0) for result in results] == [1, 2, 3, 4]
        assert one(app, "SELECT SUM(RELEASED) FROM QUEUE_STAT") == 4
    assert looks.met == 7
