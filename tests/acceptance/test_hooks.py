"""on_failure hooks are called once for every task that fails, wherever that is decided, and can do no harm."""

import json
import re
import signal

import pytest
from support.sql import execute, one
from support.variants import CHILDREN, slow

from fbtasks import WorkerLost

pytestmark = pytest.mark.acceptance

SOURCE = """
    import json, os, signal, time
    from fbtasks import AsyncResult
    from pathlib import Path

    def note(which, request, error):
        if request.task == "proj.bad_sleeper" or request.task == "proj.bad_stubborn":  # its time is short
            status = None
        else:
            status = AsyncResult(request.id, app=app).status
        line = {
            "hook": which, "task": request.task, "id": request.id, "args": request.args, "retries": request.retries,
            "error": type(error).__name__, "message": str(error), "traced": error.__traceback__ is not None,
            "status": status, "connection": request.connection is not None,
            "in_child": b"fbtasks.worker.child" in Path("/proc/self/cmdline").read_bytes(),
        }
        with open("ledger", "a") as file:
            file.write(json.dumps(line) + "\\n")

    def own(request, error):
        note("own", request, error)

    app.on_failure = lambda request, error: note("app", request, error)

    @app.task
    def add(a, b): return a + b

    class Special(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    @app.task(on_failure=own)
    def bad(what): raise Special(what, "more")

    @app.task(on_failure=own, autoretry_for=(Special,), max_retries=2, default_retry_delay=0)
    def bad_thrice(what): raise Special(what, "more")

    @app.task(on_failure=own)
    async def bad_coroutine(what): raise Special(what, "more")

    @app.task(on_failure=own, bind=True, transactional=True)
    def bad_effect(self, what):
        self.connection.execute_immediate("INSERT INTO NOTE VALUES (1)")
        raise Special(what, "more")

    @app.task(on_failure=own, time_limit=0.5)
    def late(what):
        while True:
            time.sleep(0.01)

    @app.task(on_failure=own)
    def die(what): os.kill(os.getpid(), signal.SIGKILL)

    @app.task(on_failure=own)
    def kill_worker(what):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    @app.task(on_failure=own)
    def unprintable(what): return object()

    def kills(request, error):
        own(request, error)
        os.kill(os.getpid(), signal.SIGKILL)

    def exits(request, error):
        own(request, error)
        raise SystemExit("from a hook")

    def sleeps(request, error):
        own(request, error)
        Path("sleeping").touch()
        while not Path("awake").exists():
            time.sleep(0.01)
        note("slept", request, error)

    @app.task(on_failure=kills)
    def bad_killer(what): raise Special(what, "more")

    @app.task(on_failure=kills, time_limit=0.3)
    def late_killer(what): time.sleep(60)

    @app.task(on_failure=exits)
    def bad_exit(what): raise Special(what, "more")

    @app.task(on_failure=sleeps)
    def bad_sleeper(what): raise Special(what, "more")

    def stubborn(request, error):
        own(request, error)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass

    @app.task(on_failure=stubborn)
    def bad_stubborn(what): raise Special(what, "more")

    @app.task(on_failure=sleeps, time_limit=0.3)
    def late_sleeper(what): time.sleep(60)
"""


@pytest.fixture
def producer(project):
    with project.producer(SOURCE, "CREATE TABLE NOTE (N INTEGER)") as app:
        yield app


@pytest.fixture
def ledger(project):
    def read(task=None):
        path = project.folder / "ledger"
        lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [line for line in lines if task in (None, line["task"].removeprefix("proj."))]

    return read


