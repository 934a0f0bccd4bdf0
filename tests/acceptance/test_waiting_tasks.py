"""Short tasks wait in the children's sockets: never behind a long one, and untouched by the death of the child."""

import time

import pytest
from support.sql import rows
from support.variants import slow

from fbtasks import FBTasks
from fbtasks.queue import tasks

pytestmark = pytest.mark.acceptance

SOURCE = """
    import ctypes, os, signal, time

    @app.task
    def short(): time.sleep(0.001)

    @app.task
    def long(seconds):
        open(f"long-{os.getpid()}", "w").close()
        time.sleep(seconds)

    @app.task
    def hold_the_lock(seconds):
        open(f"long-{os.getpid()}", "w").close()
        libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock
        libc.usleep(int(seconds * 1_000_000))

    @app.task(max_retries=0)
    def kill_itself(): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def producer(project):
    project.write(SOURCE)
    app = FBTasks("producer", project.url)
    app.migrate()
    yield app
    app.close()


def finished(producer, name):
    sql = "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE NAME = ? AND STATE = 10"
    return rows(producer, sql, f"proj.{name}")[0][0]


def send(producer, name, count, *args):
    with producer.database.session() as session:
        calls = [producer.enqueuer.make_call(f"proj.{name}", args, {}) for _ in range(count)]
        session.run(lambda t: tasks.enqueue(t, calls))


@pytest.mark.parametrize(
    ("pool", "places", "occupied"),
    [("processes", 3, ["long", "hold_the_lock"]), ("threads", 2, ["long"]), slow("asyncio", 2, ["long"])],
)
def test_nothing_waits_behind_a_long_task_while_another_executor_is_free(
    project, producer, wait_for, pool, places, occupied
):
    """A child of ``asyncio`` with a function in a thread is to its worker what one of ``threads`` is; in both the
    executors share one interpreter, with its lock.
    """
    send(producer, "short", 60)  # the worker learns how short they are
    for task in occupied:
        send(producer, task, 1, 60)  # the test does not wait for it
        send(producer, "short", 60)
    project.worker("-c", str(places), "--pool", pool)
    wait_for(lambda: len(list(project.folder.glob("long-*"))) == len(occupied))
    begun = time.monotonic()
    wait_for(lambda: finished(producer, "short") == 60 + 60 * len(occupied))
    for task in occupied:
        assert finished(producer, task) == 0, f"the short ones took {time.monotonic() - begun:.1f} s"


def test_what_waits_in_a_worker_that_is_busy_for_long_goes_to_another(project, producer, wait_for):
    send(producer, "short", 60)
    producer.send_task("proj.long", (60,))
    send(producer, "short", 100)
    project.worker("-c", "1", "-n", "first")
    wait_for(lambda: list(project.folder.glob("long-*")))
    wait_for(lambda: rows(producer, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2") == [(1,)])
    project.worker("-c", "1", "-n", "second")
    wait_for(lambda: finished(producer, "short") == 160)
    assert finished(producer, "long") == 0


def test_what_waited_in_a_child_that_died_is_not_charged(project, producer, wait_for):
    send(producer, "short", 60)
    for _ in range(2):
        producer.send_task("proj.kill_itself")
        send(producer, "short", 50)
    project.worker("-c", "1")
    wait_for(lambda: rows(producer, "SELECT COUNT(*) FROM QUEUE_TASK") == [(0,)], 60)
    assert finished(producer, "short") == 160
    sql = "SELECT NAME, SUM(CRASH_COUNT), MAX(TRY_COUNT) FROM QUEUE_HISTORY GROUP BY NAME ORDER BY NAME"
    crashes = rows(producer, sql)
    assert crashes == [("proj.kill_itself", 6, 0), ("proj.short", 0, 1)]


def test_a_worker_that_is_stopped_gives_back_what_waits(project, producer, wait_for):
    send(producer, "short", 60)
    producer.send_task("proj.long", (60,))
    send(producer, "short", 100)
    worker = project.worker("-c", "1", "--grace", "0.5")
    wait_for(lambda: list(project.folder.glob("long-*")))
    worker.terminate()
    assert worker.wait(30) == 0
    sql = "SELECT STATE, TRY_COUNT, CRASH_COUNT, COUNT(*) FROM QUEUE_TASK GROUP BY STATE, TRY_COUNT, CRASH_COUNT"
    state = rows(producer, sql)
    assert state == [(0, 0, 0, 101)]
    assert "goes back to its queue" in project.logs()
