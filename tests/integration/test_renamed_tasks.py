"""Calls whose task has another name in the code by now: they are parked, and hold up nobody."""

from contextlib import ExitStack, closing

import pytest
from support.draining import drain
from support.registering import register

from fbtasks import FBTasks


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


def test_they_hold_no_place_of_a_limit_and_health_tells_their_name(project, renamed):
    app, _, behind = renamed
    assert behind.status == "SUCCESS", "what is parked holds no place of a limit"
    register(app, tasks=["now"])
    said = project.run("health", check=False)
    assert "former" in said.stdout + said.stderr
