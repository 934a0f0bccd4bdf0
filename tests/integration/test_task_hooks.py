"""The hooks of a task and of its app: which are called, with what."""

import pytest
from support.children import child_executor
from support.draining import drain
from support.sql import execute, one, rows

from fbtasks import FBTasks, TaskDefinitionError, current_request
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as services
from fbtasks.tasks.call import Claim, Failed, Finished, Reason, reason_of
from fbtasks.testing import eager


def test_the_hooks_of_task_and_app(url):
    heard = []

    def hook(what):
        return lambda request, value: heard.append((what, request.task, request.args, request.retries, str(value)))

    def broken(request, value):
        raise RuntimeError("a hook's own trouble")

    app = FBTasks("hooks", url, on_success=hook("app good"), on_failure=hook("app bad"))
    good = app.task(name="good", on_success=hook("task good"), on_failure=hook("never"))(lambda n: n + 1)
    bad = app.task(
        name="bad", autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0, on_failure=hook("task bad")
    )(lambda text: int(text))
    stubborn = app.task(name="stubborn", on_success=broken)(lambda: "x")
    results = [good.delay(1), bad.delay("no number"), stubborn.delay()]
    drain(app)
    assert [result.status for result in results] == ["SUCCESS", "FAILURE", "SUCCESS"]
    message = "invalid literal for int() with base 10: 'no number'"
    assert sorted(heard) == [
        ("app bad", "bad", ("no number",), 1, message),
        ("app good", "good", (1,), 0, "2"),
        ("app good", "stubborn", (), 0, "x"),
        ("task bad", "bad", ("no number",), 1, message),
        ("task good", "good", (1,), 0, "2"),
    ]
    app.close()


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


def test_a_failure_that_is_undone_enqueues_no_hook(app, bad):
    bad.delay()
    with app.database.session() as session, pytest.raises(RuntimeError), session.transaction() as transaction:
        fail(app, transaction)
        raise RuntimeError
    assert rows(app, NAMES) == [("bad", "default", 0)]


def test_a_hook_that_is_gone_from_the_code_is_called_no_more(url):
    names = "SELECT NAME FROM QUEUE_ON_FAILURE"
    for hook, known in ((lambda *_: None, [("bad",)]), (None, [])):
        app = FBTasks("hooks", url)
        app.task(name="bad", on_failure=hook)(boom)
        drain(app)
        assert rows(app, names) == known
        app.close()


def test_the_hook_of_a_parked_task_that_nobody_knows_fails_once(app):
    heard = []
    app.on_failure = lambda request, error: heard.append((request.task, request.args, type(error).__name__))
    app.task(name="known")(boom)
    for name in ("unknown", "gone:on_failure"):
        app.send_task(name, (1,))
    drain(app)
    execute(app, "UPDATE QUEUE_TASK SET CLAIM_TIME = CLAIM_TIME - 30 WHERE STATE = 3")
    drain(app)
    assert heard == [("unknown", (1,), "UnknownTaskError")]
    assert sorted(rows(app, FAILED)) == [("gone:on_failure",), ("unknown",)]


def test_a_hook_is_told_the_inputs_of_a_step(app):
    heard = []
    add = app.task(name="add")(lambda *given: sum(given))
    bad = app.task(name="bad", on_failure=lambda request, error: heard.append(request.args))(boom)
    (add.s(1, 2) | bad.s("x" * 3000)).delay()
    drain(app)
    assert heard == [(3, "x" * 3000)]


def test_hooks_need_no_json_and_pass_no_middleware(url):
    heard = []
    app = FBTasks("hooks", url, serializer="cloudpickle", accept_content=["cloudpickle"], signing_key="k")

    @app.middleware
    class Noting:
        def around_run(self, request, go_on):
            heard.append(request.task)
            return go_on(request)

    app.task(name="bad", on_failure=lambda request, error: heard.append(request.args))(boom)
    app.tasks["bad"].delay({1, 2})
    drain(app)
    assert heard == ["bad", ({1, 2},)]
    app.close()


def test_the_name_of_a_hook_is_no_name_of_a_task(app):
    with pytest.raises(TaskDefinitionError, match="no task can be named 'x:on_failure'"):
        app.task(name="x:on_failure")(boom)


def test_a_long_name_is_cut_in_that_of_its_hook(app):
    heard = []
    app.task(name="ö" * 255, on_failure=lambda request, error: heard.append(request.task))(boom)
    app.tasks["ö" * 255].delay()
    drain(app)
    assert heard == ["ö" * 255]


CHILD = """
    def note(request, error):
        with open("noted", "a") as file:
            file.write(f"{request.task} {request.retries} {type(error).__name__} {current_request().id}\\n")

    @app.task(on_retry=note, autoretry_for=(OSError,), default_retry_delay=1)
    def plain(): raise OSError

    @app.task(on_retry=note, autoretry_for=(OSError,), default_retry_delay=1)
    async def coroutine(): raise OSError
"""


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
def test_on_retry_in_child_processes(pool, project, monkeypatch, wait_for):
    with child_executor(project, monkeypatch, CHILD, pool) as executor:
        wait_for(lambda: executor.collect() or executor.free())
        for number, name in enumerate(("proj.plain", "proj.coroutine"), 1):
            claim = Claim(number, 99, name, "q", content_type="application/json", payload=b"[[],{}]")
            wait_for(lambda claim=claim: executor.free() > 0 and executor.submit([claim]) == [])
            (ended,) = wait_for(executor.collect)
            assert reason_of(ended.outcome) is Reason.RETRY
    noted = (project.folder / "noted").read_text().splitlines()
    assert noted == ["proj.plain 0 OSError 1", "proj.coroutine 0 OSError 2"]
