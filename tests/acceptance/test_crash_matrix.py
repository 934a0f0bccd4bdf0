"""Processes killed at every commit, just before it and just after it: nothing is lost, and what runs twice is known."""

import signal
from collections import Counter
from itertools import chain

import pytest
from support import rules
from support.programs import program
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
    with project.producer(SOURCE, "CREATE TABLE EFFECT (N VARCHAR(40))") as app:
        yield app


def ran(project):
    return Counter(project.lines())


def check_tables(app):
    """What must hold in SQL once everything has succeeded and the last worker has left."""
    found = rules.read(lambda sql: rows(app, sql))
    assert rules.broken(found) == []
    assert found.live == []
    assert {row.state for row in found.history} <= {State.SUCCEEDED}


def finish_with_a_clean_worker(project, producer, results, wait_for, *queues):
    worker = project.worker("-c", "1", "-n", "clean", *(["-Q", ",".join(queues)] if queues else []))
    wait_for(lambda: "Worker clean@" in project.logs() and all(result.ready() for result in results), 120)
    worker.terminate()
    assert worker.wait(30) == 0
    assert [result.status for result in results] == ["SUCCESS"] * len(results)
    check_tables(producer)


POINTS = ["register", "heartbeat", "claim", "promote", "finish", "exchange", "effect"]
OTHERWISE = ["register", "heartbeat", "promote", "finish"]
"""Points before whose commit a worker has done nothing that counts, or what ``exchange`` does as well."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "points"), [slow("before", OTHERWISE), ("before", ["claim", "exchange", "effect"]), ("after", POINTS)]
)
def test_a_worker_killed_at(project, producer, wait_for, moment, points):
    """A worker for each point, with tasks in a queue of its own. What they leave behind is all run by one more."""
    results = {point: tasks_of_one(producer, point) for point in points}
    for point in points:
        times = ":2" if point in ("heartbeat", "promote") else ""
        worker = project.worker("-c", "2", "--lease", "10", "-Q", point, fault=f"{point}.{moment}{times}")
        if point == "effect":  # there it is the child that dies
            wait_for(lambda: "SIGKILL" in project.logs())
            wait_for(lambda of_it=results[point]: all(result.ready() for result in of_it), 60)
            worker.terminate()
            assert worker.wait(30) == 0
        else:
            assert worker.wait(60) == -signal.SIGKILL, point
        (project.folder / "fault").unlink()  # which lets only one process be killed
    finish_with_a_clean_worker(project, producer, list(chain(*results.values())), wait_for, *points)
    effects = [f"{point}-{n}" for point in points for n in range(3)]
    assert sorted(rows(producer, "SELECT N FROM EFFECT")) == sorted((effect,) for effect in effects)
    crashes = dict(rows(producer, "SELECT QUEUE, SUM(CRASH_COUNT) FROM QUEUE_HISTORY GROUP BY QUEUE"))
    times_run = ran(project)
    assert len(times_run) == 11 * len(points)
    for point in points:
        times = {
            task: count
            for task, count in times_run.items()
            if task.split("-")[0] in (f"plain{point}", f"effect{point}")
        }
        if point in ("register", "claim"):  # nothing had begun
            assert set(times.values()) == {1}, point
        if (point, moment) == ("effect", "after"):  # committed, so never tried again
            assert all(count == 1 for task, count in times.items() if task.startswith("effect"))
        # A child's task alone can have killed it, so that is counted, unless the task was finished already. A worker's
        # death is charged to no task, since several tasks ran.
        assert crashes[point] == int((point, moment) == ("effect", "before")), point


def tasks_of_one(producer, point):
    """Enqueues eleven tasks in the queue of *point*."""

    def send(name, n, **options):
        return producer.send_task(f"proj.{name}", (f"{point}-{n}",), queue=point, **options)

    results = [send("plain", n) for n in range(6)]
    results += [send("effect", n) for n in range(3)]
    results.append(send("plain", 9, countdown=0.2))
    results.append(send("plain", "x" * 10_000))  # its payload and its result are in tables of their own
    return results


@pytest.mark.parametrize("moment", [slow("before"), "after"])
def test_a_rescuer_killed_at(project, producer, wait_for, moment):
    """One is killed where it has rescued a task, and the next where it claims that."""
    result = producer.send_task("proj.slow", (1.5,))
    first = project.worker("-c", "1")
    wait_for(lambda: ran(project)["slow"] == 1)
    first.kill()
    first.wait()
    for point in ("rescue", "claim"):
        assert rows(producer, "SELECT CRASH_COUNT FROM QUEUE_TASK") == [(0,)]
        worker = project.worker("-c", "1", fault=f"{point}.{moment}")
        assert worker.wait(60) == -signal.SIGKILL, point
        (project.folder / "fault").unlink()
    finish_with_a_clean_worker(project, producer, [result], wait_for)
    assert ran(project)["slow"] == 2  # neither of them began it
    # It was a suspect, held alone, when the last worker died.
    assert rows(producer, "SELECT CRASH_COUNT FROM QUEUE_HISTORY") == [(int(moment == "after"),)]


def test_a_producer_killed_at_its_commit(project, producer, wait_for):
    code = "import proj, sys; print(proj.plain.delay(sys.argv[1]).id, flush=True)"
    for moment in MOMENTS:
        done = program(code, moment, env={**project.env, "FBTASKS_FAULT": f"enqueue.{moment}"})
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
        committed = rows(producer, "SELECT ID FROM QUEUE_TASK")
        assert len(committed) == (1 if moment == "after" else 0)
    results = [producer.AsyncResult(task) for (task,) in committed]
    finish_with_a_clean_worker(project, producer, results, wait_for)
    assert ran(project) == {"plainafter": 1}


@pytest.mark.parametrize("moment", [slow("before"), "after"])
def test_an_operator_killed_while_cancelling(project, producer, wait_for, moment):
    result = producer.send_task("proj.plain", (1,))
    code = f"import proj; proj.app.AsyncResult({result.id}).revoke()"
    done = program(code, env={**project.env, "FBTASKS_FAULT": f"cancel.{moment}"})
    assert done.returncode == -signal.SIGKILL
    assert result.status == {"before": "PENDING", "after": "REVOKED"}[moment]


def test_the_points_cost_nothing_in_production():
    from fbtasks.system import faults

    assert not faults.armed
