"""The thread that watches waits for the database: what it does when one takes long, with real processes."""

import multiprocessing
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from fbtasks.firebird import watchdog

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def is_dead_and_unreaped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


@pytest.fixture
def dead_child(wait_for):
    """A child of the host program's, which has ended and was not reaped."""
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    wait_for(lambda: is_dead_and_unreaped(child.pid))
    yield child.pid
    child.join()


def test_a_long_wait_for_the_engine_reaps_the_dead_children_of_its_host(dead_child, wait_for):
    with watchdog.guard(None, embedded=True), watchdog.reaping():
        wait_for(lambda: not is_dead_and_unreaped(dead_child))


def test_a_short_wait_leaves_them_to_the_host(dead_child):
    for _ in range(50):
        with watchdog.reaping():
            pass
    assert is_dead_and_unreaped(dead_child)


def test_one_thread_watches_all(dead_child, wait_for, monkeypatch):
    killed = []
    monkeypatch.setattr(watchdog, "PATIENCE", 0.5)
    monkeypatch.setattr(watchdog, "kill_connection", killed.append)
    with watchdog.guard("slow"), watchdog.reaping():
        wait_for(lambda: killed == ["slow"] and not is_dead_and_unreaped(dead_child))
        assert [thread.name for thread in threading.enumerate()].count("fbtasks-watchdog") == 1
        assert not any(thread.name == "fbtasks-reaper" for thread in threading.enumerate())


def test_the_child_of_a_fork_has_a_thread_of_its_own():
    source = """
        import os, threading
        from fbtasks.firebird import watchdog
        def watched():
            with watchdog.guard(None), watchdog.reaping():
                return [thread.name for thread in threading.enumerate()].count("fbtasks-watchdog")
        print(watched(), flush=True)
        child = os.fork()
        if child == 0:
            print(watched(), len(watchdog._waits), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["1", "1 0"]
