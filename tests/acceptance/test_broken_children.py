"""Tasks that break the process they run in: their worker finds out, says so, and no place is lost."""

import pickle
import socket
import struct
import time

import pytest
from support.sql import one
from support.variants import slow

from fbtasks import WorkerLost
from fbtasks.features.sources.runs import Rest
from fbtasks.features.workflows.plan import Follows, Link, Member, Plan
from fbtasks.features.workflows.replaced import Replaced
from fbtasks.tasks.call import Call, Reason, Requeue, Succeeded
from fbtasks.worker.pools.channel import Hearing
from fbtasks.worker.pools.wire import Ended, pack_message

pytestmark = pytest.mark.acceptance

CALL = Call("add", "default", "application/json", b"[[],{}]")

SOURCE = """
    import asyncio, logging, os, pickle, resource, socket, struct, sys, time
    from pathlib import Path

    hoard = None

    def first(name):
        path = Path(name)
        if path.exists():
            return False
        path.touch()
        return True

    @app.task
    def close_files():
        if first("closed"):
            os.closerange(3, 4096)
        return "again"

    @app.task
    async def close_files_in_the_loop():
        if first("closed in the loop"):
            os.closerange(3, 4096)
        return "again"

    @app.task
    async def close_files_before_a_callback():
        if first("closed before a callback"):
            loop = asyncio.get_running_loop()
            loop.call_soon(os.closerange, 3, 4096)
            loop.call_soon(os.read, 3, 1)
            await asyncio.sleep(600)
        return "again"

    @app.task
    def close_files_and_stay():
        if first("closed and stayed"):
            os.closerange(3, 4096)
            time.sleep(600)
        return "again"

    @app.task
    def use_up_memory():
        global hoard
        if first("used up"):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            size = 1 << 24
            while size > 1:
                try:
                    hoard = hoard, bytearray(size)
                except MemoryError:
                    size //= 2
        return "again"

    def fails(request, value):
        raise ValueError("from the hook")

    def no_record(*_):
        raise TypeError("logging is broken")

    @app.task(on_success=fails)
    def break_logging():
        if first("broke logging"):
            logging.Logger.makeRecord = no_record
        return "again"

    class Exits(logging.Handler):
        def emit(self, record):
            raise SystemExit("from the handler")

    @app.task(on_success=fails)
    def break_the_handler():
        with open("runs", "a") as file:
            file.write("x")
        logging.getLogger().addHandler(Exits())
        return "ran"

    def to_the_worker():
        for fd in range(3, 64):
            try:
                found = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM:
                yield found

    def junk(content):
        for each in to_the_worker():
            each.sendall(struct.pack("=Q", len(content)) + content)

    class Stop:
        def __reduce__(self):
            return exec, ("raise SystemExit('from a task')",)

    JUNK = {
        "bytes": b"no pickle",
        "type": pickle.dumps(("a", "b", "c")),
        "exit": pickle.dumps(Stop()),
    }

    @app.task
    def say_junk(kind):
        if first("said " + kind):
            if kind == "length":
                for each in to_the_worker():
                    each.sendall(struct.pack("=Q", 1 << 60))
            else:
                junk(JUNK[kind])
            time.sleep(600)
        return "again"

    def nothing(*_, **__):
        pass

    def bad_dumps(*_, **__):
        return b"no pickle"

    def stray_dumps(*_, dumps=pickle.dumps, **__):
        return dumps((1 << 40, 0.1, False))

    def trace(frame, *_):
        if frame.f_code.co_name == "pack_message":
            raise ValueError("from the trace function")

    @app.task
    def say_what_cannot_be_read(kind):
        if kind == "dumps":
            pickle.dumps = bad_dumps
        elif kind == "another's":
            pickle.dumps = stray_dumps
        elif kind == "nothing":
            socket.socket.sendall = nothing
        elif kind == "trace":
            sys.settrace(trace)
        elif kind == "bytes":
            junk(JUNK["bytes"])
        elif kind == "a part":
            for each in to_the_worker():
                each.sendall(struct.pack("=Q", 1000))

    @app.task
    def fail_after_a_part():
        for each in to_the_worker():
            each.sendall(struct.pack("=Q", 1000))
        raise ValueError

    @app.task
    def add(a, b):
        return a + b

    @app.task
    def meet(number, of):
        Path(f"met{number}").touch()
        limit = time.monotonic() + 20
        while not all(Path(f"met{each}").exists() for each in range(of)):
            assert time.monotonic() < limit, "not all of them run at once"
            time.sleep(0.01)
        return "met"
"""


