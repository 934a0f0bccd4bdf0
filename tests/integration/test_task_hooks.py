"""The hooks of a task and of its app: which are called, with what."""

import pytest
from support.draining import drain
from support.sql import execute, one, rows

from fbtasks import FBTasks, TaskDefinitionError, current_request
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as services
from fbtasks.tasks.call import Failed, Finished
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied


def test_on_retry(url):
    heard = []

    def hook(what):
        def note(request, error):
            heard.append((what, request.retries, type(error).__name__, request.connection))
            assert current_request() is request
            raise RuntimeError("a hook's own trouble")

        return note

    app = FBTasks("hooks", url, on_retry=hook("app"), on_failure=hook("app failed"))

    @app.task(name="asks", bind=True, on_retry=hook("task"), max_retries=1, transactional=True)
    def asks(self):
        self.retry(exc=LookupError(), countdown=0)

    app.task(name="falls", autoretry_for=(OSError,), max_retries=1, default_retry_delay=0)(fails)
    app.task(name="once", max_retries=0)(fails)
    for name in ("asks", "falls", "once"):
        app.send_task(name)
    drain(app)
    assert sorted(heard) == [
        ("app", 0, "LookupError", None), ("app", 0, "OSError", None), ("app failed", 0, "OSError", None),
        ("app failed", 1, "LookupError", None), ("app failed", 1, "OSError", None), ("task", 0, "LookupError", None),
    ]  # fmt: skip
    heard.clear()
    with eager(app):
        app.tasks["asks"].delay()
    assert [what for what, *_ in heard] == ["task", "app", "app failed"]
    app.close()


def fails():
    raise OSError


def boom(*args):
    raise ValueError("no")


NAMES = "SELECT NAME, QUEUE, -PRIORITY_RANK FROM QUEUE_TASK"
FAILED = "SELECT NAME FROM QUEUE_HISTORY WHERE STATE = 11 ORDER BY ID"


def test_the_hook_of_a_task_that_failed_is_a_task_in_its_queue(app):
    """It fails as a task does, and calls no hook then; an operator puts it back."""
    heard = []

    def hook(request, error):
        heard.append((request.id, request.args, request.queue, str(error), current_request() is request))
        if len(heard) == 1:
            raise LookupError("a hook's own trouble")

    app.task(name="bad", on_failure=hook)(boom)
    app.on_failure = lambda request, error: heard.append(request.task)
    app.on_success = lambda request, result: heard.append((request.task, result))
    app.task(name="good", on_success=lambda request, result: 1 / 0)(lambda: "x").apply_async(queue="small")
    drain(app, ["small"])
    assert heard == [("good", "x")]
    heard.clear()
    app.queue("small", max_length=1, when_full="reject")
    result = app.tasks["bad"].apply_async((1,), queue="small", priority=7)
    drain(app, ["small"])
    told = (result.id, (1,), "small", "no", True)
    assert heard == [told, "bad"]
    assert rows(app, FAILED) == [("bad",), ("bad:on_failure",)]
    hook_id = one(app, "SELECT ID FROM QUEUE_HISTORY WHERE NAME = 'bad:on_failure'")
    assert services.retry(app.database, [str(hook_id)]).count == 1
    assert rows(app, NAMES) == [("bad:on_failure", "small", 7)]
    drain(app, ["small"])
    assert heard == [told, "bad", told, "bad"]


@pytest.fixture
def bad(app):
    """A task of whose hook the database knows, which notes the ids of what has failed."""
    app.heard = []
    task = app.task(name="bad", on_failure=lambda request, error: app.heard.append(request.id))(boom)
    drain(app)
    return task


def fail(app, transaction):
    (claim,) = tasks.claim(transaction, 1, "default", 1)
    assert tasks.finish(transaction, 1, 0, [Finished(claim, Failed("E", "m"))]) == []


def test_a_failure_that_is_not_there_any_more_calls_no_hook(app, bad):
    put_back, deleted, stays = (bad.delay() for _ in range(3))
    with app.database.session() as session:
        for _ in range(3):
            session.run(lambda t: fail(app, t))
    assert rows(app, NAMES) == [("bad:on_failure", "default", 0)] * 3
    assert services.retry(app.database, [put_back.id]).count == 1
    execute(app, f"UPDATE QUEUE_TASK SET STATE = 1, START_TIME = START_TIME + 9 WHERE ID = {put_back.id}")
    execute(app, f"DELETE FROM QUEUE_HISTORY WHERE ID = {deleted.id}")
    drain(app)
    assert app.heard == [stays.id]
    assert rows(app, FAILED) == [("bad",)]


def test_a_hook_that_is_gone_from_the_code_is_called_no_more(url):
    names = "SELECT NAME FROM QUEUE_ON_FAILURE"
    for hook, known in ((lambda *_: None, [("bad",)]), (None, [])):
        app = FBTasks("hooks", url)
        app.task(name="bad", on_failure=hook)(boom)
        drain(app)
        assert rows(app, names) == known
        app.close()


def test_a_hook_of_a_long_name_is_told_the_inputs_of_a_step_and_passes_no_middleware(app):
    heard = []

    @app.middleware
    class Noting:
        def around_run(self, request, go_on):
            heard.append(request.task)
            return go_on(request)

    long = "ö" * 255
    add = app.task(name="add")(lambda *given: sum(given))
    bad = app.task(name=long, on_failure=lambda request, error: heard.append((request.task, request.args)))(boom)
    (add.s(1, 2) | bad.s("x" * 3000)).delay()
    drain(app)
    assert heard == ["add", long, (long, (3, "x" * 3000))]
    with pytest.raises(TaskDefinitionError, match="no task can be named 'x:on_failure'"):
        app.task(name="x:on_failure")(boom)


def test_hooks_need_no_json(url):
    heard = []
    app = FBTasks("hooks", url, serializer="cloudpickle", accept_content=["cloudpickle"], signing_key="k")

    app.task(name="bad", on_failure=lambda request, error: heard.append(request.args))(boom)
    app.tasks["bad"].delay({1, 2})
    drain(app)
    assert heard == [({1, 2},)]
    app.close()
