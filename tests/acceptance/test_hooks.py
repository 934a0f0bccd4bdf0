"""on_failure hooks are called for every task that fails, wherever that is decided, by tasks like others."""

import json
import re
import signal
from contextlib import closing

import pytest
from support.crew import Crews
from support.sql import execute, one, rows
from support.variants import slow

from fbtasks import WorkerLost
from fbtasks.states import State

pytestmark = pytest.mark.acceptance

SOURCE = """
    import json, os, signal, sys, time
    from fbtasks import AsyncResult
    from pathlib import Path

    def note(which, request, error):
        if request.task == "proj.bad_sleeper" or request.task == "proj.bad_stubborn":  # its time is short
            status = None
        else:
            status = AsyncResult(request.id, app=app).status
        line = {
            "hook": which, "task": request.task, "id": request.id, "args": request.args, "retries": request.retries,
            "error": type(error).__name__, "message": str(error), "traced": "".join(getattr(error, "__notes__", [])),
            "status": status, "connection": request.connection is not None,
            "in_child": "fbtasks.worker.pools.child" in sys.orig_argv,
        }
        with open("ledger", "a") as file:
            file.write(json.dumps(line) + "\\n")

    def own(request, error):
        note("own", request, error)

    app.on_failure = lambda request, error: note("app", request, error)

    @app.task
    def add(a, b): return a + b

    class Special(Exception):
        def __str__(self):
            return " and ".join(self.args)

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

    def raises(request, error):
        own(request, error)
        raise LookupError(request.args[0])

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

    @app.task(on_failure=raises)
    def bad_raiser(what): raise Special(what, "more")

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
TABLE = "CREATE TABLE NOTE (N INTEGER)"


@pytest.fixture
def producer(project):
    with project.producer(SOURCE, TABLE) as app:
        yield app


@pytest.fixture
def ledger(project):
    return lambda task=None: written(project, task)


def written(project, task=None):
    """What hooks wrote down, of one task or of all."""
    return [line for line in map(json.loads, project.lines()) if task in (None, line["task"].removeprefix("proj."))]


@pytest.fixture(scope="module")
def crews(make_project):
    with closing(Crews(make_project, SOURCE, TABLE)) as crews:
        yield crews


def of_pool(crew, pool):
    places = {"processes": 1, "solo": 1}.get(pool, 2)  # two where they share a process
    return crew.worker("-c", str(places), "--pool", pool)


def told(lines):
    """What a task's hooks were told, without what differs between them."""
    assert [line["hook"] for line in lines] == ["own", "app"]
    own, app = ({key: value for key, value in line.items() if key not in ("hook",)} for line in lines)
    assert own == app
    return own


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio", "solo"])
def test_the_hooks_of_a_failed_task_are_called_when_it_is_recorded(crew, wait_for, pool):
    """In ``asyncio`` all but one of these run in threads, as in ``threads``."""
    worker = of_pool(crew, pool)
    names = ["bad", "bad_thrice", "bad_coroutine", "bad_effect", "late", "unprintable"]
    found = {name: worker.send(name, (name,)) for name in names}
    garbled = worker.send_as("PAYLOAD = 'nonsense'", "bad", "garbled")
    wait_for(lambda: {result.status for result in (*found.values(), garbled)} == {"FAILURE"})
    wait_for(lambda: len(written(crew.project)) >= 2 * (len(names) + 1))
    assert len(written(crew.project)) == 2 * (len(names) + 1)
    for name in names:
        line = told([line for line in written(crew.project, name) if line["id"] != garbled.id])
        assert line["id"] == found[name].id
        assert line["args"] == [name]
        assert line["status"] == "FAILURE"
        assert not line["connection"]
        assert line["retries"] == (2 if name == "bad_thrice" else 0)
        assert line["in_child"] == (pool != "solo")
        if name.startswith("bad"):
            assert (line["error"], line["message"]) == ("Special", f"{name} and more")
            assert "raise Special(what" in line["traced"]
    assert written(crew.project, "late")[0]["error"] == "TimeLimitExceeded"
    assert written(crew.project, "unprintable")[0]["error"] == "SerializationError"
    line = told([line for line in written(crew.project) if line["id"] == garbled.id])
    assert (line["error"], line["args"]) == ("SerializationError", [])


def test_the_hooks_of_a_task_that_kills_its_process_or_its_worker(project, producer, ledger, wait_for):
    died = producer.send_task("proj.die", ("process",), queue="other")
    survivor = project.worker("-c", "1", "-n", "survivor", "-Q", "other")
    with pytest.raises(WorkerLost):
        died.get(timeout=120)  # three processes are started one after the other
    wait_for(lambda: len(ledger("die")) == 2)
    line = told(ledger("die"))
    assert (line["error"], line["args"], line["status"]) == ("WorkerLost", ["process"], "FAILURE")

    # As one that has killed its worker before: alone, and known to have begun.
    killer = producer.send_task("proj.kill_worker", ("worker" + "x" * 3000,))
    execute(producer, f"UPDATE QUEUE_TASK SET SUSPECT = 1, CRASH_COUNT = 2 WHERE ID = {killer.id}")
    victim = project.worker("-c", "1", "-n", "victim", "-Q", "default")
    assert victim.wait(120) == -signal.SIGKILL
    # A survivor that is held up itself counts the silence of the others anew, and a lease is 30 seconds.
    wait_for(killer.failed, 180)
    project.run("worker", "-A", "proj", "-P", "solo", "--burst", "-Q", "default")  # the hook is in the task's queue
    line = told(ledger("kill_worker"))
    assert (line["error"], line["args"]) == ("WorkerLost", ["worker" + "x" * 3000])
    assert line["status"] == "FAILURE"
    survivor.terminate()
    assert survivor.wait(30) == 0
    log = project.logs()
    assert re.findall(r"\) (\S.*?): its process", log) == [
        "crashed (crash 1 of 3)", "crashed (crash 2 of 3)", "failed: it crashed (crash 3 of 3)"
    ]  # fmt: skip
    assert "Tasks: 1 succeeded, 1 failed, 0 retried, 0 given back, 2 crashed." in log


