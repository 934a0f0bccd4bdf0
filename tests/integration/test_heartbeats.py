"""heartbeat_timeout: a task that does not say for so long that it is at work is stopped, as at its time_limit."""

import threading
import time

import pytest
from support.children import child_executor

from fbtasks import ConfigurationError, HeartbeatTimeout
from fbtasks.tasks.call import Claim, Failed, Reason, Succeeded, reason_of
from fbtasks.testing import drain
from fbtasks.worker.pools.child_status import ChildStatus

SOURCE = """
    import asyncio, time
    from fbtasks import HeartbeatTimeout

    @app.task(bind=True, heartbeat_timeout=1)
    def works(self):
        for _ in range(14):
            time.sleep(0.1)
            self.heartbeat()
        return "done"

    @app.task(bind=True, heartbeat_timeout=0.5, soft_time_limit=30, time_limit=60)
    def hangs(self):
        self.heartbeat()
        while True:
            time.sleep(0.02)

    @app.task(bind=True, heartbeat_timeout=1.2, autoretry_for=(HeartbeatTimeout,), default_retry_delay=7)
    async def waits(self):
        await asyncio.sleep(0.2)
        self.heartbeat()
        await asyncio.sleep(60)
"""


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
def test_a_silent_task_is_stopped(pool, project, monkeypatch, wait_for):
    ended = {}
    with child_executor(project, monkeypatch, SOURCE, pool, places=3) as executor:
        wait_for(lambda: executor.collect() or executor.free() >= 3)
        for number, name in enumerate(("works", "hangs", "waits"), 1):
            claim = Claim(number, 99, f"proj.{name}", "q", content_type="application/json", payload=b"[[],{}]")
            assert executor.submit([claim]) == []

        def collect():
            ended.update({each.claim.name[5:]: each for each in executor.collect()})
            return len(ended) == 3

        wait_for(collect)
    assert isinstance(ended["works"].outcome, Succeeded)
    hangs = ended["hangs"].outcome
    assert isinstance(hangs, Failed)
    assert hangs.error_type == "fbtasks.errors.HeartbeatTimeout"
    assert hangs.message == (
        "it was stopped, since it had not called self.heartbeat() for its heartbeat_timeout of 0.5 s"
    )
    assert 0.5 <= ended["hangs"].elapsed < 20
    waits = ended["waits"]
    assert reason_of(waits.outcome) is Reason.RETRY
    assert (waits.outcome.delay, waits.outcome.error_type) == (7, "fbtasks.errors.HeartbeatTimeout")
    assert waits.elapsed >= 1.4


def test_in_the_solo_pool_it_is_an_exception(app):
    @app.task(name="works", bind=True, heartbeat_timeout=0.6, time_limit=30)
    def works(self):
        for _ in range(9):
            time.sleep(0.1)
            self.heartbeat()
        return "done"

    @app.task(name="hangs", bind=True, heartbeat_timeout=0.3, soft_time_limit=20)
    def hangs(self):
        threading.Event().wait(30)

    done, silent = works.delay(), hangs.delay()
    drain(app)
    assert done.get(timeout=5) == "done"
    with pytest.raises(HeartbeatTimeout):
        silent.get(timeout=5)
    works(), works.heartbeat()  # outside of a worker it says nothing


def test_the_memory_that_both_sides_share():
    status = ChildStatus(3)
    try:
        status.begin(1, 7)
        status.begin(2, 8)
        assert status.beaten(7) == status.beaten(8) == 0.0
        before = time.monotonic()
        status.beat(8)
        status.beat(99)
        assert status.beaten(7) == 0.0
        assert before <= status.beaten(8) <= time.monotonic()
        assert status.running().keys() == {7, 8}
        status.end(2)
        assert status.beaten(8) == 0.0
    finally:
        status.close()


@pytest.mark.parametrize("wrong", [0, -1, "5", True])
def test_what_is_no_timeout(app, wrong):
    with pytest.raises(ConfigurationError, match="heartbeat_timeout"):
        app.task(name="t", heartbeat_timeout=wrong)(lambda: 1)
