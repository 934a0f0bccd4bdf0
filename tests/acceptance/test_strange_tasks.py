"""Tasks, hooks, values and exceptions that exit, interrupt or fork: a run has one outcome, a place one server."""

from pathlib import Path

import pytest
from support.sql import rows
from support.variants import slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, os, signal, time

    def ran(name):
        with open("ledger", "a") as file:
            file.write(name + "\\n")

    def exits(*_):
        raise SystemExit("out of it")

    def interrupts(*_):
        raise KeyboardInterrupt

    class Unshowable(Exception):
        __str__ = __repr__ = __reduce__ = exits

    class Unsendable:
        __json__ = exits

    @app.task(max_retries=0)
    def raises_unshowable():
        ran("raises_unshowable")
        raise Unshowable("a", "b")

    @app.task(max_retries=0)
    def chains_unshowable():
        ran("chains_unshowable")
        raise ValueError("plain") from Unshowable("a", "b")

    @app.task
    def returns_unsendable():
        ran("returns_unsendable")
        return Unsendable()

    @app.task(on_success=exits)
    def succeeds_and_exits():
        ran("succeeds_and_exits")
        return "done"

    @app.task(on_success=interrupts)
    async def succeeds_and_interrupts():
        ran("succeeds_and_interrupts")
        return "done"

    @app.task(on_failure=interrupts)
    def fails_and_interrupts():
        ran("fails_and_interrupts")
        raise ValueError("no")

    @app.task(max_retries=0)
    async def exits_beside_itself():
        ran("exits_beside_itself")

        async def beside():
            exits()

        asyncio.get_running_loop().call_soon(interrupts)
        await asyncio.gather(beside())

    @app.task
    async def neighbour():
        ran("neighbour")
        while not os.path.exists("go"):
            await asyncio.sleep(0.02)

    @app.task
    def forks():
        forked = os.fork()
        ran(f"forks {os.getpid()}" if forked else f"forked {os.getpid()}")
        return os.getpid()

    @app.task
    async def forks_in_a_coroutine():
        return forks()

    @app.task
    def forks_and_exits():
        forked = os.fork()
        if not forked:
            raise SystemExit(7)
        return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])

    def ended(number, handler=None):
        started, told = os.pipe()
        forked = os.fork()
        if not forked:
            if handler:
                signal.signal(number, handler)
            os.write(told, b"1")
            time.sleep(20)
            os._exit(0)
        os.read(started, 1)
        # More than once: in the fork of a thread Python 3.13 calls a handler only when a signal interrupts a wait.
        while (done := os.waitpid(forked, os.WNOHANG)) == (0, 0):
            os.kill(forked, number)
            time.sleep(0.05)
        return os.waitstatus_to_exitcode(done[1])

    @app.task
    def ends_what_it_forks():
        of_its_own = ended(signal.SIGTERM, lambda *_: os._exit(5))
        return [of_its_own, *map(ended, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))]

    @app.task
    async def ends_what_it_forks_in_a_coroutine():
        return ends_what_it_forks()

    @app.task
    def pid():
        time.sleep(0.02)
        return os.getpid()
"""


@pytest.fixture
def producer(project):
    with project.producer(SOURCE) as app:
        yield app


def ended(pid):
    """Whether it is gone, or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("pool", ["processes", slow("asyncio"), "solo"])
def test_what_exits_or_interrupts_beside_the_task_costs_no_run(project, producer, wait_for, pool):
    outcomes = {
        "raises_unshowable": "FAILURE",
        "chains_unshowable": "FAILURE",
        "returns_unsendable": "FAILURE",
        "succeeds_and_exits": "SUCCESS",
        "succeeds_and_interrupts": "SUCCESS",
        "fails_and_interrupts": "FAILURE",
    }
    worker = project.worker("-c", "1", "-P", pool)
    results = {name: producer.send_task(f"proj.{name}") for name in outcomes}
    for result in results.values():
        wait_for(result.ready)
    assert {name: result.status for name, result in results.items()} == outcomes
    assert sorted((project.folder / "ledger").read_text().split()) == sorted(outcomes)
    hook = "SELECT ERROR_TYPE FROM QUEUE_HISTORY WHERE NAME = 'proj.fails_and_interrupts:on_failure'"
    assert wait_for(lambda: rows(producer, hook)) == [("builtins.KeyboardInterrupt",)]
    if pool == "processes":
        check_that_a_fork_does_not_serve(project, producer, wait_for, "forks")
    elif pool == "solo":
        check_that_a_fork_is_ended_by_signals(producer, "forks")
    worker.terminate()
    assert worker.wait(20) == 0
    log = project.logs()
    assert "The on_success hook of proj.succeeds_and_exits raised; the outcome stands." in log
    assert "crash" not in log


def test_what_exits_in_a_task_of_asyncio_ends_no_neighbour(project, producer, wait_for):
    worker = project.worker("-c", "3", "-P", "asyncio")
    neighbour = producer.send_task("proj.neighbour")
    wait_for((project.folder / "ledger").exists)
    guilty = producer.send_task("proj.exits_beside_itself")
    wait_for(guilty.ready)
    assert guilty.status == "FAILURE"
    assert guilty.traceback.endswith("SystemExit: out of it\n")
    (project.folder / "go").touch()
    wait_for(neighbour.ready)
    assert (project.folder / "ledger").read_text().split() == ["neighbour", "exits_beside_itself"]
    worker.terminate()
    assert worker.wait(20) == 0
    assert "KeyboardInterrupt was raised in the event loop, which goes on." in project.logs()


def check_that_a_fork_does_not_serve(project, producer, wait_for, name):
    """Whatever a process that this task forks does, it takes no task of its worker, which goes on."""
    (project.folder / "ledger").unlink(missing_ok=True)
    server = producer.send_task(f"proj.{name}").get(timeout=30)
    lines = wait_for(lambda: len(found := (project.folder / "ledger").read_text().splitlines()) == 2 and found)
    assert f"forks {server}" in lines
    (stray,) = [int(line.split()[1]) for line in lines if line.startswith("forked ")]
    wait_for(lambda: ended(stray), 5)
    assert {producer.send_task("proj.pid").get(timeout=30) for _ in range(5)} == {server}
    assert producer.send_task("proj.forks_and_exits").get(timeout=30) == 7
    check_that_a_fork_is_ended_by_signals(producer, name)


def check_that_a_fork_is_ended_by_signals(producer, name):
    """A fork of a task ends as in a program without fbtasks, and the worker takes no such signal for one to itself."""
    name = name.replace("forks", "ends_what_it_forks")
    assert producer.send_task(f"proj.{name}").get(timeout=30) == [5, -15, -10, -12]
    assert producer.send_task("proj.pid").get(timeout=30)


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("forks", "threads"),
        slow("forks", "asyncio"),
        ("forks_in_a_coroutine", "asyncio"),
        slow("forks_in_a_coroutine", "processes"),
        slow("forks_in_a_coroutine", "threads"),
    ],
)
def test_a_process_that_a_task_forks_does_not_serve_beside_it(project, producer, wait_for, pool, name):
    """In ``processes`` the test above looks at it.

    Coroutines have a loop of their own in ``processes`` and ``threads``, in the place where a function would run.
    """
    worker = project.worker("-c", "1", "-P", pool)
    check_that_a_fork_does_not_serve(project, producer, wait_for, name)
    worker.terminate()
    assert worker.wait(20) == 0
