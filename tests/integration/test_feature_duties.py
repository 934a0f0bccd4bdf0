"""Duties of a feature of another distribution: one that fails or takes long holds up neither tasks nor the lease."""

import math
import time

import pytest
from support.sql import NOW, one

from fbtasks import FBTasks
from fbtasks.app import FEATURES
from fbtasks.feature import Duty, Feature
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor


class Once(Duty):
    """It does something once."""

    name = "doing it"

    def __init__(self, act):
        self._act = act
        self._next = 0.0

    def due(self):
        return self._next

    def do(self, session):
        self._next = math.inf
        self._act(session)
        return False


class Busy(Feature):
    name = "busy"

    def __init__(self, act):
        self._act = act

    def duties(self, worker):
        yield Once(self._act)


@pytest.fixture
def run(url):
    def run(act, lease=30.0):
        app = FBTasks("test", url, auto_migrate=True, features=[*FEATURES, Busy(act)])
        result = app.task(name="add")(lambda a, b: a + b).delay(1, 2)
        options = WorkerOptions(
            name="w", queues=("default",), pool="solo", concurrency=1, burst=True, lease=lease, grace=1.0
        )
        loop = Loop(app, SoloExecutor(app), options)
        try:
            loop.start()
            loop.open()
            loop.run(listen=False)
            assert result.get(timeout=0) == 3
        finally:
            loop.close()
            app.close()

    return run


def test_one_that_raises_is_logged_and_all_else_goes_on(run, caplog):
    run(lambda session: {}["missing"])
    assert "doing it raised KeyError: 'missing'. It is tried again; all else goes on." in caplog.text
    assert "Traceback" in caplog.text


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
