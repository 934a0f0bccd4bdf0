"""The file of the database stays small under a steady load of large values, which are deleted as they go."""

import os

import kombu
import pytest
from firebird.driver.types import DbInfoCode
from support.capture import script
from support.draining import drain
from support.sources import apply
from support.sql import execute, one

import fbtasks.kombu
from fbtasks.queue.upkeep.housekeeping import Housekeeping

SIZE = 100_000
"""Bytes of a value."""
LIVE = 20
"""Values that are there at once."""
ROUNDS = 6


@pytest.fixture
def size(app):
    """The bytes by which the file has grown."""
    sql = "SELECT MON$PAGES * MON$PAGE_SIZE FROM MON$DATABASE"
    before = one(app, sql)
    return lambda: one(app, sql) - before


def used(session):
    """The bytes of the file that are in use; what is collected is not."""
    info = session.connection.info
    return info.get_info(DbInfoCode.PAGES_USED) * info.page_size


@pytest.mark.parametrize("value", ["result", "payload"])
def test_tasks(app, size, value):
    large = os.urandom(SIZE // 2).hex()

    @app.task(name="t", ignore_result=value == "payload")
    def t(given=None):
        return large

    keeping = Housekeeping(app.settings)
    with app.database.session() as session:
        for _ in range(ROUNDS):
            t.delay_many([(large,) if value == "payload" else () for _ in range(LIVE)])
            drain(app)
            execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = DATEADD(-3 DAY TO FINISH_TIME)")
            keeping.turn(session)
            keeping.room.turn(session)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_RESULT") == 0
    assert size() < 3 * LIVE * SIZE


def test_changes(app, size):
    """What waits in the log becomes the payloads of tasks, and goes with them."""
    script(app, "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, NOTE VARCHAR(8000))")
    heard = []
    app.on_change("ORDERS", update=True, columns=("NOTE",), name="noted")(lambda change: heard.append(change.key))
    apply(app)
    for number in range(LIVE):
        execute(app, "INSERT INTO ORDERS (ID) VALUES (?)", number)
    for turn in range(3 * ROUNDS):
        execute(app, f"UPDATE ORDERS SET NOTE = LPAD({turn}, 8000, 'x')")
        drain(app)
    assert len(heard) == 3 * ROUNDS * LIVE
    assert size() < 3 * (
        3 * LIVE * 8_000 + 500_000
    )  # in the table, in the log, in a payload; pages of tables and indexes


def test_messages(app, session, url, size, wait_for):
    large, got, before = os.urandom(SIZE), [], used(session)
    with kombu.Connection(url) as connection:
        queue = kombu.Queue("q", kombu.Exchange(""), routing_key="q")
        producer = connection.Producer()
        with connection.Consumer([queue], callbacks=[lambda body, message: (got.append(len(body)), message.ack())]):
            for turn in range(1, ROUNDS + 1):
                for _ in range(LIVE):
                    producer.publish(large, exchange="", routing_key="q", content_encoding="binary")
                while len(got) < turn * LIVE:
                    connection.drain_events(timeout=30)
                wait_for(lambda: used(session) < before + LIVE * SIZE / 2)
    fbtasks.kombu.close_all()
    assert size() < 3 * LIVE * SIZE
