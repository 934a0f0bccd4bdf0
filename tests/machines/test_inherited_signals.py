"""A worker started by what ignores or blocks signals, which it inherits, and one that is process 1 of a container."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.variants import slow

from fbtasks import SoftTimeLimitExceeded

pytestmark = pytest.mark.acceptance

SOURCE = """
    import os, signal, time
    from pathlib import Path

    @app.task
    def die_once():
        if not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "again"

    @app.task(soft_time_limit=0.3)
    def sleep():
        for _ in range(600):
            time.sleep(0.1)  # where no signal interrupts it, it is interrupted in between
"""

REAPING = """
    import os, signal

    def reap(*_):
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass

    signal.signal(signal.SIGCHLD, reap)
"""

INHERITED = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM})
os.execv(sys.executable, [sys.executable, "-m", "fbtasks", *sys.argv[1:]])
"""


@pytest.fixture
def start(project):
    """Starts a worker by a command that is no other worker's, such as one that blocks signals before."""

    def start(*command):
        log = (project.folder / "worker.log").open("a+")
        process = subprocess.Popen([*map(str, command)], cwd=project.folder, env=project.env, stderr=log)
        project.workers.append((process, log))
        return process

    return start


@pytest.mark.parametrize("pool", ["processes", slow("threads"), slow("asyncio"), slow("solo")])
def test_signals_that_were_ignored_or_blocked_are_heard_where_the_worker_answers_them(project, start, pool):
    with project.producer(SOURCE) as producer:
        worker = start(sys.executable, "-c", INHERITED, "worker", "-A", "proj", "-c", "1", "-P", pool)
        if pool != "solo":  # where a task that kills its process kills the worker
            assert producer.send_task("proj.die_once").get(timeout=30) == "again"
        with pytest.raises(SoftTimeLimitExceeded):
            producer.send_task("proj.sleep").get(timeout=30)
        worker.terminate()
        assert worker.wait(30) == 0, project.logs()


@pytest.mark.slow
def test_an_application_that_reaps_all_children_costs_no_place(project, start):
    with project.producer(REAPING + SOURCE) as producer:
        worker = start(sys.executable, "-m", "fbtasks", "worker", "-A", "proj", "-c", "1")
        assert producer.send_task("proj.die_once").get(timeout=30) == "again"
        worker.terminate()
        assert worker.wait(30) == 0, project.logs()


IMPORTING = """
    import time
    from pathlib import Path

    Path("importing").touch()
    time.sleep(600)
"""


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0 or not Path("/proc/self/task").exists(),
    reason="makes a PID namespace",
)
@pytest.mark.no_database
@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGHUP), slow(signal.SIGQUIT)])
def test_process_1_of_a_container_ends_by_a_signal_while_it_imports_the_app(project, start, wait_for, number):
    project.write(IMPORTING)
    container = start(
        *("unshare", "--pid", "--fork", "--kill-child"),
        *(sys.executable, "-m", "fbtasks", "worker", "-A", "proj"),
    )
    wait_for((project.folder / "importing").exists)
    (worker,) = children_of(container.pid)
    os.kill(worker, number)
    assert container.wait(20) == 128 + number
