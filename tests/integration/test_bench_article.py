"""The method of the article that changes of a table are measured beside: it does what the article says."""

import signal
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from benchmarks import scratch
from benchmarks.article import drain, tables, workers
from benchmarks.database import NotMeasured
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database
from benchmarks.stopping import heed_signals
from benchmarks.trial import ROOT
from fbtasks.errors import DatabaseUnavailable

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


def test_a_claim_that_meets_a_lock_is_made_again(own, connection, wait_for):
    (key,) = tables.insert(connection, 1)
    handled = workers.Handled()

    def work():
        with closing(connect(own)) as other:
            workers.at_random(other, handled)

    with closing(connection.cursor()) as cursor:
        cursor.execute("SELECT LOG_ID FROM EVENT_LOG FOR UPDATE WITH LOCK").fetchall()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            wait_for(lambda: handled.conflicts)
            assert handled.keys == []
        finally:
            connection.rollback()
            thread.join(30)
    assert handled.keys == [key]
    assert tables.left(connection)["ring_bell"] == 0


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


def test_a_worker_that_fails_says_why(url, monkeypatch):
    create = tables.create

    def incomplete(connection):
        create(connection)
        connection.execute_immediate("ALTER TABLE EVENT_LOG DROP WORK_UPDATE")
        connection.commit()

    monkeypatch.setattr(tables, "create", incomplete)
    monkeypatch.setattr(drain, "SEVERAL", 2)
    with pytest.raises(NotMeasured, match="WORK_UPDATE"):
        drain.at_random(url, 1)


def test_a_request_to_end_while_the_database_is_created_drops_it(url, monkeypatch):
    made = []

    def interrupted(own, **options):
        connection = connect(own, **options)
        if options:
            made.append(own)
            signal.raise_signal(signal.SIGTERM)
        return connection

    monkeypatch.setattr(scratch, "connect", interrupted)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heed_signals()
    try:
        with pytest.raises(SystemExit), scratch_database(url):
            raise AssertionError("not reached")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with pytest.raises(DatabaseUnavailable):
        connect(*made)


def test_the_database_is_dropped_though_a_process_that_had_it_open_was_killed(url):
    opens = "import sys, benchmarks.internals as i; c = i.connect(sys.argv[1]); print('open', flush=True); input()"
    with scratch_database(url) as own:
        command = [sys.executable, "-c", opens, own]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout.readline() == b"open\n"
            connect(own).close()
            process.kill()
    with pytest.raises(DatabaseUnavailable):
        connect(own)
