"""Enqueuing: arguments are checked, many calls are one transaction, and plain SQL can do it."""

import pytest
from support.sql import execute

from fbtasks.queue import results
from fbtasks.states import State
from fbtasks.testing import drain

pytestmark = pytest.mark.emptied


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
