"""Processes killed at every commit, just before it and just after it: nothing is lost, and what runs twice is known."""

import signal
import subprocess
import sys
from collections import Counter

import pytest
from support import rules
from support.sql import rows
from support.variants import slow

from fbtasks.states import State

pytestmark = pytest.mark.acceptance

SOURCE = """
    import os, time

    def note(what):
        with open("ledger", "a") as file:
            file.write(f"{what}\\n")

    @app.task
    def plain(n):
        note(f"plain{n}")
        return n

    @app.task(bind=True, transactional=True)
    def effect(self, n):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?)", (n,))
        note(f"effect{n}")

    @app.task
    def slow(seconds):
        note("slow")
        time.sleep(seconds)
"""

MOMENTS = ["before", "after"]


@pytest.fixture
def producer(project):
    with project.producer(SOURCE, "CREATE TABLE EFFECT (N INTEGER)") as app:
        yield app


def ran(project):
    path = project.folder / "ledger"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def check_tables(app):
    """What must hold in SQL once everything has succeeded and the last worker has left."""
    found = rules.read(lambda sql: rows(app, sql))
    assert rules.broken(found) == []
    assert found.live == []
    assert {row.state for row in found.history} <= {State.SUCCEEDED}


def finish_with_a_clean_worker(project, producer, results, wait_for):
    worker = project.worker("-c", "1", "-n", "clean")
    wait_for(lambda: "Worker clean@" in project.logs() and all(result.ready() for result in results), 60)
    worker.terminate()
    assert worker.wait(30) == 0
    assert [result.status for result in results] == ["SUCCESS"] * len(results)
    check_tables(producer)


POINTS = ["register", "heartbeat", "claim", "promote", "finish", "exchange", "effect"]
OTHERWISE = ("register", "heartbeat", "promote", "finish")
"""Points before whose commit a worker has done nothing that counts, or what ``exchange`` does as well."""


@pytest.mark.parametrize(
    ("point", "moment"),
    [
        slow(point, moment) if point in OTHERWISE and moment == "before" else (point, moment)
        for point in POINTS
        for moment in MOMENTS
    ],
)
def test_a_worker_killed_at(project, producer, wait_for, point, moment):
    results = [producer.send_task("proj.plain", (n,)) for n in range(6)]
    results += [producer.send_task("proj.effect", (n,)) for n in range(3)]
    results.append(producer.send_task("proj.plain", (9,), countdown=0.2))
    results.append(
        producer.send_task("proj.plain", ("x" * 10_000,))
    )  # its payload and its result are in tables of their own
    times = ":2" if point in ("heartbeat", "promote") else ""
    worker = project.worker("-c", "2", fault=f"{point}.{moment}{times}")
    if point == "effect":  # there it is the child that dies
        wait_for(lambda: "SIGKILL" in project.logs())
        wait_for(lambda: all(result.ready() for result in results), 60)
        worker.terminate()
        assert worker.wait(30) == 0
    else:
        assert worker.wait(60) == -signal.SIGKILL
    finish_with_a_clean_worker(project, producer, results, wait_for)
    assert sorted(n for (n,) in rows(producer, "SELECT N FROM EFFECT")) == [0, 1, 2]
    times_run = ran(project)
    assert len(times_run) == 11
    if point in ("register", "claim"):  # nothing had begun
        assert set(times_run.values()) == {1}
    if (point, moment) == ("effect", "after"):  # committed, so never tried again
        assert all(count == 1 for task, count in times_run.items() if task.startswith("effect"))
    crashes = rows(producer, "SELECT SUM(CRASH_COUNT) FROM QUEUE_HISTORY")[0][0]
    # A child's task alone can have killed it, so that is counted, unless the task was finished already. A worker's
    # death is charged to no task, since several tasks ran.
    assert crashes == int((point, moment) == ("effect", "before"))


@pytest.mark.parametrize(
    ("point", "moment"), [slow("rescue", "before"), ("rescue", "after"), slow("start", "before"), ("start", "after")]
)
def test_a_rescuer_killed_at(project, producer, wait_for, point, moment):
    result = producer.send_task("proj.slow", (1.5,))
    first = project.worker("-c", "1")
    wait_for(lambda: ran(project)["slow"] == 1)
    first.kill()
    first.wait()
    second = project.worker("-c", "1", fault=f"{point}.{moment}")
    assert second.wait(60) == -signal.SIGKILL
    finish_with_a_clean_worker(project, producer, [result], wait_for)
    assert ran(project)["slow"] == 2  # the second worker never began it
    # It was known to be about to begin, alone, when its worker died.
    assert rows(producer, "SELECT CRASH_COUNT FROM QUEUE_HISTORY") == [(int((point, moment) == ("start", "after")),)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_producer_killed_at_its_commit(project, producer, wait_for, moment):
    code = "import proj; print(proj.plain.delay(1).id, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env={**project.env, "FBTASKS_FAULT": f"enqueue.{moment}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    committed = rows(producer, "SELECT ID FROM QUEUE_TASK")
    assert len(committed) == (1 if moment == "after" else 0)
    results = [producer.AsyncResult(task) for (task,) in committed]
    finish_with_a_clean_worker(project, producer, results, wait_for)
    assert ran(project)["plain1"] == len(committed)


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_operator_killed_while_cancelling(project, producer, wait_for, moment):
    result = producer.send_task("proj.plain", (1,))
    code = f"import proj; proj.app.AsyncResult({result.id}).revoke()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env={**project.env, "FBTASKS_FAULT": f"cancel.{moment}"},
        timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert result.status == {"before": "PENDING", "after": "REVOKED"}[moment]


def test_the_points_cost_nothing_in_production():
    from fbtasks import faults

    assert not faults.armed
