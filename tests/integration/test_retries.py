"""Retries through the queue: how many, and what is seen of a task in between."""

import pytest
from support.draining import drain

from fbtasks import TaskFailure, TaskRevoked

pytestmark = pytest.mark.emptied


def test_retries_and_the_end_of_them(app):
    seen = []

    @app.task(name="flaky", bind=True, max_retries=2)
    def flaky(self):
        seen.append(self.request.retries)
        self.retry(exc=ValueError("no luck"), countdown=0)

    result = flaky.delay()
    drain(app)
    assert seen == [0, 1, 2]
    with pytest.raises(ValueError, match="no luck") as caught:
        result.get(timeout=1)
    assert "Remote traceback" in caught.value.__notes__[0]
    assert "flaky" in result.traceback


def test_the_last_try_that_asks_for_another_one_says_so(app):
    app.task(name="again", bind=True, max_retries=1)(lambda self: self.retry(countdown=0))
    result = app.tasks["again"].delay()
    drain(app)
    with pytest.raises(TaskFailure, match="the task asked for another try, and max_retries 1 is used up"):
        result.get(timeout=1)


def test_autoretry_with_the_calls_own_limit_and_hooks(app):
    heard = []
    options = {
        "autoretry_for": (OSError,),
        "default_retry_delay": 0,
        "on_failure": lambda r, e: heard.append((r.retries, e)),
    }
    bad = app.task(name="bad", **options)(lambda: open("/nosuch"))
    result = bad.apply_async(max_retries=4)
    drain(app)
    assert result.failed()
    assert heard[0][0] == 4
    with pytest.raises(FileNotFoundError):
        result.get(timeout=1)


def test_waiting_for_a_retry_is_shown(app):
    bad = app.task(name="bad", autoretry_for=(ZeroDivisionError,), default_retry_delay=3600)(lambda: 1 / 0)
    result = bad.delay()
    drain(app)
    assert result.status == "RETRY"
    assert result.revoke()
    with pytest.raises(TaskRevoked):
        result.get(timeout=1)
