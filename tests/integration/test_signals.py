"""Signals of the host program: its handlers stay its own, also while it is inside the driver."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.programs import program, started
from support.signals import as_in_a_terminal

from fbtasks import FBTasks, SoftTimeLimitExceeded
from fbtasks.firebird.embedded.lockdir import exclusive, folder_of

ATTACH = """
import os, signal, sys, threading
from fbtasks import FBTasks
app = FBTasks("a", {url!r})
def use():
    app.connect().close()
    app.AsyncResult(1).status
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
{how}
assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
print("ready", flush=True)
threading.Event().wait(60)
"""
MAIN = "use()"
THREADS = """
threads = [threading.Thread(target=use) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("how", [MAIN, THREADS], ids=["main", "threads"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_only_enqueues_dies_of_signals_as_any_other(url, how, number):
    with as_in_a_terminal():
        process = started(ATTACH.format(url=url, how=how), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    start = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -number
    assert time.monotonic() - start < 5
    if number is signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert errors == ""


SIGNALLED = """
import os, signal, subprocess, sys
from fbtasks import FBTasks
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
send = "import os, sys, time\\nprint(flush=True)\\nwhile True: os.kill(int(sys.argv[1]), 15), time.sleep(0.001)"
sender = subprocess.Popen([sys.executable, "-c", send, str(os.getpid())], stdout=subprocess.PIPE)
sender.stdout.readline()
app = FBTasks("x", sys.argv[1])
app.task(name="t")(lambda: 1).delay()
app.close()
before = len(heard)
while len(heard) < before + 10:
    pass
sender.kill()
sender.wait()
print("done")
"""


def test_a_signal_that_comes_while_a_program_connects_for_the_first_time_is_its_own(url):
    """The client library's handler, which shuts the engine down, is there for a moment."""
    done = program(SIGNALLED, url)
    assert done.stdout == "done\n", done.stderr


class Elapsed(Exception):
    """An error of the application's, as the soft time limit of Celery is."""


@pytest.fixture
def interrupt(wait_for):
    """Raises *error* in the main thread, from the handler of a signal, once that thread rests in code of *file*."""
    main, threads, raised = threading.get_ident(), [], []
    before = signal.getsignal(signal.SIGUSR1)

    def start(file, error, then=lambda: None):
        looks = []

        def rests():
            frame = sys._current_frames()[main]
            looks.append((os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, frame.f_lasti))
            return looks[-1][0] == file and looks[-5:] == looks[-1:] * 5

        def ring(*_):
            if not raised:
                raised.append(error)
                raise error

        def watch():
            try:
                wait_for(rests)
                signal.pthread_kill(main, signal.SIGUSR1)
            finally:
                then()
            while not raised:
                signal.pthread_kill(main, signal.SIGUSR1)
                time.sleep(0.01)

        signal.signal(signal.SIGUSR1, ring)
        threads.append(threading.Thread(target=watch))
        threads[0].start()

    yield start
    raised.append(None)
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads")
@pytest.mark.parametrize("error", [Elapsed("soft"), SoftTimeLimitExceeded()], ids=type)
def test_what_the_handler_of_a_signal_raises_inside_the_driver_reaches_the_caller(app, interrupt, error):
    make = app.task(name="t")(lambda: 1)
    make.delay()
    holder = app.connect()
    make.using(holder).apply_async(task_id="held")
    interrupt("interfaces.py", error, then=holder.rollback)
    with pytest.raises(type(error)) as caught:
        make.apply_async(task_id="held")  # waits for the other transaction
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert not make.apply_async(task_id="held").duplicate
    holder.close()


@pytest.mark.no_database
@pytest.mark.embedded("it waits for a lock file")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads")
def test_what_the_handler_of_a_signal_raises_in_the_first_connection_reaches_the_caller(url, interrupt):
    app = FBTasks("a", url)
    interrupt("lockdir.py", TimeoutError("alarm"))
    with exclusive(folder_of(app.settings.url.database) / "create.lock"), pytest.raises(TimeoutError, match="alarm"):
        app.migrate()
    assert app.migrate()
    app.close()


HOLDING = """
import os, signal, subprocess, sys
from fbtasks.firebird.signals import held_signals
came = []
signal.signal(signal.SIGTERM, lambda *_: came.append("TERM"))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_DFL)
with held_signals():
    with held_signals():
        pass
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGINT
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program.terminate()
    assert program.wait() == -signal.SIGTERM
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert came == []
assert came == ["TERM"]
os.kill(os.getpid(), signal.SIGTERM)
assert came == ["TERM", "TERM"]
os.kill(os.getpid(), signal.SIGHUP)
"""


def test_signals_that_are_held_are_answered_at_the_end_and_are_not_held_in_other_processes():
    done = program(HOLDING)
    assert done.returncode == 0, done.stderr
