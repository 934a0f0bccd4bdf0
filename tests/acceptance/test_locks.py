"""Rows that another transaction holds: none of them stops a worker, or holds up what has nothing to do with it."""

import signal
import subprocess
import time
from collections import Counter
from contextlib import closing

import pytest
from support.crew import Crews
from support.programs import started
from support.sql import execute, held, one, rows
from support.variants import CHILDREN, slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import os, time

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.01)

    @app.task(bind=True)
    def note(self, n, until=None):
        with open("ledger", "a") as file:
            file.write(f"{n}\\n")
        if until:
            wait_for(until)
        return n

    @app.task(bind=True, transactional=True)
    def effect(self, n, until=None):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?)", (n,))
        with open("ledger", "a") as file:
            file.write(f"{n}\\n")
        if until:
            wait_for(until)
        return n

    def tell(request, error):
        with open("told", "w") as file:
            file.write(f"{type(error).__name__}: {error}")

    @app.task(on_failure=tell)
    def bad(until):
        open("begun", "w").close()
        wait_for(until)
        raise ValueError(until)

    @app.task(bind=True, transactional=True)
    def ask(self, number):
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT DONE FROM FBTASKS_TASKS.CANCEL(?)", (number,)).fetchall()
        open("go", "w").close()
        time.sleep(1)
"""
TABLE = "CREATE TABLE EFFECT (N INTEGER)"
HOLD = """
import sys, time
from fbtasks.url import DatabaseURL
from fbtasks.firebird.embedded.hostlock import HostLock

with HostLock(DatabaseURL.parse(sys.argv[1])).held():
    print("held", flush=True)
    time.sleep(1000)
