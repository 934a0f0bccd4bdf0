"""What `get(timeout=)` says of a task that has not ended: what the database knows of it, as `inspect task` does."""

import asyncio
from datetime import UTC, datetime

import pytest
from support.registering import register
from support.sql import execute

from fbtasks import ResultTimeout, chain, group
from fbtasks.queue.operations import pausing, waiting
from fbtasks.testing import drain

pytestmark = pytest.mark.emptied

START = "Start one: fbtasks worker -A MODULE -Q default"


def late(result, timeout=0):
    """Returns what a get of *result* says that waits in vain; of one that waits in a coroutine it says the same."""
    with pytest.raises(ResultTimeout) as caught:
        result.get(timeout=timeout)

    async def wait():
        with pytest.raises(ResultTimeout) as again:
            await result.aget(timeout=timeout)
        return again.value

    assert str(asyncio.run(wait())) == str(caught.value)
    head, _, known = str(caught.value).partition(": ")
    assert head == f"task {result.id} has not ended" + (f" after {timeout} seconds" if timeout else "")
    return known


def test_no_such_task(app):
    app.migrate()
    assert late(app.AsyncResult(99), 0.02).startswith("the database knows no task of this id: it is not committed yet")
    assert late(app.AsyncResult("nosuch")).startswith("the database knows no task of this id")


def test_ready_and_no_worker_serves_its_queue(app, add):
    assert late(add.delay(1, 1)) == f"it is ready, and no worker serves its queue default. {START}"


def test_waits_because(app, add):
    register(app, tasks=["add"])
    first = add.delay(1, 1)
    assert late(first) == "it is ready, and its turn in the queue default has not come."
    pausing.pause(app.database, ["default"])
    assert late(first) == "it is ready, and its queue default is paused. To go on: fbtasks resume default"
    pausing.resume(app.database, ["default"])
    eta = datetime(2990, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert late(add.apply_async((1, 1), eta=eta)) == "it is scheduled for 2990-01-02 03:04:05 UTC."
    last = chain(add.s(1, 1), add.s(2)).delay()
    assert late(last).startswith("it is awaiting, and a step that it follows has not ended: fbtasks inspect workflow")
    members = group(add.s(1, 1), add.s(2, 2)).delay()
    with pytest.raises(ResultTimeout) as caught:
        members.get(timeout=0)
    first, _ = members.results
    assert str(caught.value) == (
        "2 of 2 tasks have not ended after 0 seconds. The first of them is task "
        f"{first.id}: it is ready, and its turn in the queue default has not come."
    )


def test_held_by_a_limit(app, claim):
    number = register(app, tasks=["one"])
    app.limit("gpu", at_once=1)
    one = app.task(name="one", limits={"gpu": None})(lambda: None)
    first, second = one.delay(), one.delay()
    assert late(second) == "it is held by gpu, and its turn has not come."
    assert [each.id for each in claim(worker=number)] == [int(first.id)]
    assert late(second) == f"it is held by gpu, and gpu is taken by task {first.id}, which runs."


def test_runs_on_a_worker_since(app, add, claim):
    number = register(app, name="shop@host", tasks=["add"])
    result = add.delay(1, 1)
    claim(worker=number)
    execute(app, "UPDATE QUEUE_TASK SET CLAIM_TIME = TIMESTAMP '2026-01-02 03:04:05.678'")
    assert late(result) == "it runs on worker shop@host since 2026-01-02 03:04:05 UTC."
    execute(app, "UPDATE QUEUE_PROCESS SET LEASE_UNTIL = TIMESTAMP '2026-01-02 00:00'")
    dead = "it is running, and its worker shop@host is dead"
    assert late(result) == f"{dead}, and no other one is alive to take it back. {START}"
    other = register(app, name="other@host")
    assert late(result) == f"{dead}. It runs again when another one has found that out (1 worker left)."
    execute(app, "DELETE FROM QUEUE_PROCESS WHERE ID <> ?", other)
    assert late(result).startswith("it is running, and its worker is not registered. It runs again")


def test_a_result_in_time_asks_for_nothing_more(app, add, monkeypatch):
    asked = []
    monkeypatch.setattr(waiting, "look", lambda *given: asked.append(given))
    result = add.delay(1, 1)
    drain(app)
    assert result.get(timeout=0) == asyncio.run(result.aget(timeout=0)) == 2
    assert asked == []
