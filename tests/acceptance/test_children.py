"""What is sent to children and what they say: nothing is lost between them and their worker, however they end."""

import errno
import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from support.children import child_executor
from support.sql import execute, rows
from support.variants import slow

from fbtasks import FBTasks
from fbtasks.run.interrupts import SOFT
from fbtasks.states import State
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, Crashed, Succeeded
from fbtasks.worker.pools import children, process

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, ctypes, threading, time

    @app.task
    def leave_a_thread():
        threading.Thread(target=time.sleep, args=(600,)).start()

    @app.task
    def nap(seconds): time.sleep(seconds)

    @app.task
    def many_naps():
        for _ in range(120): time.sleep(0.5)

    @app.task
    def hold_the_gil(seconds): ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))

    @app.task(time_limit=0.2)
    def hold_the_gil_for_too_long(): hold_the_gil(600)

    @app.task(time_limit=0.2)
    async def hold_the_loop_for_too_long(): time.sleep(600)

    @app.task(time_limit=0.2)
    def sleep_for_too_long(): time.sleep(600)

    @app.task
    async def nap_in_the_loop(seconds): await asyncio.sleep(seconds)

    @app.task
    def size(text): return len(text)

    @app.task(transactional=True)
    def effect():
        open("inside", "w").close()
        for _ in range(600): time.sleep(0.1)  # a signal just before a sleep does not end it
