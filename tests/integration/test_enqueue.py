"""Enqueuing: arguments are checked, many calls are one transaction, and plain SQL can do it."""

from datetime import UTC, datetime

import pytest
from support.sql import execute, one

from fbtasks import EnqueueError, SerializationError
from fbtasks.queue import results
from fbtasks.states import State
from fbtasks.testing import drain


def test_wrong_arguments_are_refused_at_enqueue(app, add):
    with pytest.raises(EnqueueError, match="'add' cannot be called"):
        add.delay(1)
    with pytest.raises(EnqueueError, match="countdown -1"):
        add.apply_async((1, 2), countdown=-1)
    with pytest.raises(EnqueueError, match="not both"):
        add.apply_async((1, 2), countdown=1, eta=datetime.now(UTC))
    with pytest.raises(SerializationError, match="'add'"):
        add.delay(object(), 1)
    with pytest.raises(EnqueueError, match="order-42"):
        add.apply_async((1, 2), task_id="42")


def test_bulk(app, add):
    found = add.delay_many([(i, 1) for i in range(1000)])
    assert len({result.id for result in found}) == 1000
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1000


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
