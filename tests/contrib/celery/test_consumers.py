"""Consumers of the kombu transport in outages and after they were declared dead.

Nothing is delivered twice, and each consumer receives again.
"""

import gc
import threading
from contextlib import contextmanager

import kombu
import pytest
from support.consuming import drain, queue
from support.publishing import published
from support.sql import execute, one, rows

from fbtasks import kombu as transport
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.transport import claims
from fbtasks.contrib.celery.transport import process as processes
from fbtasks.contrib.celery.transport.claims import Uncertain
from fbtasks.contrib.celery.transport.consumer import ConsumerThread
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseUnavailable
from fbtasks.queue.register import processes as register
from fbtasks.url import DatabaseURL

LINGER = 0.3


@pytest.fixture(autouse=True)
def migrated(app, monkeypatch):
    app.migrate()
    monkeypatch.setattr(processes, "LINGER", LINGER)
    yield
    transport.close_all()


@pytest.fixture
def outage(monkeypatch):
    """While it lasts, no thread of this process reaches the database."""

    @contextmanager
    def away():
        def refuse(self, work):
            raise DatabaseUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(Database, "use", refuse)
            yield

    return away


@pytest.fixture
def process(url):
    """The one that the connections of this process use."""
    return processes.process_for(DatabaseURL.parse(url), lease=30.0, auto_migrate=None)


def publish(connection, *bodies, key="q"):
    for body in bodies:
        connection.Producer().publish(body, exchange="", routing_key=key)


def consume(connection, into, *queues):
    consumer = connection.Consumer(queues, callbacks=[lambda body, message: into.append(message)])
    consumer.consume()
    return consumer


def states(app):
    return [state for (state,) in rows(app, "SELECT STATE FROM QUEUE_MSG ORDER BY ID")]


def lose(connection):
    """As a program does that finds its connection lost."""
    with pytest.raises(DatabaseUnavailable):
        while True:
            try:
                connection.drain_events(timeout=2)
            except TimeoutError:
                pass
    connection.collect()


