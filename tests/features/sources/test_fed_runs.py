"""Runs of changes in real workers of every pool: their order, what ends them early, and what is left then."""

import os
import signal

import pytest
from support.feeding import subscribe
from support.programs import alive
from support.recorded import capture, inserts, waiting
from support.sql import execute, one, rows
from support.variants import slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, os, time
    from pathlib import Path
    import fbtasks.features.sources.run
    fbtasks.features.sources.run.TURN = float(os.environ.get("TURN", "1"))

    def note(what, change):
        with open("ledger", "a") as file:
            file.write(f"{what} {change.key['ID']} {change.new['N']} {os.getpid()}\\n")

    def failed(request, error):
        note(type(error).__name__, request.args[0])

    def changed(**options):
        return app.on_change("T", insert=True, **options)

    def flaw(change):
        note("call", change)
        if change.new["N"] == 1: raise ValueError
        if change.new["N"] == 3: raise KeyError

    RETRIED = dict(autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0, on_failure=failed)

    @changed(**RETRIED)
    def flawed(change): flaw(change)

    @changed(**RETRIED)
    async def flawed_coroutine(change):
        await asyncio.sleep(0)
        flaw(change)

    @changed(bind=True, transactional=True, **RETRIED)
    def flawed_effect(self, change):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?, ?)", (change.key["ID"], change.new["N"]))
        flaw(change)

    def late(change):
        note("call", change)
        limit = time.monotonic() + (30 if change.new["N"] == 2 else 0.3)
        while time.monotonic() < limit: time.sleep(0.01)
        note("done", change)

    @changed(time_limit=2, on_failure=failed)
    def limited(change): late(change)

    @changed(soft_time_limit=1.2, on_failure=failed)
    def limited_softly(change): late(change)

    @changed(time_limit=3, on_failure=failed, transactional=True)
    def limited_effect(change): late(change)

    @changed(time_limit=2, on_failure=failed)
    async def limited_coroutine(change):
        note("call", change)
        await asyncio.sleep(30 if change.new["N"] == 2 else 0.3)
        note("done", change)

    @changed(on_failure=failed)
    def slow(change):
        note("call", change)
        time.sleep(0.05)
        while change.new["N"] == 2 and not Path("go").exists(): time.sleep(0.01)
        note("done", change)

    @changed(bind=True, transactional=True)
    def slow_effect(self, change):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?, ?)", (change.key["ID"], change.new["N"]))
        slow.function(change)

    @changed(on_failure=failed)
    def deadly(change):
        note("call", change)
        if change.new["N"] == 1: os.kill(os.getpid(), 9)

    @app.task
    def plain():
        Path("plain.new").write_text(Path("ledger").read_text())
        Path("plain.new").rename("plain")
