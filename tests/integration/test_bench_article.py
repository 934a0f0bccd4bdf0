"""The method of the article that changes of a table are measured beside: it does what the article says."""

from contextlib import closing

import pytest

from benchmarks.article import drain, tables
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database

EVENTS = 50


@pytest.fixture
def own(url):
    """The URL of a database with the article's tables."""
    with scratch_database(url) as own:
        with closing(connect(own)) as connection:
            tables.create(connection)
        yield own


@pytest.fixture
def connection(own):
    with closing(connect(own)) as connection:
        yield connection


def read(connection, statement):
    with closing(connection.cursor()) as cursor:
        found = cursor.execute(statement).fetchall()
    connection.commit()
    return found


def test_one_worker_handles_each_change_once_and_in_order(url):
    found = drain.in_order(url, EVENTS)
    assert len(found.written) == EVENTS
    assert [worker.keys for worker in found.workers] == [found.written]
    assert (found.ordered, found.wrong, found.conflicts, found.kept) == (True, 0, 0, 0)
    assert found.left == {"ring_bell": 0, "send_email": EVENTS}
    assert found.rate == EVENTS / found.seconds > 0


@pytest.mark.slow
def test_five_processes_handle_each_change_once(url):
    found = drain.at_random(url, EVENTS)
    assert sorted(key for worker in found.workers for key in worker.keys) == found.written
    assert (len(found.workers), found.wrong, found.left["send_email"]) == (5, 0, EVENTS)
    assert found.left["ring_bell"] == found.kept
    assert not found.ordered


def test_the_log_has_a_row_for_each_subscriber_of_what_was_done(connection):
    (key,) = tables.insert(connection, 1)
    for action in "UD":
        connection.execute_immediate(
            f"INSERT INTO EVENT_SUBSCRIBER (TARGET_TABLE, ACTION, TAG) VALUES ('languages', '{action}', '{action}')"
        )
    connection.execute_immediate("INSERT INTO EVENT_SUBSCRIBER (TARGET_TABLE, ACTION, TAG) VALUES ('x', 'I', 'x')")
    connection.execute_immediate("UPDATE LANGUAGES SET NAME = 'C'")
    connection.execute_immediate("DELETE FROM LANGUAGES")
    connection.commit()
    statement = "SELECT S.TAG, L.PK FROM EVENT_LOG L JOIN EVENT_SUBSCRIBER S ON S.SUB_ID = L.SUB_ID ORDER BY L.LOG_ID"
    assert read(connection, statement) == [(tag, key) for tag in ("send_email", "ring_bell", "U", "D")]
