"""The lock that the workers of one host take turns with: it serves speed, and nothing waits for it without end."""

import os
import signal
import subprocess
import threading
import time

import pytest
from support.programs import started

from fbtasks.firebird.embedded import hostlock
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.embedded("processes on a server need no lock between them")

HOLD = """
    import sys, time
    from fbtasks.url import DatabaseURL
    from fbtasks.firebird.embedded.hostlock import HostLock

    with HostLock(DatabaseURL.parse(sys.argv[1])).held():
        print("held", flush=True)
        {then}
"""


def script(url, then):
    """A process that holds the lock and then does what it is told."""
    process = started(HOLD.replace("{then}", then), url, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(url):
    process = script(url, "time.sleep(1000)")
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def turn(url):
    turn = HostLock(DatabaseURL.parse(url))
    yield turn
    turn.close()


def waited(turn):
    started = time.monotonic()
    with turn.held():
        return time.monotonic() - started


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGSTOP], ids=["asleep", "stopped"])
def test_who_does_not_get_it_goes_on_without_it(turn, holder, caplog, how):
    holder.send_signal(how)
    assert hostlock.PATIENCE <= waited(turn) < hostlock.PATIENCE + 1
    assert sum(waited(turn) for _ in range(5)) < 0.5  # it is not waited for again and again
    assert caplog.text.count("has been locked by others for 3 s") == 1
    holder.kill()
    holder.wait()
    waited(turn)
    second = script(f"{turn_url(turn)}", "time.sleep(0.3)")
    assert waited(turn) > 0.05  # it was free meanwhile, so it is waited for
    second.wait()
    second.stdout.close()


def turn_url(turn):
    return f"firebird://{turn._turn.path.parent.parent}/queue.fdb"


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])
def test_a_process_that_was_forked_from_the_holder_does_not_hold_it(turn, url, fork):
    daemon = f"import ctypes, os; os.setsid(); pid = {fork}; pid or time.sleep(5); pid and os.kill(os.getpid(), 9)"
    process = script(url, daemon)
    assert process.wait(10) == -signal.SIGKILL
    try:
        assert waited(turn) < 0.5
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_threads_of_one_process_take_turns(url):
    inside, most = [], []

    def work():
        turn = HostLock(DatabaseURL.parse(url))
        for _ in range(20):
            with turn.held():
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()
        turn.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (80, 1)
    path = DatabaseURL.parse(url).database
    assert not [turn for turn in hostlock._turns if str(turn).startswith(os.path.dirname(path))]


def test_two_processes_take_turns(turn, url):
    process = script(url, "time.sleep(0.3); print(time.monotonic(), flush=True)")
    with turn.held():
        assert time.monotonic() >= float(process.stdout.readline())
    process.wait()
    process.stdout.close()


def test_a_file_that_was_closed_from_outside_is_gone_on_without(turn):
    os.close(turn._turn._file)
    assert waited(turn) < 0.5


TURNS = """
    import os, sys, time
    from fbtasks.url import DatabaseURL
    from fbtasks.firebird.embedded.hostlock import HostLock

    turn = HostLock(DatabaseURL.parse(sys.argv[1]))
    while True:
        with turn.held():
            print(os.getpid(), flush=True)
            time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def crowd(request, url):
    """Four processes that have the lock for 0.1 s each (or as long as a test says), and want it again at once.

    And a file of what they write.
    """
    reader, writer = os.pipe()
    processes = [started(TURNS, url, getattr(request, "param", 0.1), stdout=writer) for _ in range(4)]
    os.close(writer)
    with open(reader) as said:
        yield processes, said
        for process in processes:
            process.kill()
            process.wait()


def test_it_is_handed_over_in_turn(crowd):
    processes, said = crowd
    met = set()
    while len(met) < len(processes):
        met.add(said.readline())
    had = [said.readline() for _ in range(30)]
    # Who is held up on a busy machine comes some turns later.
    assert all(len(set(had[at : at + 12])) == 4 for at in range(18)), had


@pytest.mark.parametrize("crowd", [0.4], indirect=True)
def test_it_is_waited_for_while_it_goes_from_one_to_the_next(crowd, turn, caplog):
    """And the wait costs no processor."""
    processes, said = crowd
    met = set()
    while len(met) < len(processes):
        met.add(said.readline())
    used = time.process_time()
    assert waited(turn) > 0.2
    assert "has been locked" not in caplog.text
    assert time.process_time() - used < 0.2