def told(lines):
    """What a task's hooks were told, without what differs between them."""
    assert [line["hook"] for line in lines] == ["own", "app"]
    own, app = ({key: value for key, value in line.items() if key not in ("hook",)} for line in lines)
    assert own == app
    return own


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio", "solo"])
def test_the_hooks_of_a_failed_task_are_called_once_when_it_is_recorded(project, producer, ledger, wait_for, pool):
    """In ``asyncio`` all but one of these run in threads, as in ``threads``."""
    names = ["bad", "bad_thrice", "bad_coroutine", "bad_effect", "late", "unprintable"]
    found = {name: producer.send_task(f"proj.{name}", (name,)) for name in names}
    garbled = producer.send_task("proj.bad", ("garbled",), task_id="garbled")
    execute(producer, "UPDATE QUEUE_TASK SET PAYLOAD = 'nonsense' WHERE TRAITS = 1")
    project.run("worker", "-A", "proj", "-c", "2", "--pool", pool, "--burst")
    assert {result.status for result in (*found.values(), garbled)} == {"FAILURE"}
    assert len(ledger()) == 2 * (len(names) + 1)
    for name in names:
        line = told([line for line in ledger(name) if line["id"] != "garbled"])
        assert line["id"] == found[name].id
        assert line["args"] == [name]
        assert line["status"] == "FAILURE"
        assert not line["connection"]
        assert line["retries"] == (2 if name == "bad_thrice" else 0)
        assert line["in_child"] == (pool != "solo")
        if name.startswith("bad"):
            assert (line["error"], line["message"]) == ("Special", f"{name} and more")
            assert line["traced"]  # the exception itself, not one that was rebuilt
    assert ledger("late")[0]["error"] == "TimeLimitExceeded"
    assert ledger("unprintable")[0]["error"] == "SerializationError"
    line = told([line for line in ledger() if line["id"] == "garbled"])
    assert (line["error"], line["args"]) == ("SerializationError", [])


def test_the_hooks_of_a_task_that_kills_its_process_or_its_worker(project, producer, ledger, wait_for):
    died = producer.send_task("proj.die", ("process",))
    log = project.run("worker", "-A", "proj", "-c", "1", "--burst").stderr
    with pytest.raises(WorkerLost):
        died.get(timeout=5)
    assert re.findall(r"\) (\S.*?): its process", log) == [
        "crashed (crash 1 of 3)", "crashed (crash 2 of 3)", "failed: it crashed (crash 3 of 3)"
    ]  # fmt: skip
    assert log.rstrip().endswith("Tasks: 0 succeeded, 1 failed, 0 retried, 0 given back, 2 crashed.")
    line = told(ledger("die"))
    assert (line["error"], line["args"], line["status"]) == ("WorkerLost", ["process"], "FAILURE")

    # As one that has killed its worker before: alone, and known to have begun.
    killer = producer.send_task("proj.kill_worker", ("worker" + "x" * 3000,))
    execute(producer, f"UPDATE QUEUE_TASK SET SUSPECT = 1, CRASH_COUNT = 2 WHERE ID = {killer.id}")
    project.worker("-c", "1", "-n", "victim")
    wait_for(lambda: one(producer, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 1)
    project.worker("-c", "1", "-n", "survivor", "-Q", "other")
    wait_for(lambda: ledger("kill_worker"), 60)
    wait_for(lambda: len(ledger("kill_worker")) == 2)
    line = told(ledger("kill_worker"))
    assert (line["error"], line["args"]) == ("WorkerLost", ["worker" + "x" * 3000])
    assert line["status"] == "FAILURE"


def test_only_the_apps_hook_is_called_for_a_task_that_was_parked_for_too_long(project, producer, ledger):
    parked = producer.send_task("proj.unknown", (1, 2))
    project.run("worker", "-A", "proj", "-c", "1", "--burst")
    assert ledger() == []
    execute(producer, "UPDATE QUEUE_TASK SET CLAIM_TIME = DATEADD(-2 DAY TO CLAIM_TIME)")
    project.run("worker", "-A", "proj", "-c", "1", "--burst")
    assert parked.status == "FAILURE"
    (line,) = ledger()
    assert (line["hook"], line["error"], line["args"]) == ("app", "UnknownTaskError", [1, 2])


@pytest.mark.parametrize("pool", CHILDREN)
def test_hooks_that_end_their_process_do_no_harm(project, producer, ledger, wait_for, pool):
    worker = project.worker("-c", "2", "--pool", pool)
    for name in ("bad_exit", "bad_killer", "late_killer"):
        result = producer.send_task(f"proj.{name}", (name,))
        wait_for(lambda name=name: ledger(name))
        wait_for(result.ready)
        assert producer.send_task("proj.add", (1, 2)).get(timeout=30) == 3
        assert one(producer, f"SELECT CRASH_COUNT FROM QUEUE_HISTORY WHERE ID = {result.id}") == 0
        assert result.failed()
        assert [line["hook"] for line in ledger(name)] == (["own", "app"] if name == "bad_exit" else ["own"])
    worker.terminate()
    assert worker.wait(30) == 0
    log = project.logs()
    assert log.count("it is not called again") == 2
    assert "The on_failure hook of proj.bad_exit raised; the outcome stands." in log


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("bad_sleeper", "threads"),
        ("late_sleeper", "processes"),
        slow("bad_sleeper", "processes"),
        slow("late_sleeper", "threads"),
    ],
)
def test_a_worker_that_is_stopped_waits_for_hooks_within_its_grace(project, producer, ledger, wait_for, pool, name):
    """The worker waits for what runs in its children, wherever it was decided that the task has failed."""
    worker = project.worker("-c", "1", "--pool", pool)
    result = producer.send_task(f"proj.{name}", (name,))
    wait_for((project.folder / "sleeping").exists)
    assert result.failed()
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: one(producer, "SELECT DRAINING FROM QUEUE_PROCESS"))
    assert worker.poll() is None
    (project.folder / "awake").touch()
    assert worker.wait(30) == 0
    assert [line["hook"] for line in ledger()] == ["own", "slept", "app"]


