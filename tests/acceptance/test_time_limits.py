"""Since when the time of a task with limits runs: since it has begun in its child, not since it was sent there."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.children import child_executor

from fbtasks.tasks.call import Claim, Failed

pytestmark = pytest.mark.acceptance
LIMIT = 0.8
SOURCE = f"""
    import time

    @app.task(time_limit={LIMIT})
    def naps():
        while True:
            time.sleep(0.02)
"""


@pytest.fixture(params=["processes", "threads", "asyncio"])
def executor(request, project, monkeypatch):
    with child_executor(project, monkeypatch, SOURCE, request.param) as executor:
        yield executor


def is_stopped(pid):
    """Whether each thread of the process has stopped: a signal takes effect a moment after it was sent."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


def test_the_time_of_a_task_runs_since_it_has_begun(executor, wait_for):
    wait_for(lambda: executor.collect() or executor.free())
    (child,) = executor._children
    os.kill(child.process.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(child.process.pid))
    payload = json.dumps([[], {}]).encode()
    claim = Claim(1, 99, "proj.naps", "default", content_type="application/json", payload=payload)
    assert executor.submit([claim]) == []
    held_until = time.monotonic() + 1.5 * LIMIT
    looks = 0
    while time.monotonic() < held_until:
        assert executor.collect() == []
        looks += time.monotonic() > executor.deadline()
        time.sleep(0.02)
    assert looks <= 3  # it is looked at again when its time would be over had it begun now, and not all the while
    os.kill(child.process.pid, signal.SIGCONT)
    begun = wait_for(lambda: child.status.running().get(1))
    (finished,) = wait_for(executor.collect)
    assert isinstance(finished.outcome, Failed)
    assert "time_limit" in finished.outcome.message
    assert time.monotonic() - begun >= LIMIT
    assert finished.elapsed >= LIMIT
