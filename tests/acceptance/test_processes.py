"""The processes that a worker starts: signals reach no other process, and what they leave behind ends with them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from fbtasks.queue.register import hosts
from fbtasks.run.interrupts import SOFT
from fbtasks.tasks.call import Claim
from fbtasks.worker.pools.process import Child, Run
from fbtasks.worker.pools.processes import Process

pytestmark = pytest.mark.acceptance
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
CLAIM = Claim(1, 1)


def another(pid):
    """A process of another program with that process number, the leader of a group of its own; None: it was taken."""
    LAST_PID.write_text(str(pid - 1))
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    if process.pid == pid:
        return process
    process.kill()
    process.wait()
    return None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="process numbers cannot be chosen here")
def test_a_child_that_was_reaped_is_not_taken_for_whoever_has_its_number_now(wait_for):
    child = Child("processes", "nosuch", 1, 1, 1, "INFO")
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.process.wait(30)
    stranger = wait_for(lambda: another(child.process.pid))
    try:
        child.interrupt(Run(CLAIM, 0.0), SOFT)
        child.close()
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.2)
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_process_leaves_behind_is_killed_when_it_dies(tmp_path, monkeypatch, wait_for):
    (tmp_path / "leaves.py").write_text(
        "import subprocess, sys\n"
        "print(subprocess.Popen(['sleep', '60']).pid, file=open('left', 'w'), flush=True)\n"
        "sys.exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = Process("leaves", (), ())
    assert process.wait(30)
    assert process.how_it_ended() == "with exit code 3"
    process.signal(signal.SIGTERM)  # has no process to go to
    process.close()
    left = int((tmp_path / "left").read_text())
    wait_for(lambda: hosts.start_ticks(left) in (0, hosts.ENDED), 5)