def test_hooks_are_stopped_when_the_grace_is_over(project, producer, ledger, wait_for):
    worker = project.worker("-c", "1", "--grace", "0.2")
    producer.send_task("proj.late_sleeper", ("x",))
    wait_for((project.folder / "sleeping").exists)
    other = producer.send_task("proj.add", (1, 2))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert [line["hook"] for line in ledger()] == ["own"]
    assert "is stopped, and is not called again" in project.logs()
    assert other.status == "PENDING"


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("bad_sleeper", "processes"), slow("bad_sleeper", "threads"), slow("bad_sleeper", "asyncio"),
        ("bad_sleeper", "solo"), ("bad_stubborn", "processes"), ("bad_stubborn", "threads"),
        slow("bad_stubborn", "asyncio"),
    ],
)  # fmt: skip
def test_hooks_have_a_time_limit_of_their_own(project, producer, ledger, wait_for, pool, name):
    """In ``solo`` nothing ends a hook that wants to go on: it is in the worker's own thread."""
    (project.folder / "sitecustomize.py").write_text("import fbtasks.worker.limits as limits\nlimits.HOOKS = 0.5\n")
    project.worker("-c", "1", "--pool", pool)
    result = producer.send_task(f"proj.{name}", (name,))
    assert producer.send_task("proj.add", (1, 2), countdown=1).get(timeout=60) == 3
    assert result.failed()
    assert [line["hook"] for line in ledger()] == ["own", *(["app"] if pool == "solo" else [])]
    log = project.logs()
    if pool != "solo":
        assert f"The on_failure hook of task {result.id} (proj.{name}) is stopped: it has taken 0.5 s." in log
        stays = pool != "processes" and name == "bad_stubborn"
        assert log.count("does not stop; its process is killed when the other tasks in it have ended") == stays


def test_a_failure_that_came_too_late_calls_no_hook(project, producer, ledger, wait_for):
    """Its claim is another worker's by now, and what becomes of it there is for that one to say."""
    project.write(
        SOURCE
        + """
    @app.task(on_failure=own)
    def bad_when_told(what):
        Path("begun").touch()
        while not Path("go on").exists():
            time.sleep(0.01)
        raise Special(what, "more")
    """
    )
    project.worker("-c", "1")
    result = producer.send_task("proj.bad_when_told", ("x",))
    wait_for((project.folder / "begun").exists)
    execute(producer, f"UPDATE QUEUE_TASK SET CLAIM_ID = CLAIM_ID + 1 WHERE ID = {result.id}")
    (project.folder / "go on").touch()
    wait_for(lambda: "came too late" in project.logs())
    assert producer.send_task("proj.add", (1, 2)).get(timeout=30) == 3  # in the one place that there is
    assert ledger() == []


def test_a_limit_that_comes_too_late_for_a_coroutine_harms_no_neighbour(project, producer):
    """It is to be cancelled when it has failed already, and waits for its hooks."""
    project.write(
        SOURCE
        + """
    import asyncio

    @app.task
    async def waits():
        await asyncio.sleep(3)
        return "waited"

    @app.task(on_failure=own, soft_time_limit=0.3)
    async def late_and_bad(what):
        time.sleep(1)
        raise Special(what, "more")
    """
    )
    project.worker("-c", "2", "--pool", "asyncio")
    neighbour = producer.send_task("proj.waits")
    bad = producer.send_task("proj.late_and_bad", ("late",))
    assert neighbour.get(timeout=30) == "waited"
    assert bad.failed()
    assert one(producer, "SELECT SUM(CRASH_COUNT) FROM QUEUE_HISTORY") == 0
    assert "ended with exit code" not in project.logs()