@pytest.fixture
def producer(project):
    with project.producer(SOURCE) as app:
        yield app


def test_a_log_handler_that_exits_costs_a_line_and_no_run(project, producer):
    project.worker("-c", "1")
    for _ in range(2):
        assert producer.send_task("proj.break_the_handler").get(timeout=30) == "ran"
    assert (project.folder / "runs").read_text() == "xx"
    log = project.logs()
    assert "a log handler of the application raised SystemExit: from the handler; lines of the log are lost" in log
    assert "ended with exit code" not in log


BREAKING = [
    "close_files",
    "close_files_in_the_loop",
    "close_files_before_a_callback",
    "close_files_and_stay",
    "use_up_memory",
    "break_logging",
]


@pytest.mark.parametrize("pool", [slow("threads"), slow("asyncio"), "processes"])
def test_a_task_that_breaks_its_process_costs_no_place(project, producer, pool):
    worker = project.worker("-c", "2", "-P", pool, "--grace", "1")
    for name in BREAKING:
        before = len(project.logs())
        assert producer.send_task(f"proj.{name}").get(timeout=30) == "again", name
        said = project.logs()[before:]
        assert ") crashed (" in said or "A child process that ran no task ended" in said, (name, said)
    meeting = [producer.send_task("proj.meet", (number, 2)) for number in range(2)]
    assert [each.get(timeout=30) for each in meeting] == ["met", "met"]
    worker.terminate()
    assert worker.wait(20) == 0
    log = project.logs()
    assert "can run no more tasks and ends: a task has closed the file descriptors" in log or pool != "threads"
    assert "can run no more tasks and ends: an error outside of the tasks." in log
    assert "TypeError: logging is broken" in log
    assert "Exception in callback" not in log or pool != "asyncio"


@pytest.mark.parametrize("pool", [slow("threads"), "processes"])
def test_a_child_that_says_what_cannot_be_read_is_replaced_and_its_task_charged(project, producer, pool):
    """With one place for tasks a child of ``threads`` is to its worker what one of ``processes`` is."""
    worker = project.worker("-c", "1", "-P", pool)
    for kind in ("bytes", "type", "exit", "length"):
        assert producer.send_task("proj.say_junk", (kind,)).get(timeout=30) == "again", kind
    assert worker.poll() is None
    log = project.logs()
    assert log.count("by its worker, since it said what cannot be read (") >= 4
    for reason in ("UnpicklingError", "means nothing", "SystemExit", "a message of 1,152,921,504,606,846,976 bytes"):
        assert reason in log
    assert log.count("crashed (crash 1 of 3)") == 4


UNREADABLE = ["dumps", "another's", "nothing", "trace", "bytes", "a part"]


