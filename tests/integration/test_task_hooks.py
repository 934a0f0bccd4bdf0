"""The hooks of a task and of its app: which are called, with what."""

from fbtasks import FBTasks
from fbtasks.testing import drain


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
