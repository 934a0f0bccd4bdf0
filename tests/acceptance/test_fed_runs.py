"""Runs of changes in real workers of every pool: their order, what ends them early, and what is left then."""

import os
import signal

import pytest
from support.feeding import subscribe
from support.programs import alive
from support.recorded import capture, inserts, waiting
from support.sql import execute, one, rows

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, os, time
    from pathlib import Path
    import fbtasks.fed_runner
    fbtasks.fed_runner.TURN = float(os.environ.get("TURN", "1"))

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

    @changed(time_limit=1, on_failure=failed)
    def limited(change): late(change)

    @changed(soft_time_limit=0.6, on_failure=failed)
    def limited_softly(change): late(change)

    @changed(time_limit=2, on_failure=failed, transactional=True)
    def limited_effect(change): late(change)

    @changed(time_limit=1, on_failure=failed)
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
ALL_POOLS = ("processes", "threads", "asyncio", "solo")
SLOW = ("threads", "asyncio", "solo")
"""Pools whose way through a run is that of processes, but for a few lines."""


def variant(pool, *more):
    """Parameters of a test."""
    slow = pool in SLOW and (pool, *more) != ("asyncio", "flawed_coroutine")
    return pytest.param(pool, *more, marks=pytest.mark.slow) if slow else pytest.param(pool, *more)


POOLS = [variant(pool) for pool in ALL_POOLS]


@pytest.fixture
def ledger(project):
    """What the tasks have noted under a word, as pairs of key and number."""

    def read(*words):
        path = project.folder / "ledger"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(key), int(number)) for word, key, number, _ in lines if word in words]

    return read


@pytest.fixture
def feed(project, wait_for):
    """Starts a worker of a pool, for the task of this name with these changes in its log."""
    project.write(SOURCE)
    with project.producer(
        SOURCE, "CREATE TABLE EFFECT (ID INTEGER NOT NULL, N INTEGER NOT NULL, PRIMARY KEY (ID, N))"
    ) as app:

        def start(task, members, pool, *arguments, **options):
            subscribe(app, f"proj.{task}", owner="proj", **options)
            capture(app, members, ordered=options.get("ordering") != "total")
            start.worker = project.worker("--pool", pool, "-c", "1" if pool == "solo" else "2", *arguments)
            return app

        start.app = app
        yield start


def failures(app):
    """The changes that have failed alone: tries and error of each task."""
    found = rows(app, "SELECT TRY_COUNT, ERROR_TYPE, PAYLOAD FROM QUEUE_HISTORY WHERE STATE = 11 ORDER BY ID")
    assert all(payload.count(b'"i":') == 1 for _, _, payload in found)
    return [(tries, kind) for tries, kind, _ in found]


@pytest.mark.parametrize(
    ("pool", "task"),
    [variant(pool, task) for pool in ALL_POOLS for task in ("flawed", "flawed_coroutine", "flawed_effect")],
)
def test_order_retries_and_failures(feed, ledger, wait_for, pool, task):
    app = feed(task, [*inserts(6, 1), *inserts(6, 2)], pool, "--burst")
    assert feed.worker.wait(60) == 0
    for key in (1, 2):
        assert [number for each, number in ledger("call") if each == key] == [0, 1, 1, 2, 3, 4, 5]
    assert sorted(failures(app)) == [(1, "builtins.KeyError")] * 2 + [(2, "builtins.ValueError")] * 2
    assert sorted(ledger("ValueError")) == [(1, 1), (2, 1)]
    assert sorted(ledger("KeyError")) == [(1, 3), (2, 3)]
    assert waiting(app) == (0, 0, 0, 0)
    if task == "flawed_effect":
        kept = [(key, number) for key in (1, 2) for number in (0, 2, 4, 5)]
        assert rows(app, "SELECT ID, N FROM EFFECT ORDER BY ID, N") == kept


@pytest.mark.parametrize(
    ("pool", "task"),
    [
        *[variant(pool, task) for pool in ALL_POOLS for task in ("limited", "limited_softly", "limited_effect")],
        ("asyncio", "limited_coroutine"),
    ],
)
def test_time_limits_hold_for_each_change(feed, ledger, wait_for, pool, task):
    app = feed(task, inserts(5), pool, "--burst")
    assert feed.worker.wait(60) == 0
    kind = "SoftTimeLimitExceeded" if task == "limited_softly" else "TimeLimitExceeded"
    assert failures(app) == [(1, f"fbtasks.errors.{kind}")]
    assert ledger(kind) == [(1, 2)]
    done = ledger("done")
    assert list(dict.fromkeys(done)) == [(1, 0), (1, 1), (1, 3), (1, 4)]
    if task != "limited_effect":  # what a transaction had done is undone with it, and done again
        assert len(done) == 4
    assert waiting(app) == (0, 0, 0, 0)


