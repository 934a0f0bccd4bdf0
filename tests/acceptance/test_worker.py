"""The worker as people run it: real processes, started by the command line."""

import json
import re
import signal
import threading

import pytest
from support.sql import execute, one
from support.variants import slow

pytestmark = pytest.mark.acceptance

BASIC = """
    import asyncio, os, time

    @app.task
    def add(a, b): return a + b

    @app.task
    async def later(a):
        await asyncio.sleep(0.01)
        return a

    @app.task(max_retries=0)
    def bad(): raise ValueError("bad news")

    @app.task
    def sleep(seconds): time.sleep(seconds)

    @app.task
    def held():
        with open("ledger", "a") as file:
            file.write("begun\\n")
        while not os.path.exists("go on"):
            time.sleep(0.01)

    @app.task
    def die(): os.kill(os.getpid(), 9)

    @app.task(bind=True, transactional=True)
    def note(self, n):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO NOTE VALUES (?)", (n,))
        if n < 0:
            raise ValueError("negative")
"""


@pytest.fixture
def producer(project):
    with project.producer(BASIC) as app:
        yield app


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio", "solo"])
def test_every_pool_runs_every_kind_of_task(project, producer, pool):
    execute(producer, "CREATE TABLE NOTE (N INTEGER)")
    found = [producer.send_task("proj.add", (i, i)) for i in range(10)]
    coroutine = producer.send_task("proj.later", ("x",))
    bad = producer.send_task("proj.bad")
    notes = [producer.send_task("proj.note", (n,), max_retries=0) for n in (1, 2, -3)]
    log = project.run("worker", "-A", "proj", "-c", "2", "--pool", pool, "--burst").stderr
    assert [result.get(timeout=5) for result in found] == [2 * i for i in range(10)]
    assert coroutine.get(timeout=5) == "x"
    assert one(producer, "SELECT SUM(N) FROM NOTE") == 3
    assert [n.status for n in notes] == ["SUCCESS", "SUCCESS", "FAILURE"]
    with pytest.raises(ValueError, match="bad news"):
        bad.get(timeout=5)
    assert "proj.add" in log
    assert log.count("Traceback") == 2  # of the two tasks that failed
    assert one(producer, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 0


@pytest.mark.parametrize(("workers", "executors", "count"), [(3, 1, 200), slow(4, 4, 2000)])
def test_many_executors_run_each_of_many_tasks_once(project, producer, wait_for, workers, executors, count):
    """Three workers are in each other's way already, whatever their children."""
    execute(producer, "CREATE TABLE NOTE (N INTEGER)")
    project.write(
        """
        @app.task(bind=True, ignore_result=True)
        def ran(self, n):
            with open(f"ran-{__import__('os').getpid()}", "a") as file:
                file.write(f"{n}\\n")
    """,
        "proj",
    )
    started = [project.worker("-c", str(executors), "-l", "WARNING", "-n", f"w{n}") for n in range(workers)]
    wait_for(lambda: one(producer, "SELECT COUNT(*) FROM QUEUE_PROCESS") == workers, 120)
    calls = [producer.enqueuer.make_call("proj.ran", (n,), {}) for n in range(count)]
    producer.enqueuer.enqueue(calls)
    wait_for(lambda: one(producer, "SELECT COUNT(*) FROM QUEUE_TASK") == 0, 120)
    for worker in started:
        worker.terminate()
    assert [worker.wait(30) for worker in started] == [0] * workers
    ran = [int(line) for path in project.folder.glob("ran-*") for line in path.read_text().split()]
    assert sorted(ran) == list(range(count))
    assert "ERROR" not in project.logs()
    assert "Traceback" not in project.logs()
    stats = json.loads(project.run("inspect", "stats", "--json").stdout)["counters"]
    assert sum(row["succeeded"] for row in stats) == count
    if producer.settings.url.embedded:
        assert sum(row["conflicts"] for row in stats) == 0


def test_a_worker_outlives_a_child_and_at_sigterm_lets_running_tasks_end_and_gives_the_rest_back(
    project, producer, wait_for
):
    killer = producer.send_task("proj.die")
    worker = project.worker("-c", "2")
    wait_for(killer.ready)
    assert killer.failed()
    assert producer.send_task("proj.add", (1, 1)).get(timeout=20) == 2
    first = [producer.send_task("proj.held") for _ in range(6)]
    wait_for(lambda: len(project.lines()) == 2)
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: "; a second signal stops them." in project.logs())
    (project.folder / "go on").touch()
    assert worker.wait(30) == 0
    states = sorted(result.status for result in first)
    assert states == ["PENDING"] * 4 + ["SUCCESS"] * 2
    assert one(producer, "SELECT SUM(TRY_COUNT) FROM QUEUE_TASK") == 0


def test_a_worker_says_that_another_one_has_its_name(project, producer, wait_for):
    twin = ["-n", "twin", "-P", "solo"]
    first = project.worker(*twin)
    wait_for(lambda: "is ready" in project.logs())
    second = project.run("worker", "-A", "proj", *twin, "--burst")
    found = re.findall(
        r"WARNING Another worker is named (twin@\S+): its pid is (\d+), and this one's \d+\.", second.stderr
    )
    assert [int(pid) for _, pid in found] == [first.pid]
    assert json.loads(project.run("inspect", "workers", "--json").stdout)[0]["name"] == found[0][0]
    first.kill()
    first.wait(10)
    assert "is named" not in project.run("worker", "-A", "proj", *twin, "--burst").stderr  # it is registered still


def test_a_task_that_a_new_child_does_not_know_stays_parked(project, producer, wait_for):
    worker = project.worker("-c", "1", "--max-tasks-per-child", "1")
    assert producer.send_task("proj.add", (1, 1)).get(timeout=30) == 2
    project.write("@app.task\ndef sleep(seconds): pass\n")  # what the next children import
    for _ in range(4):  # the first ones may yet be run by a child that had started before
        producer.send_task("proj.add", (1, 1))
    parked = "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 3"
    wait_for(
        lambda: one(producer, parked) > 0 and one(producer, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE <> 3") == 0
    )
    transactions = "SELECT MON$NEXT_TRANSACTION FROM MON$DATABASE"
    before = one(producer, transactions)
    assert not threading.Event().wait(2.5)  # longer than a heartbeat, which looks for what is parked
    assert one(producer, transactions) - before < 30
    assert one(producer, parked) > 0
    assert producer.send_task("proj.sleep", (0,)).get(timeout=20) is None
    worker.terminate()
    assert worker.wait(20) == 0