"""
BLOCKED = "cannot be recorded while another transaction holds"


@pytest.fixture
def producer(project):
    with project.producer(SOURCE, TABLE) as app:
        yield app


@pytest.fixture(scope="module")
def crews(make_project):
    with closing(Crews(make_project, SOURCE, TABLE, clear=["EFFECT"])) as crews:
        yield crews


def ran(project):
    return Counter(map(int, project.lines()))


@pytest.mark.parametrize("pool", CHILDREN)
def test_a_locked_row_of_a_task_that_runs_holds_up_that_task_alone(crew, wait_for, pool):
    worker = crew.worker("-c", "2", "--pool", pool)
    blocked = worker.send("note", (1, "go"))
    wait_for(lambda: ran(crew.project)[1])
    with held(crew.producer, "QUEUE_TASK", int(blocked.id)) as free:
        (crew.project.folder / "go").touch()
        wait_for(lambda: BLOCKED in worker.log())
        for n in range(10, 20):
            assert worker.send("note", (n,)).get(timeout=5) == n
        assert not blocked.ready()
        free()
    assert blocked.get(timeout=10) == 1
    assert ran(crew.project) == Counter([1, *range(10, 20)])
    assert worker.log().count(BLOCKED) == 1
    assert "The database is away" not in worker.log()


def test_a_failed_task_whose_row_is_locked_gives_its_place_back_and_its_hook_is_called_later(crew, wait_for):
    worker = crew.worker("-c", "1")
    blocked = worker.send("bad", ("go",))
    folder = crew.project.folder
    wait_for((folder / "begun").exists)
    with held(crew.producer, "QUEUE_TASK", int(blocked.id)) as free:
        (folder / "go").touch()
        for n in range(2, 5):
            assert worker.send("note", (n,)).get(timeout=10) == n
        assert not (folder / "told").exists()
        free()
    wait_for(lambda: (folder / "told").exists() and (folder / "told").read_text())
    assert (folder / "told").read_text() == "ValueError: go"


def test_a_worker_that_drains_waits_for_a_locked_row_within_its_grace(project, producer, wait_for):
    worker = project.worker("-c", "2", "--grace", "0.5")
    lost, other = producer.send_task("proj.note", (1, "go")), producer.send_task("proj.note", (2, "go"))
    wait_for(lambda: len(ran(project)) == 2)
    with held(producer, "QUEUE_TASK", int(lost.id)) as free:
        worker.send_signal(signal.SIGTERM)
        (project.folder / "go").touch()
        assert worker.wait(10) == 0
        free()
    assert f"The outcome of task {lost.id} (proj.note) is lost" in project.logs()
    assert other.get(timeout=0.5) == 2
    (project.folder / "go").unlink()
    worker = project.worker("-c", "2")
    wait_for(lambda: ran(project)[1] == 2)  # it runs again
    before = project.logs().count(BLOCKED)
    with held(producer, "QUEUE_TASK", int(lost.id)) as free:
        worker.send_signal(signal.SIGTERM)
        wait_for(lambda: "Waiting up to 30 s" in project.logs())
        (project.folder / "go").touch()
        wait_for(lambda: project.logs().count(BLOCKED) > before)
        assert worker.poll() is None
        free()
    assert worker.wait(10) == 0
    assert lost.get(timeout=0.5) == 1
    assert ran(project) == Counter([1, 1, 2])
    assert one(producer, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_a_producer_that_asks_twice_to_cancel_its_task_and_does_not_commit_holds_up_nobody(crew, wait_for):
    worker = crew.worker("-c", "2", "--pool", "processes")
    running = worker.send("note", (1, "go"))
    wait_for(lambda: ran(crew.project)[1])
    ask = f"SELECT DONE FROM FBTASKS_TASKS.CANCEL({running.id})"
    with crew.producer.connect() as connection:
        cursor = connection.cursor()
        assert cursor.execute(ask).fetchall() == [(2,)]
        connection.commit()
        assert cursor.execute(ask).fetchall() == [(2,)]
        (crew.project.folder / "go").touch()
        assert running.get(timeout=5) == 1
        assert worker.send("note", (2,)).get(timeout=5) == 2
        before = beaten(crew.producer, worker)
        wait_for(lambda: beaten(crew.producer, worker) != before)  # which deletes requests whose tasks have ended
        connection.commit()
    wait_for(lambda: one(crew.producer, "SELECT COUNT(*) FROM QUEUE_CANCEL") == 0)
    assert "The database is away" not in worker.log()
    assert BLOCKED not in worker.log()


def test_a_locked_row_of_a_worker_holds_up_nothing(crew, wait_for):
    worker = crew.worker("-c", "1")
    assert worker.send("note", (1,)).get(timeout=10) == 1
    with held(crew.producer, "QUEUE_PROCESS", registered(crew.producer, worker, "ID")) as free:
        wait_for(lambda: "its lease is not renewed" in worker.log())
        until = time.monotonic() + 5  # longer than a worker may be silent before it asks whether it was declared dead
        n = 2
        while time.monotonic() < until:
            assert worker.send("note", (n,)).get(timeout=2) == n
            time.sleep(0.1)
            n += 1
        free()
    before = beaten(crew.producer, worker)
    wait_for(lambda: beaten(crew.producer, worker) != before)
    assert worker.log().count("its lease is not renewed") == 1
    assert "The database is away" not in worker.log()


def registered(producer, worker, column):
    return one(producer, f"SELECT {column} FROM QUEUE_PROCESS WHERE NAME STARTING ?", f"{worker.queue}@")


def beaten(producer, worker):
    return registered(producer, worker, "HEARTBEAT_TIME")


def test_an_expired_task_whose_row_cannot_be_moved_holds_up_no_other_queue_work(crew, wait_for):
    """A claim meets a row of the history that another transaction holds; what has ended is recorded all the same."""
    worker = crew.worker("-c", "2", "--pool", "processes")
    running = worker.send("note", (1, "go"))
    wait_for(lambda: ran(crew.project)[1])
    done = worker.send("note", (2,))
    assert done.get(timeout=10) == 2
    with held(crew.producer, "QUEUE_HISTORY", int(done.id)) as free:
        execute(
            crew.producer,
            "INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, EXPIRE_TIME,"
            " CONTENT_TYPE) SELECT ID, NAME, QUEUE, 0, 0, RAISE_TIME, START_TIME, RAISE_TIME, CONTENT_TYPE"
            " FROM QUEUE_HISTORY WHERE ID = ?",
            int(done.id),
        )
        wait_for(lambda: "in the way of claiming tasks" in worker.log())
        (crew.project.folder / "go").touch()
        assert running.get(timeout=10) == 1
        free()
    assert worker.send("note", (3,)).get(timeout=10) == 3
    assert "The database is away" not in worker.log()


def test_a_transactional_task_whose_row_is_locked_holds_up_nobody_and_has_its_effect_once(crew, wait_for):
    worker = crew.worker("-c", "2", "--pool", "processes")
    blocked = worker.send("effect", (1, "go"))
    wait_for(lambda: ran(crew.project)[1])
    with held(crew.producer, "QUEUE_TASK", int(blocked.id)) as free:
        (crew.project.folder / "go").touch()
        others = [worker.send("effect", (n,)) for n in range(2, 6)]
        assert [other.get(timeout=3) for other in others] == [2, 3, 4, 5]
        wait_for(lambda: "held its row for 5 s: its effects are undone" in worker.log())
        free()
    assert blocked.get(timeout=10) == 1
    assert sorted(rows(crew.producer, "SELECT N FROM EFFECT")) == [(1,), (2,), (3,), (4,), (5,)]
    assert ran(crew.project) == Counter({1: 2, 2: 1, 3: 1, 4: 1, 5: 1})
    numbers = ", ".join(result.id for result in (blocked, *others))
    tries = f"SELECT TRY_COUNT FROM QUEUE_HISTORY WHERE ID IN ({numbers})"
    assert rows(crew.producer, tries) == [(1,)] * 5


@pytest.mark.embedded("processes on a server need no lock between them")
def test_a_host_lock_that_is_never_given_back_stops_no_worker(project, producer, wait_for):
    worker = project.worker("-c", "2")
    assert producer.send_task("proj.note", (1,)).get(timeout=30) == 1
    holder = started(HOLD, project.url, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "held\n"
        for n in range(2, 8):
            assert producer.send_task("proj.note", (n,)).get(timeout=30) == n
        assert producer.send_task("proj.effect", (9,)).get(timeout=30) == 9
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert "has been locked by others" in project.logs()
    assert ran(project) == Counter([*range(1, 8), 9])


@pytest.mark.parametrize("pool", [slow("processes"), "threads"])
def test_a_task_that_asks_to_cancel_one_that_was_asked_before_does_not_lock_both(crew, wait_for, pool):
    """Each of the two would hold what the other needs: a row, and the lock of the host."""
    worker = crew.worker("-c", "2", "--pool", pool)
    asked = worker.send("effect", (1, "go"))
    wait_for(lambda: ran(crew.project)[1])
    asked.revoke()
    asks = worker.send("ask", (int(asked.id),))
    assert asked.get(timeout=5) == 1
    assert asks.get(timeout=5) is None
    assert rows(crew.producer, "SELECT N FROM EFFECT") == [(1,)]