@pytest.mark.parametrize("pool", POOLS)
def test_a_long_run_lets_others_have_their_turn(feed, project, ledger, wait_for, pool):
    project.env["TURN"] = "0.2"
    app = feed("slow", inserts(12), pool, "-c", "1")
    wait_for(lambda: ledger("call"))
    execute(app, "EXECUTE PROCEDURE QUEUE_ENQUEUE_V1('proj.plain')")
    (project.folder / "go").touch()
    wait_for(lambda: (project.folder / "plain").exists())
    assert (project.folder / "plain").read_text().count("done") < 12
    wait_for(lambda: len(ledger("done")) == 12 and waiting(app) == (0, 0, 0, 0))
    assert ledger("call") == [(1, number) for number in range(12)]


@pytest.mark.parametrize("pool", POOLS[:3])
def test_a_run_that_is_terminated_ends_as_a_whole(feed, ledger, wait_for, pool):
    app = feed("slow", inserts(5), pool)
    wait_for(lambda: (1, 2) in ledger("call"))
    app.AsyncResult(one(app, "SELECT ID FROM QUEUE_TASK")).revoke(terminate=True)
    wait_for(lambda: waiting(app)[1] == 0)
    state, payload = rows(app, "SELECT STATE, PAYLOAD FROM QUEUE_HISTORY")[0]
    assert (state, payload.count(b'"i":')) == (12, 3)  # those that were not done
    assert ledger("call") == [(1, 0), (1, 1), (1, 2)]


def child_of(project):
    """The process that has made the last call."""
    return int((project.folder / "ledger").read_text().split()[-1])


@pytest.mark.parametrize("pool", POOLS[:3])
def test_a_child_that_is_killed_in_the_middle_of_a_run(feed, project, ledger, wait_for, pool):
    app = feed("slow", inserts(5), pool)
    wait_for(lambda: (1, 2) in ledger("call"))
    os.kill(child_of(project), signal.SIGKILL)
    (project.folder / "go").touch()
    wait_for(lambda: (1, 4) in ledger("done") and waiting(app) == (0, 0, 0, 0))
    assert ledger("done") == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]  # only what it was at is done again
    assert ledger("call").count((1, 2)) == 2
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == []


@pytest.mark.parametrize("pool", POOLS[:3])
def test_a_change_that_kills_its_process_fails_alone(feed, ledger, wait_for, pool):
    app = feed("deadly", inserts(4), pool)
    wait_for(lambda: (1, 3) in ledger("call") and waiting(app) == (0, 0, 0, 0))
    assert ledger("call") == [(1, 0), *[(1, 1)] * 3, (1, 2), (1, 3)]
    assert [kind for _, kind in failures(app)] == ["fbtasks.errors.WorkerLost"]
    wait_for(lambda: ledger("WorkerLost") == [(1, 1)])


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_killed_in_the_middle_of_a_run(feed, project, ledger, wait_for, pool):
    app = feed("slow", inserts(5), pool, "--lease", "3")
    wait_for(lambda: (1, 2) in ledger("call"))
    feed.worker.kill()
    (project.folder / "go").touch()
    project.worker("--pool", pool, "-c", "1", "--lease", "3")
    wait_for(lambda: (1, 4) in ledger("done") and waiting(app) == (0, 0, 0, 0), 60)
    assert ledger("done")[-5:] == [(1, number) for number in range(5)]  # all of it again, in its order
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_told_to_end_gives_back_what_is_left(feed, project, ledger, wait_for, pool):
    app = feed("slow", inserts(5), pool, "--grace", "0.2")
    wait_for(lambda: (1, 2) in ledger("call"))
    feed.worker.send_signal(signal.SIGTERM)
    feed.worker.wait(30)
    assert one(app, "SELECT PAYLOAD FROM QUEUE_TASK").count(b'"i":') == 3
    assert one(app, "SELECT STATE + TRY_COUNT + CRASH_COUNT + SUSPECT FROM QUEUE_TASK") == 0


@pytest.mark.parametrize("killed", ["child", "worker"])
def test_a_transactional_run_has_its_effects_once_whatever_is_killed(feed, project, ledger, wait_for, killed):
    app = feed("slow_effect", inserts(5), "processes", "--lease", "3")
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