"""


@pytest.fixture
def executor(request, project, monkeypatch, wait_for):
    """One with one child, in which many short tasks may wait; with so many places in threads, where a test says so.

    Below 0 it is the number of child processes; and of a pool that is named there are three places.
    """
    places = getattr(request, "param", -1)
    if isinstance(places, str):
        pool, places = places, 3
    else:
        pool = "threads" if places > 0 else "processes"
    with child_executor(project, monkeypatch, SOURCE, pool, abs(places)) as executor:
        wait_for(lambda: not executor.collect() and executor.free() >= abs(places))
        executor._average, executor._timed = 0.001, 1_000
        yield executor


def claim(number, name="nap", *arguments):
    payload = json.dumps([arguments, {}]).encode()
    return Claim(number, 99, f"proj.{name}", "default", content_type="application/json", payload=payload)


def collected(executor, wait_for, count):
    ended = {}

    def collect():
        ended.update((finished.claim.id, finished.outcome) for finished in executor.collect())
        return len(ended) >= count

    wait_for(collect)
    return ended


def begun(executor):
    return executor._children[0].status.running() if executor._children else {}


def test_a_task_that_has_ended_is_not_stopped_in_place_of_the_next(executor, wait_for):
    for number, seconds in enumerate((0.01, 0.01, 0.01, 60), start=1):
        assert executor.submit([claim(number, "nap", seconds)]) == []
    wait_for(lambda: 4 in begun(executor))  # the others have ended, which the test has not read
    executor.interrupt(3, Cancelled("cancelled on request"))
    assert {number: type(outcome) for number, outcome in collected(executor, wait_for, 3).items()} == {
        1: Succeeded,
        2: Succeeded,
        3: Succeeded,
    }
    assert 4 in begun(executor)


def test_what_a_child_had_said_before_it_was_killed_counts(executor, wait_for):
    for number, seconds in enumerate((0.01, 0.01, 60), start=1):
        assert executor.submit([claim(number, "nap", seconds)]) == []
    wait_for(lambda: 3 in begun(executor))
    executor.interrupt(3, Cancelled("cancelled on request"))
    ended = collected(executor, wait_for, 3)
    assert isinstance(ended[1], Succeeded)
    assert isinstance(ended[2], Succeeded)
    assert ended[3] == Cancelled("cancelled on request")


def test_what_begins_after_a_stopped_task_is_given_back_and_not_charged(project, executor, wait_for):
    assert executor.submit([claim(1, "effect")]) == []
    wait_for((project.folder / "inside").exists)
    executor.interrupt(1, Cancelled("cancelled on request"))
    for number, seconds in enumerate((0.01, 60), start=2):
        assert executor.submit([claim(number, "nap", seconds)]) == []
    wait_for(lambda: 3 in begun(executor))
    ended = collected(executor, wait_for, 3)
    assert ended[1] == Cancelled("cancelled on request")
    assert isinstance(ended[2], Succeeded)
    assert ended[3] == RELEASED


@pytest.mark.parametrize("executor", [-1, 2], indirect=True)
def test_a_task_is_not_sent_to_a_child_in_which_an_earlier_run_of_it_goes_on(executor, wait_for):
    assert executor.submit([claim(1, "nap", 60)]) == []
    wait_for(lambda: 1 in begun(executor))
    assert executor.submit([claim(1, "nap", 60)]) == [claim(1, "nap", 60)]
    assert executor.submit([claim(2, "nap", 0)]) == []


@pytest.mark.parametrize("executor", [-3], indirect=True)
def test_claims_that_are_submitted_together_go_to_all_children_in_turn(executor):
    assert executor.submit([claim(number, "nap", 0.2) for number in range(1, 10)]) == []
    assert [[*child.running] for child in executor._children] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


def test_a_child_that_is_too_large_from_the_start_serves_without_a_folder_for_temporary_files(project):
    folder = project.folder / "temporary"
    folder.mkdir()
    project.env["TMPDIR"] = str(folder)
    with project.producer(SOURCE) as producer:
        project.worker("-c", "1", "--max-memory-per-child", "1")
        assert producer.send_task("proj.size", ("x" * 30_000,)).get(timeout=30) == 30_000
        shutil.rmtree(folder)
        assert producer.send_task("proj.size", ("x" * 30_001,)).get(timeout=30) == 30_001


def test_a_claim_that_cannot_be_sent_is_not_taken_and_sent_later(executor, wait_for, monkeypatch, caplog):
    def fails(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    large = claim(1, "size", "x" * 30_000)
    with monkeypatch.context() as patch:
        patch.setattr("os.memfd_create", fails)
        assert executor.submit([large]) == [large]
    assert executor.busy() == []
    assert executor.free() == 0
    assert executor.deadline() is not None
    assert "Task 1 (proj.size) could not be sent to a child process: [Errno 24] Too many open files" in caplog.text
    wait_for(executor.free)
    assert executor.submit([large]) == []
    assert isinstance(collected(executor, wait_for, 1)[1], Succeeded)


@pytest.mark.parametrize("executor", [30], indirect=True)
def test_a_child_that_does_not_read_does_not_hold_up_its_worker(executor, wait_for):
    numbers = range(1, 30)
    for number in numbers:
        assert executor.submit([claim(number, "many_naps")]) == []
    wait_for(lambda: len(begun(executor)) == len(numbers))
    assert executor.submit([claim(30, "hold_the_gil", 5)]) == []
    wait_for(lambda: 30 in begun(executor))
    (child,) = executor._children
    child._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # a few words
    for number in numbers:
        child.interrupt(child.running[number], SOFT)
    assert child.unsent, "there was room for all"
    assert 30 in begun(executor)
    ended = collected(executor, wait_for, 30)
    assert isinstance(ended.pop(30), Succeeded)
    assert all("SoftTimeLimitExceeded" in outcome.error_type for outcome in ended.values())


@pytest.mark.parametrize(
    ("executor", "guilty", "neighbour"),
    [
        ("threads", "hold_the_gil_for_too_long", "nap"),
        ("asyncio", "hold_the_loop_for_too_long", "nap_in_the_loop"),
        slow("asyncio", "hold_the_gil_for_too_long", "nap"),
    ],
    indirect=["executor"],
)
def test_neighbours_of_a_task_that_holds_the_interpreter_or_the_loop_run_again(
    executor, wait_for, monkeypatch, guilty, neighbour
):
    monkeypatch.setattr(process, "_LOOK", 0.1)
    assert executor.submit([claim(1, neighbour, 60), claim(2, neighbour, 60)]) == []
    wait_for(lambda: len(begun(executor)) == 2)
    assert executor.submit([claim(3, guilty)]) == []
    ended = collected(executor, wait_for, 3)
    assert ended[3].error_type == "fbtasks.errors.TimeLimitExceeded"
    for crashed in (ended[1], ended[2]):
        assert isinstance(crashed, Crashed)
        assert not crashed.charged
        assert "it answered nothing for 0.5 s while a task in it was to stop" in crashed.message
    wait_for(lambda: not executor.collect() and executor.free() >= 3)  # in another process


@pytest.mark.parametrize("executor", ["threads", slow("asyncio")], indirect=True)
def test_a_process_that_answers_is_not_killed_for_a_task_that_does_not_stop(executor, wait_for, monkeypatch):
    monkeypatch.setattr(process, "_LOOK", 0.05)
    monkeypatch.setattr(process, "_UNANSWERED", 300)  # the machine may be busy
    (child,) = executor._children
    assert executor.submit([claim(1, "sleep_for_too_long"), claim(2, "nap", 600)]) == []
    asked = {None}

    def has_answered():
        executor.collect()
        asked.add(child._asked)
        return len(asked) > 10

    wait_for(has_answered)
    assert begun(executor).keys() == {1, 2}


@pytest.mark.parametrize("executor", [-3], indirect=True)
def test_idle_children_have_one_time_to_end_in_together(executor, wait_for, monkeypatch, caplog):
    """The log says what the worker waits for."""
    monkeypatch.setattr(children, "_LEISURE", 1.5)
    executor._average, executor._timed = 1.0, 1
    for number in range(1, 4):
        assert executor.submit([claim(number, "leave_a_thread")]) == []
    collected(executor, wait_for, 3)
    processes = [child.process for child in executor._children]
    began = time.monotonic()
    assert executor.stop(lambda: False) == []
    assert time.monotonic() - began < 3
    assert [process.how_it_ended() for process in processes] == ["by signal 9 (SIGKILL)"] * 3
    pids = ", ".join(str(process.pid) for process in processes)
    assert caplog.messages == [
        f"Waiting up to 1.5 s for the end of child processes that run no task (pid {pids}): one that they have run has "
        "left a thread or an exit handler. A second signal stops them."
    ]


def test_a_second_signal_leaves_idle_children_no_time(project, wait_for):
    project.write(SOURCE)
    producer = FBTasks("producer", project.url)
    worker = project.worker("-c", "1")
    producer.send_task("proj.leave_a_thread").get(timeout=30)
    producer.close()
    worker.terminate()
    wait_for(lambda: "Signal SIGTERM" in project.logs())
    time.sleep(1.2)  # before that it would count as the same signal
    worker.terminate()  # once: a third one could meet the end of the process
    wait_for(lambda: "SIGTERM again" in project.logs(), 8)
    assert worker.wait(5) == 0


SLOW_IMPORT = """
    import sys, time
    from pathlib import Path

    if "fbtasks.worker.pools.child" in sys.orig_argv:
        with open("imports", "a") as file:
            file.write("x")
        while Path("hold").exists():
            time.sleep(0.01)

    @app.task
    def add(a, b): return a + b
