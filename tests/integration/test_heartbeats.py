"""heartbeat_timeout: a task that does not say for so long that it is at work is stopped, as at its time_limit."""

import threading
import time

import pytest

from fbtasks import HeartbeatTimeout
from fbtasks.testing import drain


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