@pytest.mark.parametrize("pool", [slow("threads"), slow("asyncio"), "processes"])
def test_a_task_whose_end_cannot_be_read_is_charged_and_the_others_go_on(project, pool):
    """Its process runs the next task already when the worker finds out."""
    with project.producer("    app = FBTasks('proj', crash_limit=1)" + SOURCE) as producer:
        project.worker("-c", "1", "-P", pool)
        for kind in UNREADABLE:
            if (pool, kind) == ("asyncio", "trace"):
                continue  # what is said is said by another thread
            bad = producer.send_task("proj.say_what_cannot_be_read", (kind,))
            others = [producer.send_task("proj.add", (number, 1)) for number in range(3)]
            assert [other.get(timeout=30) for other in others] == [1, 2, 3], kind
            with pytest.raises(WorkerLost, match=r"since it|exit code 70"):
                bad.get(timeout=30)
        with pytest.raises(WorkerLost, match="since it"):
            producer.send_task("proj.fail_after_a_part").get(timeout=30)
        assert one(producer, "SELECT SUM(CRASH_COUNT) FROM QUEUE_HISTORY WHERE NAME = 'proj.add'") == 0


def test_what_was_said_before_junk_counts_and_nothing_after_it():
    ours, theirs = socket.socketpair()
    hearing = Hearing(ours)
    theirs.sendall(pack_message(Ended(1, Succeeded(keep=False), 0.1, False)))
    data = pickle.dumps(("none", 0.1, False))
    theirs.sendall(struct.pack("=Q", len(data)) + data)
    theirs.sendall(pack_message(Ended(2, Succeeded(keep=False), 0.1, False)))
    assert hearing.messages() == ([Ended(1, Succeeded(keep=False), 0.1, False)], True)
    assert "it said what cannot be read (ValueError: a message of type tuple" in hearing.junk
    assert hearing.messages() == ([], True)
    ours.close()
    theirs.close()


def heard(*outcomes):
    """How many of a child's outcomes its worker believes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hearing = Hearing(ours)
        for each in outcomes:
            theirs.sendall(pack_message(Ended(1, each, 0.1, False)))
        found, over = hearing.messages()
        assert ("means nothing" in hearing.junk) == over
        return len(found)


def test_what_cannot_be_left_of_a_run_is_not_believed():
    def left(rest):
        return Requeue(Reason.RETRY, 1.0, "", extra=rest)

    for rest in ("none", Rest(own="text"), Rest(next=1), Rest(tries="1"), Rest(next_tries=None)):
        assert heard(left(Rest(own=b"", tries=1)), left(rest)) == 1, rest


def test_what_is_no_workflow_is_not_believed():
    for wrong in (
        Replaced(Plan(), 0),
        Replaced("plan", 0),
        Replaced(Plan(nodes=["call"]), 0),
        Replaced(Plan(nodes=[CALL], links=[1]), 0),
        Replaced(Plan(nodes=[CALL], members=None), 0),
        Replaced(Plan(nodes=[CALL], links=[Link(-1, Follows.WITH_RESULT, 0)]), 0),
        Replaced(Plan(nodes=[CALL, None], members=[Member(1, 0, 2)]), 0),
        Replaced(Plan(nodes=[CALL, None], groups={2: False}), 0),
        Replaced(Plan(nodes=[CALL]), 1),
    ):
        assert heard(Replaced(Plan(nodes=[CALL]), 0), wrong) == 1, wrong


class Pieces:
    """A socket that gives a message in pieces, as a child that says a long one does."""

    def __init__(self, data, size):
        self.pieces = iter([data[at : at + size] for at in range(0, len(data), size)])

    def recv(self, *_):
        piece = next(self.pieces, None)
        if piece is None:
            raise BlockingIOError
        return piece


def test_a_long_message_is_not_copied_anew_with_each_piece_of_it():
    data = pickle.dumps((1, 0.1, False, "type", bytes(32 << 20)))
    hearing = Hearing(Pieces(struct.pack("=Q", len(data)) + data, 1 << 15), len(data))
    began = time.thread_time()
    found = []
    while not found:
        found, over = hearing.messages()
        assert not over
    spent = time.thread_time() - began
    assert found[0].outcome.result == bytes(32 << 20)
    began = time.thread_time()
    for _ in range(40):
        bytearray(data)
    assert spent < 0.2 + time.thread_time() - began
