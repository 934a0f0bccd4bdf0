"""Processes that are stopped for a while all at once: a paused container, a machine that sleeps."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.programs import alive

from fbtasks.queue.register import hosts

WATCHED = """
import sys, time
from fbtasks.firebird import watchdog

killed = []
watchdog.kill_connection = killed.append
watchdog.PATIENCE, watchdog._LOOK, watchdog._LATE = 2.0, 0.1, 0.5
with watchdog.guard("connection"):
    print("waits", flush=True)
    sys.stdin.readline()  # when it goes on
    time.sleep(0.5)
    print(killed, flush=True)
    began = time.monotonic()
    while not killed:
        assert time.monotonic() < began + 20
        time.sleep(0.05)
    print(killed, flush=True)
"""


def test_the_time_for_which_a_process_is_stopped_does_not_count_for_its_watchdog(wait_for):
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: hosts.is_stopped(process.pid))
            time.sleep(3)  # longer than the watchdog's patience
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "[]\n"
            assert process.stdout.readline() == "['connection']\n"  # it still watches
        finally:
            process.kill()


SOURCE = """
    import time

    @app.task
    def nap(seconds):
        time.sleep(seconds)
"""

GETTING = """
import time
from fbtasks import FBTasks, ResultTimeout

app = FBTasks("producer")
while True:
    began = time.monotonic()
    try:
        app.send_task("proj.nap", (0.05,)).get(timeout=40)
    except ResultTimeout:
        pass
    print(time.monotonic() - began, flush=True)
"""


def tree(pids):
    """These processes and all that they have started."""
    found = set(pids)
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]:
        pid, parent = map(int, line.split())
        if parent in found:  # it comes after its parent
            found.add(pid)
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_after_a_pause_of_all_processes_workers_go_on_and_a_timeout_is_kept(project, wait_for):
    """Longer than the watchdog's patience with the embedded engine, in whose calls some are stopped."""
    with project.producer(SOURCE) as producer:
        for number in range(5):
            project.worker("-c", "1", "-n", f"paused{number}")
        assert producer.send_task("proj.nap", (0,)).get(timeout=60) is None
    getting = [
        subprocess.Popen([sys.executable, "-c", GETTING], env=project.env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        assert all(each.stdout.readline() for each in getting)
        workers = [worker for worker, _ in project.workers]
        stopped = tree(each.pid for each in (*workers, *getting))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: all(hosts.is_stopped(pid) for pid in stopped))
        time.sleep(50)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        went_on = time.monotonic()
        assert all([each.stdout.readline() for _ in range(2)] for each in getting)
        assert time.monotonic() - went_on < 60
        assert all(alive(worker.pid) for worker in workers), project.logs()
    finally:
        for each in getting:
            each.kill()
            each.communicate()
