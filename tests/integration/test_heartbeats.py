"""heartbeat_timeout: a task that does not say for so long that it is at work is stopped, as at its time_limit."""

import threading
import time

import pytest

from fbtasks import ConfigurationError, HeartbeatTimeout
from fbtasks.testing import drain
from fbtasks.worker.pools.child_status import ChildStatus


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
