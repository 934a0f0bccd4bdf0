"""Batches in real workers of the pools: what each call ends with, whatever becomes of the batch."""

import pytest
from support.variants import slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, os, time
    from pathlib import Path

    OPTIONS = dict(batch=4, wait=0.3, time_limit=30)

    def note(word, requests):
        with open("ledger", "a") as file:
            file.write(f"{word} {' '.join(r.args[0] for r in requests)}\\n")

    def act(requests):
        words = [r.args[0] for r in requests]
        if "kill" in words: os.kill(os.getpid(), 9)
        note("done", requests)
        return [ValueError(word) if word == "bad" else word.upper() for word in words]

    @app.task(name="each", bind=True, **OPTIONS)
    def each(self, requests):
        note("begin", requests)
        self.update_state({"of": len(requests)})
        while any(r.args[0] == "hang" for r in requests) and not Path("go").exists(): time.sleep(0.01)
        return act(requests)

    @app.task(name="each_coroutine", **OPTIONS)
    async def each_coroutine(requests):
        note("begin", requests)
        while any(r.args[0] == "hang" for r in requests) and not Path("go").exists(): await asyncio.sleep(0.01)
        return act(requests)

    @app.task(name="late", **{**OPTIONS, "time_limit": 0.7})
    def late(requests):
        until = time.monotonic() + 20
        while time.monotonic() < until: time.sleep(0.01)
"""


@pytest.fixture
def ledger(project):
    """The batches of which a word was noted, each as the arguments of its calls."""

    def read(word):
        return [words for first, *words in map(str.split, project.lines()) if first == word]

    return read


def define(app, name):
    """The task as a producer has it."""
    return app.task(name=name, batch=4, wait=0.3)(lambda requests: None)


@pytest.mark.parametrize(
    ("pool", "name"),
    [("processes", "each"), slow("threads", "each"), ("asyncio", "each_coroutine")],
)
def test_each_call_has_its_own_end(project, wait_for, ledger, pool, name):
    with project.producer(SOURCE) as app:
        each, late = define(app, name), define(app, "late")
        project.worker("--pool", pool, "-c", "1")
        results = each.delay_many([("a",), ("bad",), ("b",), ("c",), ("d",)])
        assert [result.get(20) for result in results if result is not results[1]] == ["A", "B", "C", "D"]
        with pytest.raises(ValueError, match="bad"):
            results[1].get(20)
        assert sorted(map(len, ledger("begin"))) == [1, 4]

        # One is stopped on request: the others run again.
        stopped, *others = each.delay_many([("hang",), ("e",), ("f",), ("g",)])
        wait_for(lambda: ["hang", "e", "f", "g"] in ledger("begin"))
        if pool == "processes":
            wait_for(lambda: [result.info for result in others] == [{"of": 4}] * 3)
        assert stopped.revoke(terminate=True)
        assert [result.get(20) for result in others] == ["E", "F", "G"]
        wait_for(lambda: stopped.state == "REVOKED")

        for result in late.delay_many([("k",), ("l",)]):
            assert result.get(20, propagate=False).__class__.__name__ == "TimeLimitExceeded"


@pytest.mark.parametrize(
    ("pool", "name"), [("processes", "each"), slow("threads", "each"), slow("asyncio", "each_coroutine")]
)
def test_no_call_is_lost_with_a_worker_or_a_process(project, wait_for, ledger, pool, name):
    """Both deaths are for the worker to see, whatever runs in its children."""
    arguments = ("--pool", pool, "-c", "1", "--lease", "5")
    with project.producer(SOURCE) as app:
        each = define(app, name)
        worker = project.worker(*arguments)
        results = each.delay_many([("a",), ("hang",), ("b",), ("c",)])
        wait_for(lambda: ledger("begin"))
        worker.kill()
        (project.folder / "go").touch()
        project.worker(*arguments)
        assert [result.get(30) for result in results] == ["A", "HANG", "B", "C"]

        # One ends its process: it alone is to blame for that, when each has run by itself.
        killer, *others = each.delay_many([("kill",), ("h",), ("i",), ("j",)])
        assert [result.get(20) for result in others] == ["H", "I", "J"]
        assert killer.get(20, propagate=False).__class__.__name__ == "WorkerLost"
        assert sorted(ledger("done")[-3:]) == [["h"], ["i"], ["j"]]
