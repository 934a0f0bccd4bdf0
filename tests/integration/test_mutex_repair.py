"""A process that is killed while it holds a mutex of the engine's does not stop the others for good."""

import contextlib
import ctypes
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from firebird.driver import SrvRepairFlag, connect_server
from support.programs import program, started
from support.variants import slow

from fbtasks.firebird.embedded import mutex_repair
from fbtasks.firebird.embedded.enginefiles import EngineFile

pytestmark = [
    pytest.mark.embedded("a server's engine does not die with its clients"),
    pytest.mark.skipif(not os.path.exists("/proc/self/syscall"), reason="threads cannot be looked at here"),
]

WRITER = """
import sys, time
from fbtasks import FBTasks
app = FBTasks("a", sys.argv[1])
task = app.task(name="t")(lambda: 1)
while True:
    print(task.delay().id, flush=True)
    time.sleep(0.002)
"""
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from integration.test_mutex_repair import events_of, lock
locked = [lock(path, offset) for path, offset in events_of(int(sys.argv[2]))]
print(len(locked), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from integration.test_mutex_repair import lock
locked = lock(sys.argv[2], int(sys.argv[3]))
print("locked", flush=True)
time.sleep(3600)
"""
DELIVERING = """
import sys, threading, time, types
import fbtasks.firebird.events as events
from fbtasks import FBTasks
class Slow(threading.Event):
    def set(self):
        print("delivering", flush=True)
        time.sleep(3600)
events.threading = types.SimpleNamespace(Event=Slow)
app = FBTasks("a", sys.argv[1])
listener = events.Events(app.database.open(), ["fbtasks:queue:default"])
app.task(name="t")(lambda: 1).delay()
time.sleep(3600)
"""
LISTENER = """
import sys
from fbtasks import FBTasks
from fbtasks.firebird.events import Events
app = FBTasks("a", sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
listener = Events(app.database.open(), ["fbtasks:queue:default"])
task = app.task(name="t")(lambda: 1)
while True:
    print(task.delay().id, listener.wait(30), flush=True)
"""
THREADS = """
import sys, threading
from fbtasks import FBTasks
from fbtasks.errors import ConflictError
app = FBTasks("a", sys.argv[1])
task = app.task(name="t")(lambda: 1)
def enqueue():
    connection = app.connect()
    done = 0
    while done < 30:
        try:
            task.using(connection).delay()
            connection.commit()
            task.delay()
        except ConflictError:
            connection.rollback()
        else:
            done += 1
            print(done, flush=True)
threads = [threading.Thread(target=enqueue) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
TABLE_MUTEX_AT = 16
FUTEX_WAIT_BITSET = 9
COND_TO_WORD = (32, 36, 40, 44)  # from a pthread_cond_t to the word that its waiters sleep on: new and old glibc
MUTEX_TO_COND = 40
SHARED_NORMAL = 128


def table_of(pid):
    """The file with the engine's table of locks, as soon as a thread of *pid* waits in it."""
    limit = time.monotonic() + 30
    while not (found := {path for path, _ in events_of(pid) if "fb_lock_" in path}):
        assert time.monotonic() < limit
        time.sleep(0.01)
    (table,) = found
    return table


def events_of(pid):
    """Where in the engine's shared files the mutexes are of the events that threads of *pid* wait for."""
    maps = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and "/.fbtasks/lock/" in parts[5]:
            first, last = (int(part, 16) for part in parts[0].split("-"))
            maps.append((first, last, int(parts[2], 16), parts[5]))
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (word := word_of(task)) is None:
            continue
        for first, last, start, path in maps:
            if first <= word < last:
                at = word - first + start
                found = [offset for each in COND_TO_WORD if is_mutex_of(pid, path, offset := at - each - MUTEX_TO_COND)]
                assert found or word_of(task) != word, f"no event is {COND_TO_WORD} bytes before what {task} waits for"
                yield from ((path, offset) for offset in found)


def word_of(task):
    """The word on which a thread waits for a condition; None when it does not."""
    call = (task / "syscall").read_text().split()
    return int(call[1], 16) if call[0] == "202" and int(call[2], 16) & 127 == FUTEX_WAIT_BITSET else None


def is_mutex_of(pid, path, offset):
    """Returns True when the mutex of an event of *pid* is at that place."""
    with open(path, "rb") as file:
        file.seek(offset - 4)
        data = file.read(24)
    owner, kind = (int.from_bytes(data[at : at + 4], "little") for at in (0, 20))
    return offset % 8 == 0 and owner == pid and kind == SHARED_NORMAL


def lock(path, offset):
    """Locks the mutex that is at *offset* in a file mapped by several processes."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(base + offset)) == 0
    return memory


def test_a_mutex_whose_holder_was_killed_is_freed(url, tmp_path):
    logs = [tmp_path / "one", tmp_path / "two"]
    with contextlib.ExitStack() as stack:
        writers = []
        for log in logs:
            out = stack.enter_context(log.open("wb"))
            writers.append(stack.enter_context(started(WRITER, url, stdout=out)))
            stack.callback(writers[-1].kill)
        wait_for_lines(logs, 10)
        limit = time.monotonic() + 30
        while not kill_one_that_holds_mutexes_of(writers[0].pid):  # it does not wait at each moment
            assert time.monotonic() < limit
        wait_for_lines(logs, max(map(lines, logs)) + 50)


def test_an_idle_process_looks_for_requests_that_nobody_posted(url, tmp_path):
    """Who dies between the note of a request and its event leaves a note that keeps all others from posting again."""
    log = tmp_path / "log"
    script = WRITER.replace("time.sleep(0.002)", "time.sleep(3600)")
    with log.open("wb") as out, started(script, url, stdout=out) as idle:
        try:
            wait_for_lines([log], 1)
            before = posted(idle.pid)
            deadline = time.monotonic() + 30
            while not all(now > then for now, then in zip(posted(idle.pid), before, strict=False)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            idle.kill()


@pytest.mark.parametrize("distance", COND_TO_WORD)
def test_an_event_is_found_by_the_word_that_its_waiters_sleep_on(distance, tmp_path):
    """That word is elsewhere since glibc 2.41."""
    at = 4096
    memory = bytearray(8192)
    struct.pack_into("iiiIiIi", memory, at, 5, os.getpid(), 0, 0, 0, 0, SHARED_NORMAL)
    path = tmp_path / "fb_lock_1"
    path.write_bytes(memory)
    with path.open("r+b") as opened:
        file = EngineFile(str(path), opened.fileno(), path.stat())
    word = at + 8 + MUTEX_TO_COND + distance
    assert mutex_repair._event_of(file, word) == at
    assert mutex_repair._event_of(file, word + 2048) == -1


def test_events_that_cannot_be_found_are_told_once(url, tmp_path):
    """A C library with another layout: the post of own events does nothing there."""
    begin = "import logging; from fbtasks.firebird.embedded import mutex_repair as repair; logging.basicConfig()\n"
    begin += "repair._EVERY = repair._ASKING = 0.01; repair.BLIND = 3\n"
    log, said = tmp_path / "log", tmp_path / "said"
    with log.open("wb") as out, said.open("wb") as err:
        script = begin + "repair._WORDS_AT = ()\n" + WRITER
        with started(script, url, stdout=out, stderr=err) as blind:
            try:
                wait_for_lines([said], 1)
                wait_for_lines([log], lines(log) + 50)
            finally:
                blind.kill()
    assert said.read_bytes().count(b"are not found here (glibc ") == 1
    assert lines(said) == 1


def test_a_process_that_has_closed_its_connections_misses_no_events(url):
    script = """
import sys, threading
from fbtasks import FBTasks
from fbtasks.firebird.embedded import mutex_repair as repair
repair._EVERY = repair._ASKING = 0.01
repair.BLIND = 3
app = FBTasks("x", sys.argv[1])
app.send_task("one")
app.close()
looks, done, look = [], threading.Event(), repair._end_deliveries
def counted(*given):
    looks.append(1)
    if len(looks) > 20:
        done.set()
    return look(*given)
repair._end_deliveries = counted
assert done.wait(60)
"""
    command = [sys.executable, "-c", script, str(url)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_page_that_threads_of_two_processes_want_is_given_up(url, tmp_path):
    """Of two threads that answer a request for a page, each may leave that to the other."""
    logs = [tmp_path / "one", tmp_path / "two"]
    with contextlib.ExitStack() as stack:
        for log in logs:
            out = stack.enter_context(log.open("wb"))
            process = stack.enter_context(started(THREADS, url, stdout=out))
            stack.callback(process.kill)
        wait_for_lines(logs, 120)
    with connect_server("", user="SYSDBA") as server:
        server.database.repair(database=f"{tmp_path}/queue.fdb", flags=SrvRepairFlag.VALIDATE_DB | SrvRepairFlag.FULL)


def test_a_process_that_is_killed_while_it_hands_out_an_event_is_cleared_away(url, tmp_path):
    """Its session is marked as being in use; who comes next waits for the mark to go, and several must not."""
    first, said = tmp_path / "first", tmp_path / "said"
    next_ones = [tmp_path / f"next{n}" for n in range(4)]
    with contextlib.ExitStack() as stack:

        def start(script, log):
            out = stack.enter_context(log.open("wb"))
            process = stack.enter_context(started(script, url, stdin=subprocess.PIPE, stdout=out, text=False))
            stack.callback(process.kill)
            return process

        start(WRITER.replace("time.sleep(0.002)", "time.sleep(3600)"), first)  # keeps what the processes share
        wait_for_lines([first], 1)
        dying = start(DELIVERING, said)
        writers = [start(LISTENER, log) for log in next_ones]
        wait_for_lines([said, *next_ones], 1)
        dying.kill()
        dying.wait()
        for writer in writers:
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        wait_for_lines(next_ones, 20)
        assert [writer.poll() for writer in writers] == [None] * 4
        assert b"corrupt" not in b"".join(log.read_bytes() for log in next_ones)


HELD = rb"thread \d+ has held the engine's fb_lock_\w+ for 3 seconds"
SILENT = rb"the engine has not answered for 3 seconds"


@pytest.mark.parametrize(
    ("patience", "why"),
    [("mutex_repair.PATIENCE", HELD), slow("watchdog.EMBEDDED_PATIENCE", SILENT), ("mutex_repair.PATIENCE", None)],
    ids=["the table is held", "the engine is silent", "another program"],
)
def test_a_process_that_only_works_for_the_queue_leaves_an_engine_that_is_stuck(url, tmp_path, patience, why):
    """A thread that never gives the table of locks back: workers end, other programs are not ended by a library."""
    modules = "from fbtasks.firebird import watchdog; from fbtasks.firebird.embedded import mutex_repair"
    begin = f"import logging; {modules}; {patience} = 3; logging.basicConfig()\n"
    script = begin + ("mutex_repair.exit_when_engine_hangs()\n" if why else "") + WRITER
    log, said = tmp_path / "log", tmp_path / "said"
    with contextlib.ExitStack() as stack:
        files = {"stdout": stack.enter_context(log.open("wb")), "stderr": stack.enter_context(said.open("wb"))}
        writer = stack.enter_context(started(script, url, **files))
        stack.callback(writer.kill)
        wait_for_lines([log], 10)
        table = table_of(writer.pid)
        arguments = (Path(__file__).parents[1], table, TABLE_MUTEX_AT)
        holder = stack.enter_context(started(HOLDER, *arguments, stdout=subprocess.PIPE))
        stack.callback(holder.kill)
        assert holder.stdout.readline() == "locked\n"
        if why:
            assert writer.wait(30) == 75
            assert re.search(why, said.read_bytes())
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(8)
            holder.kill()  # a robust mutex: who waits gets it
            wait_for_lines([log], lines(log) + 10)


COMMAND = """
import sys
from fbtasks.cli import main
from fbtasks.firebird import watchdog
from fbtasks.firebird.embedded import mutex_repair
watchdog.EMBEDDED_PATIENCE = mutex_repair.PATIENCE = 3
main(["inspect", "workers", "--url", sys.argv[1]])
"""
CLIENT = """
import logging, sys
from fbtasks import FBTasks
from fbtasks.firebird import watchdog
watchdog.EMBEDDED_PATIENCE = 3
logging.basicConfig()
app = FBTasks("a", sys.argv[1])
connection = app.connect()  # when all others are dead, what the processes share is made anew
print("ready", flush=True)
sys.stdin.readline()
print(app.send_task("t").id, flush=True)
"""


UNREAPED = """
import os, sys
if os.fork():
    sys.stdin.readline()
    os.wait()
    sys.exit()
print(os.getpid(), flush=True)
"""


@pytest.mark.parametrize("how", ["the table is held", "a process is stopped", "a dead one is not reaped"])
def test_a_command_ends_and_a_client_says_what_to_do_when_the_engine_does_not_answer(url, tmp_path, how):
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:

        def start(script, *arguments, **options):
            process = stack.enter_context(started(script, *arguments, text=False, **options))
            stack.callback(process.kill)
            return process

        is_unreaped = how == "a dead one is not reaped"
        script = UNREAPED + WRITER if is_unreaped else WRITER
        writer = start(script, url, stdin=subprocess.PIPE, stdout=stack.enter_context(log.open("wb")))
        wait_for_lines([log], 10)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        client = start(CLIENT, url, **pipes)
        assert client.stdout.readline() == b"ready\n"
        cause = rb"A process that uses the database is stopped"
        if is_unreaped:
            dead = int(log.read_bytes().split()[0])
            os.kill(dead, signal.SIGKILL)
            cause = b"Process %d .*a zombie.*: end its parent, %d " % (dead, writer.pid)
        elif how == "a process is stopped":
            writer.send_signal(signal.SIGSTOP)
            cause = rb"Process %d .* is stopped: have it go on" % writer.pid
        else:
            table = table_of(writer.pid)
            holder = start(HOLDER, Path(__file__).parents[1], table, TABLE_MUTEX_AT, stdout=subprocess.PIPE)
            assert holder.stdout.readline() == b"locked\n"
        command = start(COMMAND, url, stderr=subprocess.PIPE)
        client.stdin.write(b"\n")
        client.stdin.flush()
        assert re.search(rb"This program waits for the database: .*%b.* end all" % cause, client.stderr.readline())
        assert command.wait(30) == 75
        (said,) = command.stderr.read().splitlines()
        assert re.fullmatch(rb"Error: This process ends: .* for 3 seconds\. %b.* end all processes .*" % cause, said)
        if is_unreaped:
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        for process in [] if is_unreaped else [writer] if how == "a process is stopped" else [writer, holder]:
            process.kill()
            process.wait()  # the engine takes a zombie for alive
        assert client.stdout.readline().strip().isdigit()  # it went on when it could


def posted(pid):
    """How often the events that *pid* waits for have been posted."""
    counters = []
    limit = time.monotonic() + 30
    while not counters:
        assert time.monotonic() < limit
        counters = [Path(path).read_bytes()[at - 8 : at - 4] for path, at in sorted(events_of(pid))]
    return [int.from_bytes(counter, "little") for counter in counters]


def wait_for_lines(logs, count):
    deadline = time.monotonic() + 30
    while min(map(lines, logs)) < count:
        assert time.monotonic() < deadline, [lines(log) for log in logs]
        time.sleep(0.05)


def lines(log):
    return log.read_bytes().count(b"\n")


def kill_one_that_holds_mutexes_of(pid):
    """How many it held."""
    done = program(KILLED, Path(__file__).parents[1], pid)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)
