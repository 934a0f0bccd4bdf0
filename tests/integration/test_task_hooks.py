"""The hooks of a task and of its app: which are called, with what."""

import pytest
from support.children import child_executor
from support.draining import drain

from fbtasks import FBTasks, current_request
from fbtasks.tasks.call import Claim, Reason, reason_of
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
