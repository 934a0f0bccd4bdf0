"""Celery's queues in dashboards."""

import pytest
from support.publishing import published
from support.registering import register
from support.sheets import Shown
from support.sql import execute, one

from fbtasks.contrib.celery import sheets
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import QueueSpec
from fbtasks.sheet import Ref

pytestmark = pytest.mark.emptied

HOSTILE = '<b>"q/../?%00 é'


@pytest.fixture
def celery(app):
    app.migrate()
    return Shown(app, "celery")


def declare(app, *names):
    """Returns the numbers of queues."""
    specs = [QueueSpec(name) for name in names]
    return app.database.use(
        lambda session: session.run(lambda t: [messages.declare_queue(t, spec, None).id for spec in specs])
    )


def test_queues_are_shown_with_their_messages_and_consumers(app, celery):
    (queue,) = declare(app, HOSTILE)
    execute(app, published(5, queue=HOSTILE))
    (line,) = celery.lines().values()
    assert line.wrong == "messages wait, and no process consumes them"
    consumer = register(app, "consumer", pid=77)
    execute(app, "INSERT INTO QUEUE_MSG_USE (QUEUE_ID, CONSUMER_ID) VALUES (?, ?)", queue, consumer)
    app.database.use(lambda session: session.run(lambda t: messages.claim(t, consumer, 1, queue, 2, b"")))
    last = one(app, "SELECT MAX(ID) FROM QUEUE_MSG WHERE STATE = 0")
    execute(app, "UPDATE QUEUE_MSG SET STATE = 3 WHERE ID = ?", last)
    detail = celery.detail(HOSTILE)
    assert detail.line.cells == {
        "Queue": Ref("celery", HOSTILE, HOSTILE),
        "Ready": 2,
        "Withheld": 0,
        "Claimed": 2,
        "Came back too often": 1,
        "Consumers": 1,
    }
    assert detail.line.wrong == "messages came back too often, and wait for an operator"
    (process,) = detail.tables["Consumers"]
    assert [process[title] for title in ("Host", "Process", "Alive", "Claimed messages")] == ["host", 77, True, 2]
    assert not celery.sheet.actions
    assert celery.detail("none such") is None


def test_pages_have_each_queue_once_and_messages_are_counted_up_to_a_bound(app, celery, monkeypatch):
    monkeypatch.setattr(sheets, "MOST", 3)
    declare(app, "a", "b", "c", "d", "x.celery.pidbox")
    execute(app, published(9, queue="b"))
    assert celery.keys(2) == ["a", "b", "c", "d"]
    assert celery.lines()["b"].cells["Ready"] == "3 or more"