def test_what_is_worked_on_stays_while_a_program_takes_its_time_to_reconnect(app, url, outage, wait_for, process):
    connection, got = kombu.Connection(url), []
    consumer = consume(connection, got, queue())
    publish(connection, "x")
    drain(connection, lambda: got)
    with outage():
        lose(connection)
    beaten = one(app, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS")
    wait_for(lambda: one(app, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS") != beaten)
    lingered = threading.Event()
    assert not lingered.wait(4 * LINGER)
    assert states(app) == [2]
    got.pop().ack()
    wait_for(lambda: states(app) == [])
    del consumer
    gc.collect()
    wait_for(lambda: rows(app, "SELECT ID FROM QUEUE_PROCESS") == [])  # and now it is over
    connection.release()


def test_a_consumer_that_was_away_for_longer_than_it_lingers_works_again(app, url, outage, wait_for):
    connection, got = kombu.Connection(url), []
    consume(connection, got, queue())
    publish(connection, "x")
    drain(connection, lambda: got)
    with outage():
        lose(connection)
        got.pop().ack()  # waits to be written
        assert not threading.Event().wait(4 * LINGER)
        assert states(app) == [2]
    wait_for(lambda: states(app) == [])
    consume(connection, got, queue())
    publish(connection, "y")
    drain(connection, lambda: got)
    got.pop().ack()
    wait_for(lambda: states(app) == [])
    connection.release()


def test_a_large_message_whose_body_could_not_be_fetched_comes_again(app, url, monkeypatch):
    connection, got = kombu.Connection(url), []
    consume(connection, got, queue())
    publish(connection, "x" * 20_000)

    def refuse(transaction, number):
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(messages, "body", refuse)
        lose(connection)
    consume(connection, got, queue())
    drain(connection, lambda: got)
    assert got.pop().payload == "x" * 20_000
    connection.release()


def test_a_message_that_cannot_be_read_is_rejected_and_the_next_one_comes(app, url, wait_for, caplog):
    connection, got = kombu.Connection(url), []
    queue()(connection.default_channel).declare()
    publish(connection, "first", "second")
    execute(app, "UPDATE QUEUE_MSG SET MESSAGE = x'00ff' WHERE ID = (SELECT MIN(ID) FROM QUEUE_MSG)")
    consume(connection, got, queue())
    drain(connection, lambda: got)
    assert got.pop().payload == "second"
    assert "cannot be read" in caplog.text
    wait_for(lambda: states(app) == [2])
    connection.release()


def test_a_connection_that_is_closed_in_an_outage_gives_everything_back(app, url, outage, wait_for):
    connection, got = kombu.Connection(url), []
    held = []
    for name in ("one", "two"):
        channel = connection.channel()
        made = kombu.Consumer(channel, [queue(name)], callbacks=[lambda body, message: got.append(message)])
        made.consume()
        held.append(made)
        publish(connection, name, key=name)
    drain(connection, lambda: len(got) == 2)
    with outage():
        connection.release()
    wait_for(lambda: states(app) == [0, 0])
    wait_for(lambda: rows(app, "SELECT QUEUE_ID FROM QUEUE_MSG_USE") == [])


def test_a_claim_that_takes_effect_after_it_was_given_back_is_given_back_again(app, url, wait_for, process):
    with kombu.Connection(url) as connection:
        queue()(connection.default_channel).declare()
        publish(connection, "x")
        number, consumer = one(app, "SELECT ID FROM QUEUE_MSG_QUEUE"), process.register()
        session = app.database.open()
        with session.transaction() as late:
            assert len(messages.claim(late, consumer, 77, number, 1, b"")) == 1
            claim = Uncertain(consumer, 77, number)
            process.claims.note_lost(claim)
            wait_for(lambda: claim.again_at)  # given back in vain
        session.close()
        wait_for(lambda: states(app) == [0])


def test_a_consumer_that_was_buried_is_told_that_its_queue_is_gone(app, url, wait_for, process):
    connection, got = kombu.Connection(url), []
    consume(connection, got, queue("ours", auto_delete=True))
    app.database.use(
        lambda session: session.run(lambda t: register.rescue(t, process.consumer.number, gone=True, awake=1e6))
    )
    lose(connection)
    consume(connection, got, queue("ours", auto_delete=True))
    publish(connection, "x", key="ours")
    drain(connection, lambda: got)
    got.pop().ack()
    connection.release()
    wait_for(lambda: rows(app, "SELECT NAME FROM QUEUE_MSG_QUEUE WHERE NAME = 'ours'") == [])


def test_nobody_consumes_who_is_not_registered(app, url, process):
    with kombu.Connection(url) as connection:
        queue("ours", auto_delete=True)(connection.default_channel).declare()
        execute(app, "INSERT INTO QUEUE_MSG_USE (QUEUE_ID, CONSUMER_ID) SELECT ID, 999 FROM QUEUE_MSG_QUEUE")
        assert process.shared.use(lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", 998, "ours", 1)) is not None
        assert rows(app, "SELECT CONSUMER_ID FROM QUEUE_MSG_USE") == [(999,)]
        process.shared.use(messages.sweep)
        assert rows(app, "SELECT NAME FROM QUEUE_MSG_QUEUE") == []


def test_a_sweep_is_done_in_turns(app, url, process):
    with kombu.Connection(url) as connection:
        queue()(connection.default_channel).declare()
        producer = connection.Producer()
        for number in range(messages.BATCH + 1):
            producer.publish(number, exchange="", routing_key="q", expiration=0.001)
        process.register()
        assert process.consumer.sweep()
        assert len(states(app)) == 1
        assert not process.consumer.sweep()
        assert states(app) == []


def test_what_was_acknowledged_before_the_end_is_not_delivered_again(app, url, monkeypatch, process):
    """Its settlement waits when the process ends, and the thread flushes once more before it has stopped."""
    monkeypatch.setattr(claims, "_GATHER", 60.0)
    stop = ConsumerThread.stop

    def flush_and_stop(self):
        process.flush()
        stop(self)

    connection, got = kombu.Connection(url), []
    consume(connection, got, queue())
    publish(connection, "x")
    drain(connection, lambda: got)
    process.consumer.beat()  # so that the thread itself has nothing to flush for a second
    got.pop().ack()
    monkeypatch.setattr(ConsumerThread, "stop", flush_and_stop)
    transport.close_all()
    assert states(app) == []
    assert rows(app, "SELECT ID FROM QUEUE_PROCESS") == []
    connection.release()
    process.close()


def test_a_thread_whose_heartbeat_is_due_at_the_end_does_not_register_again(app, url, monkeypatch, process):
    stop = ConsumerThread.stop

    def beat_and_stop(self):
        self._beat()
        stop(self)

    connection, got = kombu.Connection(url), []
    consume(connection, got, queue())
    monkeypatch.setattr(ConsumerThread, "stop", beat_and_stop)
    transport.close_all()
    assert rows(app, "SELECT ID FROM QUEUE_PROCESS") == []
    connection.release()
    process.close()


@pytest.mark.parametrize("struck", [False, True])
def test_settlements_wait_while_there_is_no_consumer(app, url, process, struck):
    """A flush between two registrations does not drop them; of a consumer that was declared dead they are stale."""
    connection, got = kombu.Connection(url), []
    consume(connection, got, queue())
    publish(connection, "x")
    drain(connection, lambda: got)
    number, process.consumer.number = process.consumer.number, None
    got.pop().ack()
    process.flush()
    if struck:
        process.shared.use(lambda t: register.rescue(t, number, gone=True, awake=1e6))
        assert process.register() != number
        process.flush()
        assert states(app) == [0]
    else:
        process.consumer.number = number
        process.flush()
        assert states(app) == []
    connection.release()


def test_a_live_message_behind_many_expired_ones_comes_at_once(app, url, process):
    """Each claim takes away a batch of them and no more; it is made again without waiting for an event or a poll."""
    with kombu.Connection(url) as connection:
        channel = connection.default_channel
        queue()(channel).declare()
        for body in ("first", "second"):
            execute(app, published(10 * messages.BATCH, ttl=0))
            publish(connection, body)
        assert channel.basic_get("q", no_ack=True).payload == "first"
        got = []
        consumer = consume(connection, got, queue())
        connection.transport.inbox.poll_at = connection.transport.polling_interval = float("inf")
        connection.drain_events(timeout=5)
        assert got.pop().payload == "second"
        consumer.cancel()


def test_producers_that_come_and_go_leave_one_timer(url):
    before = threading.active_count()
    for _ in range(20):
        with kombu.Connection(url) as connection:
            queue()(connection.default_channel).declare()
            publish(connection, "x")
    assert threading.active_count() - before <= 3
