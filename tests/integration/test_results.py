"""Results: from the call to its value, by id, and what is said of unknown ids."""

import pytest
from support.draining import drain

from fbtasks import AsyncResult, ConfigurationError, TaskNotFound
from fbtasks.queue import results
from fbtasks.queue.operations import tasks

pytestmark = pytest.mark.emptied


def test_unknown_ids(app, monkeypatch):
    monkeypatch.setattr("fbtasks.queue.notify.outcomes.GRACE", 0.1)
    with pytest.raises(TaskNotFound, match="'123'"):
        app.AsyncResult(123).get()
    assert app.AsyncResult("never").status == "PENDING"
    assert not app.AsyncResult("never").revoke()


def test_a_result_is_had_by_its_id_as_celery_spells_it(app, add):
    result = add.apply_async((1, 1), task_id="order-7")
    number = result._number
    drain(app)
    for found in (AsyncResult("order-7", app=app), AsyncResult(number, app=app), AsyncResult(str(number), app)):
        assert found.get(timeout=5) == 2
        assert found == app.AsyncResult(found.id)
    assert AsyncResult(17, app=app).id == "17"
    with pytest.raises(ConfigurationError, match=r"the id comes first, as in AsyncResult\(17, app=app\)"):
        AsyncResult(app, "17")
    with pytest.raises(ConfigurationError, match=r"AsyncResult\('17'\) needs its app"):
        AsyncResult("17")
    with pytest.raises(ConfigurationError, match="'shop' is not an app of fbtasks"):
        AsyncResult("17", app="shop")
    for wrong in (None, True, 1.5, b"17", "", ["17"]):
        with pytest.raises(ConfigurationError, match="is not the id of a task"):
            app.AsyncResult(wrong)


def test_the_arguments_of_a_task_that_is_put_back_meanwhile_are_found(app, session, monkeypatch):
    result = app.task(name="fails", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    read = session.read

    def read_and_retry(name, *params):
        found = read(name, *params)
        if name == "live_call":
            tasks.retry(app.database, [result.id])
        return found

    monkeypatch.setattr(session, "read", read_and_retry)
    assert results.call_of(session, int(result.id)) == ("application/json", b"[[],{}]")
