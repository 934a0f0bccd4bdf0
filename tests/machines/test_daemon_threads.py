"""Programs that end while other threads of theirs use the database."""

import subprocess

import pytest
from support.programs import started
from support.variants import slow

PROGRAM = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from fbtasks import FBTasks
app = FBTasks("a", sys.argv[1])
task = app.task(name="t")(lambda: 1)
used = threading.Semaphore(0)

def delay():
    while True:
        task.delay()
        used.release()

def get():
    result = task.delay()
    while True:
        try:
            result.get(timeout=0.05)
        except TimeoutError:
            used.release()

def connect():
    while True:
        with app.connect() as connection, connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute("SELECT RDB$FIELD_NAME FROM RDB$FIELDS").fetchall()
                used.release()

def count():
    with app.connect() as connection, connection.cursor() as cursor:
        used.release()
        cursor.execute("SELECT COUNT(*) FROM RDB$FIELDS A, RDB$FIELDS B, RDB$FIELDS C").fetchone()

def wait():
    with app.connect() as connection, app.connect() as other:
        connection.execute_immediate("UPDATE QUEUE_SCHEMA SET NAME = NAME")
        used.release()
        other.execute_immediate("UPDATE QUEUE_SCHEMA SET NAME = NAME")

task.delay()
for name in sys.argv[2].split():
    threading.Thread(target=globals()[name], daemon=True).start()
if sys.argv[2]:
    assert used.acquire(timeout=30)
"""


def end(url, threads, last="sys.exit(7)", runs=1):
    """What *runs* programs end with that run side by side: their statuses, and what they have said."""
    programs = [started(f"{PROGRAM}\n{last}", url, threads, stderr=subprocess.PIPE) for _ in range(runs)]
    try:
        said = [program.communicate(timeout=60)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    return [program.returncode for program in programs], said


@pytest.mark.parametrize("runs", [3, slow(12)])
def test_a_program_whose_daemon_threads_use_the_database_ends_with_its_own_status(url, runs):
    statuses, said = end(
        url, "delay delay get connect", "for _ in range(12): used.acquire(timeout=30)\nsys.exit(7)", runs
    )
    assert (statuses, said) == ([7] * runs, [""] * runs)


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["count", "wait"])
def test_a_call_that_would_take_long_is_cancelled(url, threads):
    assert end(url, threads, "import time; time.sleep(0.2); sys.exit(7)") == ([7], [""])


@pytest.mark.slow
def test_where_a_call_cannot_be_ended_the_engine_is_left_alone(url):
    last = "from fbtasks.firebird.driver import ending; ending.PATIENCE = 0; import time; time.sleep(0.5); sys.exit(7)"
    assert end(url, "count count delay", last) == ([7], [""])


@pytest.mark.slow
@pytest.mark.parametrize("runs", [12])
def test_threads_of_an_executor_end_their_calls_first(url, runs):
    last = "pool = ThreadPoolExecutor(3)\nfor _ in range(9): pool.submit(task.delay)\nsys.exit(7)"
    statuses, said = end(url, "", last, runs=runs)
    assert (statuses, said) == ([7] * runs, [""] * runs)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio", "solo"])
def test_a_worker_ends_though_its_tasks_left_threads(project, app, pool):
    project.write("""
        import threading

        @app.task
        def leave():
            begun = threading.Event()

            def go_on():
                while True:
                    app.send_task("told", queue="nowhere")
                    begun.set()

            for _ in range(3):
                threading.Thread(target=go_on, daemon=True).start()
            begun.wait(20)
    """)
    app.send_task("proj.leave")
    done = project.run("worker", "-A", "proj", "--burst", "--pool", pool, "-Q", "default", process=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
