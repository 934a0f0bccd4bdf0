"""Enqueuing: arguments are checked, many calls are one transaction, and plain SQL can do it."""

import pytest
from support.sql import execute

from fbtasks.queue import results
from fbtasks.states import State
from fbtasks.testing import drain

pytestmark = pytest.mark.emptied


def test_a_name_that_is_nearly_a_task_of_the_app_is_warned_of_once(app, add, caplog):
    app.send_task("elsewhere")
    assert caplog.records == []
    for _ in range(2):
        app.send_task("ad", (1, 1))
    assert caplog.messages == ["App 'test' sends 'ad', and has no task of that name. Did you mean 'add'?"]


def test_from_plain_sql(app, add):
    [(number,)] = execute(app, "SELECT ID FROM FBTASKS.ENQUEUE('add', '[20, 22]')")
    [(later,)] = execute(
        app,
        "SELECT ID FROM FBTASKS.ENQUEUE('add', '[1, 2]', '{}', DATEADD(1 HOUR TO CURRENT_TIMESTAMP), 'reports', 7)",
    )
    drain(app)
    assert app.AsyncResult(number).get(timeout=1) == 42
    with app.database.session() as session:
        row = results.find(session, later)
    assert (row.queue, row.priority, row.state) == ("reports", 7, State.SCHEDULED)
