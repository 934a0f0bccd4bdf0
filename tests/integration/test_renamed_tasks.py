"""Calls whose task has another name in the code by now: they are parked, and hold up nobody."""

import re
from contextlib import ExitStack, closing

import pytest
from support.draining import drain

from fbtasks import FBTasks
from fbtasks.queue.register import processes
from fbtasks.tasks.call import Reason, Requeue


@pytest.fixture
def renamed(url):
    """An app, in which a task has a new name: two calls of the former one wait, and another call behind them."""
    with ExitStack() as stack:

        def app(name):
            app = stack.enter_context(closing(FBTasks("test", url)))
            app.limit("two", at_once=2)
            return app, app.task(name=name, limits="two")(lambda n: n)

        _, former = app("former")
        first = former.delay_many([(1,), (2,)])
        now, task = app("now")
        behind = task.delay(3)
        drain(now)
        yield now, first, behind


def test_a_task_that_is_parked_holds_no_place_of_a_limit(renamed):
    _, _, behind = renamed
    assert behind.status == "SUCCESS"


def test_inspect_task_names_the_task_that_is_in_the_way(app, project, claim, end):
    move = app.task(name="move", ordered="key")(lambda key: None)
    first, second = move.delay(1), move.delay(1)
    end(claim(), Requeue(Reason.RETRY, 3600.0, "later"))
    claim()
    shown = project.run("inspect", "task", str(second.id)).stdout
    assert re.search(rf"\btask {first.id}\b", shown)


def test_health_tells_names_that_no_living_worker_knows(project, renamed):
    app, _, _ = renamed
    with app.database.session() as session:
        session.run(
            lambda t: processes.register(
                t, "worker", name="w@host", host="host", pid=4711, pid_start=1, lease=60.0, queues=["default"],
                pool="threads", concurrency=8, version="1", tasks=["now"],
            )
        )  # fmt: skip
    said = project.run("health", check=False)
    assert "former" in said.stdout + said.stderr
