"""The connection to a server is cut under a consumer. Its process lives, and so does its lease."""

import gc
import subprocess
import sys
import time

import kombu
import pytest
from support.consuming import queue as queue_of
from support.proxy import before
from support.sql import rows

import fbtasks.kombu
from fbtasks.contrib.celery.transport.consumer import HEARTBEAT
from fbtasks.contrib.celery.transport.transport import LEASE
from fbtasks.errors import CommitUncertain, DatabaseUnavailable
from fbtasks.queue.register.processes import SHARE

pytestmark = pytest.mark.acceptance


@pytest.fixture
def proxy(app, url):
    app.migrate()
    with before(url) as proxy:
        yield proxy
    fbtasks.kombu.close_all()


def states(app):
    return [tuple(row) for row in rows(app, "SELECT STATE, REDELIVERED FROM QUEUE_MSG ORDER BY ID")]


def test_what_is_worked_on_stays_and_what_was_dropped_comes_again(app, proxy, wait_for):
    queue = queue_of("q")
    connection = kombu.Connection(proxy.url)
    messages = []
    consumer = connection.Consumer([queue], callbacks=[lambda body, message: messages.append(message)])
    consumer.consume()
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, exchange="", routing_key="q")
    while len(messages) < 3:
        connection.drain_events(timeout=5)
    done, working, dropped = messages
    messages.clear()
    done.ack()

    proxy.cut()
    producer.publish(3, exchange="", routing_key="q")
    while not messages:
        connection.drain_events(timeout=5)
    messages.pop().ack()  # a cut alone is not even noticed

    proxy.refuse(True)
    proxy.cut()
    lost = time.monotonic() + 30
    with pytest.raises(DatabaseUnavailable):
        while time.monotonic() < lost:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                pass
    connection.collect()
    consumer = None
    del dropped
    gc.collect()
    proxy.refuse(False)

    connection.ensure_connection(timeout=30)
    queue(connection.default_channel).declare()
    wait_for(lambda: states(app) == [(2, 0), (0, 1)], 30)
    time.sleep(LEASE / SHARE + 2 * HEARTBEAT)  # in which a consumer whose connection is gone would be taken for dead
    assert states(app) == [(2, 0), (0, 1)]
    working.ack()
    wait_for(lambda: states(app) == [(0, 1)])
    again = queue(connection.default_channel).get()
    assert again.delivery_info["redelivered"]
    again.ack()
    connection.release()


NEIGHBOUR = """
import sys, kombu, fbtasks.kombu
with kombu.Connection(sys.argv[1]) as connection:
    with connection.Consumer([kombu.Queue("other", kombu.Exchange(""), routing_key="other")], callbacks=[print]):
        while True:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                pass
"""


def test_a_consumer_that_is_kept_out_for_a_while_keeps_what_it_works_on(app, url, proxy, wait_for):
    queue = queue_of("q")
    consumers = "SELECT ID, HEARTBEAT_TIME FROM QUEUE_PROCESS ORDER BY ID"
    neighbour = None
    try:
        with kombu.Connection(proxy.url) as connection:
            messages = []
            with connection.Consumer([queue], callbacks=[lambda body, message: messages.append(message)]):
                connection.Producer().publish("x", exchange="", routing_key="q")
                while not messages:
                    connection.drain_events(timeout=5)
                neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, url])
                wait_for(lambda: len(rows(app, consumers)) == 2)
                (ours, _), (other, _) = before = rows(app, consumers)
                wait_for(lambda: all(heard not in before for heard in rows(app, consumers)))
                proxy.refuse(True)
                proxy.cut()
                time.sleep(HEARTBEAT + 2.0)
                proxy.refuse(False)
                (_, heard), _ = rows(app, consumers)
                wait_for(lambda: rows(app, consumers)[0][1] != heard)
                assert [number for number, _ in rows(app, consumers)] == [ours, other]
                messages.pop().ack()
                wait_for(lambda: states(app) == [])
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


@pytest.fixture
def publishing(proxy):
    """A producer on a connection through the proxy, warm: one publication more is a known number of bytes each way."""
    queue = queue_of("q")
    with kombu.Connection(proxy.url) as connection:
        queue(connection.default_channel).declare()
        producer = connection.Producer()

        def publish(body="x"):
            producer.publish(body, exchange="", routing_key="q")

        publish()
        yield publish


def bytes_of(proxy, publish):
    publish()
    before = dict(proxy.passed)
    publish()
    return {direction: passed - before[direction] for direction, passed in proxy.passed.items()}


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_publication_that_is_cut_anywhere_is_there_once(app, proxy, publishing, direction):
    size = bytes_of(proxy, publishing)[direction]
    done = len(states(app))
    for after in {*range(1, size, max(1, size // 20)), *range(size - 16, size + 1)}:
        publishing()  # on a connection that is open
        proxy.cut_after(after, direction)
        publishing()
        done += 2
        assert len(states(app)) == done, f"cut after {after} of {size} bytes"
        proxy.disarm()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_publication_in_doubt_is_settled_when_it_is_tried_again(app, proxy, publishing, direction):
    size = bytes_of(proxy, publishing)[direction]
    done = len(states(app))
    proxy.refuse(True)
    proxy.cut_after(size - 1, direction)  # the COMMIT is not whole, or its answer is not
    with pytest.raises(CommitUncertain):
        publishing("y")
    with pytest.raises(CommitUncertain):
        publishing("y")
    assert len(states(app)) == done + (direction == "to_client")
    proxy.refuse(False)
    publishing("y")
    assert len(states(app)) == done + 1
    publishing("y")
    assert len(states(app)) == done + 2