"""
SLOW = ("threads", "asyncio", "solo")
"""Pools whose way through a run is that of processes, but for a few lines."""
POOLS = ["processes", *map(slow, SLOW)]


@pytest.fixture
def ledger(project):
    """What the tasks have noted under a word, as pairs of key and number."""

    def read(*words):
        lines = map(str.split, project.lines())
        return [(int(key), int(number)) for word, key, number, _ in lines if word in words]

    return read


@pytest.fixture
def feed(project, wait_for):
    """Starts a worker of a pool, for a task of this name with these changes in its log, or for several such tasks."""
    project.write(SOURCE)
    with project.producer(
        SOURCE, "CREATE TABLE EFFECT (ID INTEGER NOT NULL, N INTEGER NOT NULL, PRIMARY KEY (ID, N))"
    ) as app:

        def start(fed, pool, *arguments, places=1):
            for number, (task, members) in enumerate(fed.items(), start=1):
                subscribe(app, f"proj.{task}", owner="proj", id=number)
                capture(app, members, number=number)
            start.worker = project.worker("--pool", pool, "-c", str(1 if pool == "solo" else places), *arguments)
            return app

        start.app = app
        yield start


def failures(app):
    """The changes that have failed alone: tries and error of each task."""
    found = rows(app, "SELECT TRY_COUNT, ERROR_TYPE, PAYLOAD FROM QUEUE_HISTORY WHERE STATE = 11 ORDER BY ID")
    assert all(payload.count(b'"i":') == 1 for _, _, payload in found)
    return [(tries, kind) for tries, kind, _ in found]


def variants(tasks, coroutine):
    """Pools and the tasks of one worker: all in ``processes``, where one stops no other, and alone elsewhere."""
    alone = [slow(pool, [task]) for pool in SLOW for task in tasks if (pool, task) != ("asyncio", coroutine)]
    return [pytest.param("processes", tasks, id="processes"), ("asyncio", [coroutine]), *alone]


@pytest.mark.parametrize(
    ("pool", "tasks"), variants(["flawed", "flawed_coroutine", "flawed_effect"], "flawed_coroutine")
)
def test_order_retries_and_failures(feed, ledger, wait_for, pool, tasks):
    keys = {task: (2 * number, 2 * number + 1) for number, task in enumerate(tasks, start=1)}
    app = feed(
        {task: [*inserts(6, one), *inserts(6, two)] for task, (one, two) in keys.items()}, pool, "--burst", places=2
    )
    assert feed.worker.wait(60) == 0
    every = sorted(key for pair in keys.values() for key in pair)
    for key in every:
        assert [number for each, number in ledger("call") if each == key] == [0, 1, 1, 2, 3, 4, 5]
    failed = [(1, "builtins.KeyError")] * len(every) + [(2, "builtins.ValueError")] * len(every)
    assert sorted(failures(app)) == failed
    assert sorted(ledger("ValueError")) == [(key, 1) for key in every]
    assert sorted(ledger("KeyError")) == [(key, 3) for key in every]
    assert waiting(app) == (0, 0, 0, 0)
    kept = [(key, number) for key in keys.get("flawed_effect", ()) for number in (0, 2, 4, 5)]
    assert rows(app, "SELECT ID, N FROM EFFECT ORDER BY ID, N") == kept


LIMITED = {
    "limited": "TimeLimitExceeded",
    "limited_softly": "SoftTimeLimitExceeded",
    "limited_effect": "TimeLimitExceeded",
    "limited_coroutine": "TimeLimitExceeded",
}
"""What each of these fails with."""


@pytest.mark.parametrize(
    ("pool", "tasks"), variants(["limited", "limited_softly", "limited_effect"], "limited_coroutine")
)
def test_time_limits_hold_for_each_change(feed, ledger, wait_for, pool, tasks):
    keys = {task: key for key, task in enumerate(tasks, start=1)}
    app = feed({task: inserts(5, key) for task, key in keys.items()}, pool, "--burst", places=2)
    assert feed.worker.wait(60) == 0
    assert sorted(failures(app)) == sorted((1, f"fbtasks.errors.{LIMITED[task]}") for task in tasks)
    for kind in set(LIMITED.values()):
        assert sorted(ledger(kind)) == [(key, 2) for task, key in keys.items() if LIMITED[task] == kind]
    for task, key in keys.items():
        done = [number for each, number in ledger("done") if each == key]
        assert list(dict.fromkeys(done)) == [0, 1, 3, 4], task
        if task != "limited_effect":  # what a transaction had done is undone with it, and done again
            assert len(done) == 4, task
    assert waiting(app) == (0, 0, 0, 0)


@pytest.mark.parametrize("pool", POOLS)
def test_a_long_run_lets_others_have_their_turn(feed, project, ledger, wait_for, pool):
    project.env["TURN"] = "0.2"
    app = feed({"slow": inserts(12)}, pool)
    wait_for(lambda: ledger("call"))
    execute(app, "EXECUTE PROCEDURE FBTASKS.ENQUEUE('proj.plain')")
    (project.folder / "go").touch()
    wait_for(lambda: (project.folder / "plain").exists())
    assert (project.folder / "plain").read_text().count("done") < 12
    wait_for(lambda: len(ledger("done")) == 12 and waiting(app) == (0, 0, 0, 0))
    assert ledger("call") == [(1, number) for number in range(12)]


@pytest.mark.parametrize("pool", POOLS)
def test_a_run_that_is_terminated_ends_as_a_whole_and_that_of_a_worker_that_ends_is_given_back(
    feed, ledger, wait_for, pool
):
    app = feed({"slow": []}, pool, "--grace", "0.2")
    if pool != "solo":  # where the task that runs is not stopped
        capture(app, inserts(5))
        wait_for(lambda: (1, 2) in ledger("call"))
        app.AsyncResult(one(app, "SELECT ID FROM QUEUE_TASK")).revoke(terminate=True)
        wait_for(lambda: waiting(app)[1] == 0)
        state, payload = rows(app, "SELECT STATE, PAYLOAD FROM QUEUE_HISTORY")[0]
        assert (state, payload.count(b'"i":')) == (12, 3)  # those that were not done
        assert ledger("call") == [(1, 0), (1, 1), (1, 2)]
    capture(app, inserts(5, 2))
    wait_for(lambda: (2, 2) in ledger("call"))
    feed.worker.send_signal(signal.SIGTERM)
    feed.worker.wait(30)
    assert one(app, "SELECT PAYLOAD FROM QUEUE_TASK").count(b'"i":') == 3
    assert one(app, "SELECT STATE + TRY_COUNT + CRASH_COUNT + SUSPECT FROM QUEUE_TASK") == 0


def child_of(project):
    """The process that has made the last call."""
    return int((project.folder / "ledger").read_text().split()[-1])


@pytest.mark.parametrize("pool", POOLS[:3])
def test_a_child_that_is_killed_in_the_middle_of_a_run_and_a_change_that_kills_it(
    feed, project, ledger, wait_for, pool
):
    """Of the first only what it was at is done again; the second fails alone."""
    app = feed({"slow": inserts(5), "deadly": []}, pool)
    wait_for(lambda: (1, 2) in ledger("call"))
    os.kill(child_of(project), signal.SIGKILL)
    (project.folder / "go").touch()
    wait_for(lambda: (1, 4) in ledger("done") and waiting(app) == (0, 0, 0, 0))
    assert ledger("done") == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert ledger("call").count((1, 2)) == 2
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == []

    capture(app, inserts(4, 2), number=2)
    wait_for(lambda: (2, 3) in ledger("call") and waiting(app) == (0, 0, 0, 0))
    called = [number for key, number in ledger("call") if key == 2]
    assert called == [0, *[1] * 3, 2, 3]
    assert [kind for _, kind in failures(app)] == ["fbtasks.errors.WorkerLost"]
    wait_for(lambda: ledger("WorkerLost") == [(2, 1)])


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_killed_in_the_middle_of_a_run(feed, project, ledger, wait_for, pool):
    app = feed({"slow": inserts(5)}, pool, "--lease", "3")
    wait_for(lambda: (1, 2) in ledger("call"))
    feed.worker.kill()
    (project.folder / "go").touch()
    project.worker("--pool", pool, "-c", "1", "--lease", "3")
    wait_for(lambda: (1, 4) in ledger("done") and waiting(app) == (0, 0, 0, 0), 60)
    assert ledger("done")[-5:] == [(1, number) for number in range(5)]  # all of it again, in its order
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == []


@pytest.mark.parametrize("killed", ["child", "worker"])
def test_a_transactional_run_has_its_effects_once_whatever_is_killed(feed, project, ledger, wait_for, killed):
    app = feed({"slow_effect": inserts(5)}, "processes", "--lease", "3")
    wait_for(lambda: (1, 2) in ledger("call"))
    child = child_of(project)
    os.kill(child if killed == "child" else feed.worker.pid, signal.SIGKILL)
    wait_for(lambda: not alive(child))  # one whose worker is gone goes on until it sees that
    (project.folder / "go").touch()
    if killed == "worker":
        project.worker("-c", "1", "--lease", "3")
    wait_for(lambda: (1, 4) in ledger("done") and waiting(app) == (0, 0, 0, 0), 60)
    assert ledger("done") == [(1, number) for number in (0, 1, 0, 1, 2, 3, 4)]  # what was undone is done again
    assert rows(app, "SELECT N FROM EFFECT ORDER BY N") == [(number,) for number in range(5)]