"""


@pytest.mark.parametrize("pool", ["threads", slow("asyncio")])
def test_a_suspect_is_not_charged_with_a_death_of_its_process_before_that_has_imported_the_app(project, wait_for, pool):
    project.write(SLOW_IMPORT)
    producer = FBTasks("producer", project.url)
    imports = project.folder / "imports"
    worker = project.worker("-c", "2", "-P", pool)
    assert producer.send_task("proj.add", (1, 2)).get(timeout=30) == 3
    (project.folder / "hold").touch()
    result = producer.send_task("proj.add", (3, 4), countdown=1)
    execute(producer, "UPDATE QUEUE_TASK SET SUSPECT = 1")
    wait_for(lambda: imports.read_text() == "xx")
    assert rows(producer, "SELECT STATE FROM QUEUE_TASK") == [(State.RUNNING,)]
    started = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    os.kill(int(started[-1]), signal.SIGKILL)
    (project.folder / "hold").unlink()
    assert result.get(timeout=30) == 7
    assert rows(producer, "SELECT CRASH_COUNT FROM QUEUE_HISTORY WHERE ID = ?", int(result.id)) == [(0,)]
    assert "A child process could not be replaced" in project.logs()
    producer.close()


@pytest.mark.parametrize("pool", ["threads", slow("processes"), slow("solo")])
def test_a_suspect_runs_alone_and_counts_as_any_other_then(project, pool):
    with project.producer(SLOW_IMPORT) as producer:
        results = [producer.send_task("proj.add", (number, 1)) for number in range(3)]
        execute(producer, "UPDATE QUEUE_TASK SET SUSPECT = 1")
        worker = project.worker("-c", "2", "-P", pool)
        assert [result.get(timeout=30) for result in results] == [1, 2, 3]
        worker.terminate()
        assert worker.wait(20) == 0
        assert "3 succeeded" in project.logs()