def test_only_the_apps_hook_is_called_for_a_task_that_was_parked_for_too_long(crew, wait_for):
    parked = of_pool(crew, "processes").send("unknown", (1, 2))
    wait_for(lambda: one(crew.producer, "SELECT STATE FROM QUEUE_TASK") == State.PARKED)
    assert written(crew.project) == []
    execute(crew.producer, "UPDATE QUEUE_TASK SET CLAIM_TIME = DATEADD(-2 DAY TO CLAIM_TIME)")
    crew.project.run("worker", "-A", "proj", "-P", "solo", "--burst")
    assert parked.status == "FAILURE"
    wait_for(lambda: written(crew.project))
    (line,) = written(crew.project)
    assert (line["hook"], line["error"], line["args"]) == ("app", "UnknownTaskError", [1, 2])


@pytest.mark.parametrize("pool", ["processes", slow("threads"), slow("asyncio")])
def test_hooks_that_raise_or_end_their_process_fail_as_tasks_do(crew, wait_for, pool):
    worker = of_pool(crew, pool)
    errors = {
        "bad_raiser": ("own app", "builtins.LookupError"),
        "bad_exit": ("own app", "builtins.SystemExit"),
        "bad_killer": ("own own own", "fbtasks.errors.WorkerLost"),
        "late_killer": ("own own own", "fbtasks.errors.WorkerLost"),
    }
    raised = ""
    for name, (hooks, error) in errors.items():
        result = worker.send(name, (name,))
        hook = f"FROM QUEUE_HISTORY WHERE NAME = 'proj.{name}:on_failure' AND ID > {result.id}"
        raised = raised or hook
        query = f"SELECT ERROR_TYPE {hook}"
        wait_for(lambda query=query: rows(crew.producer, query), 60)
        assert rows(crew.producer, query) == [(error,)]
        called = [line["hook"] for line in written(crew.project, name)]
        beside = pool != "processes" and name == "late_killer"  # the task goes on in the process of the first call
        assert called == ["own"] * beside + hooks.split()
        assert worker.send("add", (1, 2)).get(timeout=30) == 3
        assert one(crew.producer, f"SELECT CRASH_COUNT FROM QUEUE_HISTORY WHERE ID = {result.id}") == 0
        assert result.failed()
    crew.project.run("retry", str(one(crew.producer, f"SELECT ID {raised}")))
    wait_for(lambda: len(written(crew.project, "bad_raiser")) == 4)


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("late_sleeper", "processes"),
        slow("late_sleeper", "threads"),
    ],
)
def test_a_worker_that_is_stopped_waits_for_hooks_within_its_grace(project, producer, ledger, wait_for, pool, name):
    worker = project.worker("-c", "1", "--pool", pool, "--grace", "0.2")
    result = producer.send_task(f"proj.{name}", (name,))
    sleeping = project.folder / "sleeping"
    wait_for(sleeping.exists)
    assert result.failed()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert [line["hook"] for line in ledger()] == ["own"]
    sleeping.unlink()  # the hook was stopped, and runs again
    worker = project.worker("-c", "1", "--pool", pool)
    wait_for(sleeping.exists)
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: one(producer, "SELECT DRAINING FROM QUEUE_PROCESS"))
    assert worker.poll() is None
    (project.folder / "awake").touch()
    assert worker.wait(30) == 0
    assert [line["hook"] for line in ledger()] == ["own", "own", "slept", "app"]


@pytest.mark.parametrize(
    ("pool", "names"),
    [
        ("processes", ["bad_sleeper", "bad_stubborn"]),
        ("solo", ["bad_sleeper"]),
        slow("threads", ["bad_sleeper", "bad_stubborn"]),
        slow("asyncio", ["bad_sleeper", "bad_stubborn"]),
    ],
)
def test_hooks_have_a_time_limit_of_their_own(project, producer, ledger, wait_for, pool, names):
    """In ``solo`` nothing ends a hook that wants to go on: it is in the worker's own thread."""
    project.write("    import fbtasks.run.hooks as hooks\n    hooks.LIMIT = 0.5\n" + SOURCE)
    project.worker("-c", "1", "--pool", pool)
    for name in names:
        result = producer.send_task(f"proj.{name}", (name,))
        query = f"SELECT ERROR_TYPE FROM QUEUE_HISTORY WHERE NAME = 'proj.{name}:on_failure'"
        assert wait_for(lambda query=query: rows(producer, query)) == [("fbtasks.errors.TimeLimitExceeded",)]
        assert result.failed()
        assert producer.send_task("proj.add", (1, 2)).get(timeout=60) == 3
