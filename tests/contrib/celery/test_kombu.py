"""The kombu transport as programs use it: one connection, several, forks, and many processes at once."""

import json
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import time
from urllib.parse import quote

import kombu
import pytest
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError
from support.consuming import drain, queue
from support.sql import one, rows

import fbtasks.kombu
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Publication
from fbtasks.contrib.celery.transport.address import url_of
from fbtasks.errors import ConfigurationError, EnqueueError, QueueFull, SerializationError
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance


@pytest.fixture
def connection(app, url):
    app.migrate()
    with kombu.Connection(url) as made:
        yield made
    fbtasks.kombu.close_all()


def publish(connection, name, *bodies, **options):
    producer = connection.Producer()
    for body in bodies:
        producer.publish(body, exchange="", routing_key=name, **options)


def count(app, table="QUEUE_MSG"):
    return one(app, f"SELECT COUNT(*) FROM {table}")


def test_two_consumers_on_one_connection_and_their_prefetch(connection):
    for name in ("a", "b"):
        queue(name)(connection.default_channel).declare()
        publish(connection, name, *range(5))
    got = {"a": [], "b": []}
    held = []
    one = connection.Consumer(
        [queue("a")], callbacks=[lambda b, m: (got["a"].append(b), held.append(m))], prefetch_count=2
    )
    two = kombu.Consumer(connection.channel(), [queue("b")], callbacks=[lambda b, m: (got["b"].append(b), m.ack())])
    with one, two:
        drain(connection, lambda: got == {"a": [0, 1], "b": [0, 1, 2, 3, 4]})
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.3)
        held[0].ack()
        drain(connection, lambda: got["a"] == [0, 1, 2])
    assert queue("a")(connection.default_channel).queue_declare(passive=True).message_count == 2


def test_a_consumer_without_acknowledgements_loses_nothing_when_it_stops(connection):
    queue("q")(connection.default_channel).declare()
    publish(connection, "q", *range(4))
    got = []
    with connection.Consumer([queue("q")], no_ack=True, callbacks=[lambda b, m: got.append(b)]):
        drain(connection, lambda: got)
    assert got == [0]
    assert queue("q")(connection.default_channel).queue_declare(passive=True).message_count == 3


def test_redelivered_is_where_celery_reads_it(connection):
    queue("q")(connection.default_channel).declare()
    publish(connection, "q", "x")
    message = queue("q")(connection.default_channel).get()
    assert message.delivery_info["redelivered"] is False
    message.requeue()
    again = queue("q")(connection.default_channel).get()
    assert again.delivery_info["redelivered"] is True
    again.ack()
    assert queue("q")(connection.default_channel).get() is None


def test_what_is_not_there_is_an_error(connection):
    channel = connection.default_channel
    for ask in (
        lambda: channel.queue_declare("missing", passive=True),
        lambda: channel.exchange_declare("missing", passive=True),
        lambda: channel.basic_consume("missing", callback=print),
        lambda: channel.basic_get("missing"),
        lambda: channel.queue_bind("missing", "amq.direct", "k"),
        lambda: connection.Producer().publish("x", exchange="missing", routing_key="k"),
    ):
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            ask()


def test_rejected_messages_go_to_the_dead_letter_exchange(connection):
    grave = kombu.Queue("grave", kombu.Exchange("dead"), routing_key="rip")
    grave(connection.default_channel).declare()
    arguments = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "rip"}
    source = queue("q", queue_arguments=arguments)
    source(connection.default_channel).declare()
    publish(connection, "q", {"a": 1}, headers={"h": 1})
    source(connection.default_channel).get().reject()
    found = grave(connection.default_channel).get()
    assert found.payload == {"a": 1}
    assert (found.headers["h"], found.headers["x-first-death-queue"]) == (1, "q")
    assert found.headers["x-death"][0]["reason"] == "rejected"


def test_a_message_that_is_requeued_too_often_is_kept_from_consumers(app, url, caplog):
    app.migrate()
    with kombu.Connection(url, transport_options={"delivery_limit": 2}) as connection:
        queue("q")(connection.default_channel).declare()
        publish(connection, "q", "again", headers={"task": "t", "id": "7"})
        publish(connection, "q", "next")
        got = []
        with connection.Consumer(
            [queue("q")], callbacks=[lambda b, m: (got.append(b), m.requeue() if b == "again" else m.ack())]
        ):
            drain(connection, lambda: "next" in got)
            drain(connection, lambda: got.count("again") == 3 and "delivery_limit" in caplog.text)
        assert queue("q")(connection.default_channel).get() is None
    fbtasks.kombu.close_all()
    assert sorted(got) == ["again"] * 3 + ["next"]
    assert "(task 't', id '7') came back 3 times" in caplog.text
    assert "STATE 3" in caplog.text
    assert rows(app, "SELECT STATE FROM QUEUE_MSG") == [(3,)]
    with pytest.raises(ConfigurationError, match="delivery_limit is 'many'"):
        kombu.Connection(url, transport_options={"delivery_limit": "many"}).connect()


def test_a_program_that_ends_by_its_message_is_counted(connection, app, url):
    """It closes no connection; what it held is given back at its exit."""
    queue("q")(connection.default_channel).declare()
    publish(connection, "q", "poison")
    done = run(
        """
        import sys, kombu, fbtasks.kombu
        def receive(body, message):
            raise ValueError(body)
        connection = kombu.Connection(sys.argv[1])
        queue = kombu.Queue("q", kombu.Exchange(""), routing_key="q")
        consumer = connection.Consumer([queue], callbacks=[receive])
        consumer.consume()
        connection.drain_events(timeout=20)
        """,
        url,
    )
    assert "ValueError: poison" in done.stderr
    assert count(app, "QUEUE_MSG WHERE STATE = 0 AND REDELIVERED = 1") == 1
    assert count(app, "QUEUE_PROCESS") == 0


def test_what_was_written_by_hand_does_not_end_the_consumer(connection, app, caplog):
    queue("q")(connection.default_channel).declare()
    for head in ("[1]", '{"p": {}, "h": [], "t": null, "e": null}', '{"p": {}, "h": {}, "t": ["x"], "e": null}'):
        raw = b"%08d%b" % (len(head), head.encode())
        app.database.use(lambda s, raw=raw: s.run(lambda t: messages.publish(t, [Publication("", "q", raw)])))
    publish(connection, "q", "good")
    got = []
    with connection.Consumer([queue("q")], callbacks=[lambda b, m: (got.append(b), m.ack())]):
        drain(connection, lambda: got)
    assert got == ["good"]
    assert caplog.text.count("cannot be read, and is rejected") == 3
    with pytest.raises(SerializationError, match="'high' is no number: priority must be one"):
        publish(connection, "q", "x", priority="high")


def test_what_is_to_last_for_ever_does(connection, app):
    dead = queue("dead", message_ttl=1e13, expires=1e13)
    origin = queue("origin", queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for each in (dead, origin, dead):  # declared twice, it is the same
        each(connection.default_channel).declare()
    publish(connection, "origin", "x", expiration=1e13)
    origin(connection.default_channel).get().reject()
    drained = []
    with connection.Consumer([dead], callbacks=[lambda body, message: drained.append(message)]):
        drain(connection, lambda: drained)
    drained[0].ack()
    app.database.use(lambda session: session.run(messages.sweep))
    dead(connection.default_channel).queue_declare(passive=True)


def test_a_batch_is_one_transaction(connection, app):
    queue("q")(connection.default_channel).declare()
    producer = connection.Producer()
    with producer.batch():
        for number in range(300):
            producer.publish({"n": number, "pad": "x" * 500}, exchange="", routing_key="q")
        assert count(app) == 0
    assert count(app) == 300
    with pytest.raises(RuntimeError), producer.batch():
        producer.publish("never", exchange="", routing_key="q")
        raise RuntimeError
    assert count(app) == 300
    assert connection.default_channel.queue_purge("q") == 300


def test_publishing_within_the_callers_transaction(connection, app):
    queue("q")(connection.default_channel).declare()
    with app.connect() as mine:
        with fbtasks.kombu.in_transaction(mine):
            publish(connection, "q", "first")
        mine.rollback()
        with fbtasks.kombu.in_transaction(mine):
            publish(connection, "q", "second")
            assert count(app) == 0
            mine.commit()
            with pytest.raises(EnqueueError, match="has ended, and another one would have nobody to commit it"):
                publish(connection, "q", "late")
    assert queue("q")(connection.default_channel).get().payload == "second"
    assert count(app) == 1, "that one, until it is acknowledged"


def test_a_message_wakes_the_event_loop(connection, app, url):
    queue("q")(connection.default_channel).declare()
    got = []
    hub = Hub()
    with connection.Consumer([queue("q")], callbacks=[lambda b, m: (got.append(time.monotonic() - b), m.ack())]):
        connection.register_with_event_loop(hub)
        with kombu.Connection(url) as other:
            for number in range(8):
                publish(other, "q", time.monotonic())
                limit = time.monotonic() + 20
                while len(got) <= number:
                    assert time.monotonic() < limit
                    hub.run_once()
    hub.close()
    assert sorted(got)[4] < 0.5, "by an event, not by polling"


def test_the_url_and_its_password(app):
    special = "p@ss:w/o?r#d;%"
    text = f"firebird://me:{quote(special, safe='')}@db.example:3051//srv/x.fdb?charset=UTF8"
    made = kombu.Connection(text)
    assert made.as_uri() == "firebird://me:**@db.example:3051//srv/x.fdb?charset=UTF8"
    assert made.as_uri(include_password=True) == text
    found = url_of(made)
    assert (found.password, found.database, found.options) == (special, "/srv/x.fdb", {"charset": "UTF8"})
    assert made.info()["hostname"] == "firebird://me@db.example:3051//srv/x.fdb?charset=UTF8"
    assert url_of(made.clone()) == found
    several = kombu.Connection(f"{text};firebird://u:p@other:3052//y.fdb?role=R;firebird:////srv/z.fdb")
    assert several.transport.client is several
    several.maybe_switch_next()
    assert url_of(several) == DatabaseURL.parse("firebird://u:p@other:3052//y.fdb?role=R")
    several.maybe_switch_next()
    assert url_of(several).embedded
    assert url_of(several).database == "/srv/z.fdb"


def test_passwords_of_alternates_are_not_shown_and_not_lost():
    urls = [f"firebird://u{n}:s%C3%A9cret{n}@h{n}:305{n}//q.fdb?role=R{n}" for n in range(3)]
    made = kombu.Connection(";".join(urls))
    copies = [made, made.clone(), made.clone().clone(), pickle.loads(pickle.dumps(made))]
    for shown in (made.info(), made.clone().info(), json.loads(json.dumps({**made.info(), "password": None}))):
        assert shown["alternates"] == [f"firebird://u{n}:***@h{n}:305{n}//q.fdb?role=R{n}" for n in range(3)]
        assert "cret" not in json.dumps({**shown, "password": None})
        assert "cret" not in repr({**shown, "password": None})
    for copy in copies:
        seen = []
        for _ in range(7):
            seen.append(url_of(copy))
            assert copy.transport.client is copy  # made anew after each switch
            copy.maybe_switch_next()
        assert seen == [DatabaseURL.parse(urls[n % 3]) for n in range(7)]


def test_a_connection_switches_to_an_alternate_as_it_is_shown():
    urls = [f"firebird://u:s%C3%A9cret{n}@h{n}:305{n}//q.fdb" for n in range(3)]
    made = kombu.Connection(";".join(urls))
    for _ in range(2):
        for number in (2, 1, 0):
            assert made.transport.client is made  # which hides the passwords
            made.switch(made.alt[number])
            assert url_of(made) == DatabaseURL.parse(urls[number])


def run(source, *arguments):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_scheme_is_known_to_celery_without_an_import():
    done = run("""
        from celery import Celery
        app = Celery(broker="firebird:///tmp/x.fdb", backend="firebird:///tmp/x.fdb")
        print(app.connection().transport_cls, type(app.backend).__name__, app.connection().as_uri())
    """)
    assert done.stdout.split() == ["firebird", "FirebirdBackend", "firebird:///tmp/x.fdb"], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit to raise, and no such descriptors")
def test_a_program_with_many_open_files_rests_while_it_waits_and_is_woken(connection, url):
    """Descriptors from 1024 on, which select() does not take."""
    queue("q")(connection.default_channel).declare()
    done = run(
        """
        import os, resource, socket, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        import kombu, fbtasks.kombu
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        connection, looks = kombu.Connection(sys.argv[1]), []
        def receive(body, message):
            message.ack()
            print(body)
        consumer = connection.Consumer([kombu.Queue("q", kombu.Exchange(""), routing_key="q")], callbacks=[receive])
        consumer.consume()
        transport = connection.transport
        deliver = transport.deliver
        transport.deliver = lambda: (looks.append(1), deliver())[1]
        try:
            connection.drain_events(timeout=2)
        except socket.timeout:
            print("none", len(looks) < 100)
        with kombu.Connection(sys.argv[1]) as other:
            other.Producer().publish("came", exchange="", routing_key="q")
        connection.drain_events(timeout=20)
        connection.close()
        fbtasks.kombu.close_all()
        """,
        url,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["none", "True", "came"]


def test_nothing_is_lost_when_a_connected_process_forks(connection, app, url):
    """A parent that consumes and publishes forks again and again; parent and children publish; the rows are counted."""
    queue("q")(connection.default_channel).declare()
    done = run(
        """
        import os, socket, sys
        import kombu, fbtasks.kombu
        connection = kombu.Connection(sys.argv[1])
        queue = kombu.Queue("listened", kombu.Exchange(""), routing_key="listened")
        consumer = connection.Consumer([queue], callbacks=[lambda body, message: None])
        consumer.consume()
        def publish(made):
            producer = made.Producer()
            for number in range(20):
                producer.publish(number, exchange="", routing_key="q")
        children = []
        for _ in range(4):
            publish(connection)
            child = os.fork()
            if child == 0:
                try:
                    connection.collect()
                    with kombu.Connection(sys.argv[1]) as own:
                        publish(own)
                except BaseException as error:
                    print(repr(error), file=sys.stderr)
                    os._exit(1)
                fbtasks.kombu.close_all()
                os._exit(0)
            children.append(child)
            publish(connection)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        connection.close()
        fbtasks.kombu.close_all()
        """,
        url,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["0"] * 4
    assert count(app) == 4 * 60
    assert count(app, "QUEUE_PROCESS") == 0


@pytest.mark.no_database
@pytest.mark.embedded("loading the engine is what takes long")
def test_a_fork_waits_for_the_first_connection_that_another_thread_makes(url):
    """And its child may connect."""
    done = run(
        """
        import os, signal, sys, threading, time, traceback
        import kombu, fbtasks.kombu
        from fbtasks.url import DatabaseURL
        from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
        def runs(thread, name):
            frame = sys._current_frames().get(thread.ident)
            return any(each.f_code.co_name == name for each, _ in traceback.walk_stack(frame))
        def hold():
            with exclusive(folder_of(DatabaseURL.parse(sys.argv[1]).database) / "create.lock"):
                held.set()
                while not runs(threading.main_thread(), "_before_fork"):
                    time.sleep(0.01)
        held = threading.Event()
        connection = kombu.Connection(sys.argv[1])
        holder, first = threading.Thread(target=hold), threading.Thread(target=connection.connect)
        holder.start()
        held.wait()
        first.start()
        while not runs(first, "exclusive"):
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            with kombu.Connection(sys.argv[1]) as own:
                own.connect()
                print("child", own.connected, flush=True)
            fbtasks.kombu.close_all()
            os._exit(0)
        print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        first.join()
        connection.close()
        fbtasks.kombu.close_all()
        """,
        url,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["child", "True", "exit", "0"]


def test_a_fork_in_the_middle_of_something_begins_no_second_listener(connection, app, url):
    """Nothing was detached before such a fork, so nothing is attached after it."""
    done = run(
        """
        import os, sys, threading
        import kombu, fbtasks.kombu
        connection = kombu.Connection(sys.argv[1])
        queue = kombu.Queue("listened", kombu.Exchange(""), routing_key="listened")
        consumer = connection.Consumer([queue], callbacks=[lambda body, message: None])
        consumer.consume()
        def fork(transaction):
            child = os.fork()
            if child == 0:
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        shared = connection.transport.process.shared
        print([shared.use(fork) for _ in range(3)])
        print(sum(thread.name == "fbtasks-events" for thread in threading.enumerate()))
        fork(None)
        print(sum(thread.name == "fbtasks-events" for thread in threading.enumerate()))
        connection.close()
        fbtasks.kombu.close_all()
        """,
        url,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[0, 0, 0]", "1", "1"]


CONSUMER = """
import collections, socket, sys, time
import kombu, fbtasks.kombu
got = []
with kombu.Connection(sys.argv[1]) as connection:
    queue = kombu.Queue("q", kombu.Exchange(""), routing_key="q")
    def receive(body, message):
        got.append(body)
        message.ack()
    with connection.Consumer([queue], callbacks=[receive], prefetch_count=50):
        print("ready", flush=True)
        sys.stdin.readline()
        idle = 0
        while idle < 3:
            try:
                connection.drain_events(timeout=1)
                idle = 0
            except socket.timeout:
                idle += 1
    conflicts = connection.transport.process.shared.conflicts
fbtasks.kombu.close_all()
print(conflicts, *got)
"""


@pytest.mark.parametrize("messages", [int(os.environ.get("FBTASKS_TEST_MESSAGES", "300"))])
def test_three_consumers_share_a_queue(connection, app, url, messages):
    queue("q")(connection.default_channel).declare()
    producer = connection.Producer()
    with producer.batch():
        for number in range(messages):
            producer.publish(number, exchange="", routing_key="q")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    got, conflicts = [], 0
    for process in processes:
        first, *numbers = process.communicate(timeout=180)[0].split()
        conflicts += int(first)
        got.extend(map(int, numbers))
    assert sorted(got) == list(range(messages)), "none lost, none twice"
    if DatabaseURL.parse(url).embedded:
        assert conflicts == 0
    for table in ("QUEUE_MSG", "QUEUE_MSG_BODY", "QUEUE_MSG_USE"):
        assert count(app, table) == 0


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_names_that_differ_in_the_spaces_at_their_ends_are_two(connection, kind):
    """RabbitMQ and Redis tell them apart as well; SQL takes them for one."""
    channel = connection.default_channel
    names = ["q", "q ", "q  ", "q\x03", "q \x03"]
    exchange = kombu.Exchange("x", kind)
    queues = [kombu.Queue(name, exchange, routing_key=name, channel=channel) for name in names]
    for each in queues:
        each.declare()
    producer = connection.Producer()
    for name in names:
        producer.publish([kind, name], exchange="x", routing_key=name)
        producer.publish(["", name], exchange="", routing_key=name)
    found = [[each.get(no_ack=True) for _ in range(3)] for each in queues]
    assert [[each and each.payload for each in some] for some in found] == [
        [[kind, name], ["", name], None] for name in names
    ]
    keys = [[each.delivery_info["routing_key"] for each in some[:2]] for some in found]
    assert keys == [[name] * 2 for name in names]
    assert sorted(channel.list_bindings()) == sorted((name, "x", name) for name in names)
    assert [row.name for row in channel.lengths(names)] == names
    producer.publish(1, exchange="", routing_key="q ")
    assert [each.purge() for each in queues] == [0, 1, 0, 0, 0]
    queues[0].unbind_from(exchange, "q")
    queues[2].delete()
    producer.publish(2, exchange="x", routing_key="q ")
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        queues[2].get()
    assert [queues[at].queue_declare(passive=True).message_count for at in (0, 1, 3)] == [0, 1, 0]


def test_consumers_and_dead_letters_tell_spaces_at_ends_apart(connection):
    channel = connection.default_channel
    grave = kombu.Queue("grave", kombu.Exchange("dead "), routing_key="rip ", channel=channel)
    grave.declare()
    kombu.Queue("other", kombu.Exchange("dead"), routing_key="rip", channel=channel).declare()
    arguments = {"x-dead-letter-exchange": "dead ", "x-dead-letter-routing-key": "rip "}
    source = queue("q ", queue_arguments=arguments)
    source(channel).declare()
    queue("q")(channel).declare()
    publish(connection, "q ", 1)
    publish(connection, "q", 2)
    got = []
    with connection.Consumer([source], callbacks=[lambda body, m: (got.append(body), m.reject())]):
        drain(connection, lambda: got)
    assert got == [1]
    found = grave.get(no_ack=True)
    assert (found.payload, found.headers["x-first-death-queue"]) == (1, "q ")
    assert [channel.queue_declare(name, passive=True).message_count for name in ("q", "other")] == [1, 0]


def test_names_that_are_too_long_are_refused_before_anything_is_sent(connection, app):
    channel = connection.default_channel
    longest, long = "n" * 250, "n" * 251
    channel.queue_declare(longest)
    channel.exchange_declare(longest)
    channel.queue_bind(longest, longest, longest)
    publish(connection, longest, 1)
    assert channel.basic_get(longest).payload == 1
    dead = {"x-dead-letter-exchange": long}
    for ask in (
        lambda: channel.queue_declare(long),
        lambda: channel.queue_declare("n" * 249 + "  "),
        lambda: channel.queue_declare("q", arguments=dead),
        lambda: channel.exchange_declare(long),
        lambda: channel.queue_bind("q", "amq.direct", long),
        lambda: channel.basic_get(long),
        lambda: connection.Producer().publish("x", exchange="", routing_key=long),
    ):
        with pytest.raises(SerializationError, match=r"nnn.* has 25\d characters; .* has 250 at most"):
            ask()
    with pytest.raises(SerializationError, match="5 is a int: the name of a queue"):
        channel.queue_declare(5)
    assert count(app, "QUEUE_MSG_QUEUE") == 1


def test_a_full_queue_refuses_what_is_published_when_it_is_declared_so(connection):
    channel = connection.default_channel
    exchange = kombu.Exchange("all", "fanout")
    arguments = {"x-overflow": "reject-publish"}
    bounded = kombu.Queue("bounded", exchange, max_length=2, queue_arguments=arguments, channel=channel)
    other = kombu.Queue("other", exchange, channel=channel)
    bounded.declare()
    other.declare()
    producer = connection.Producer(exchange=exchange)
    for number in (1, 2):
        producer.publish(number)
    said = "the queue bounded is full, and rejects what is published: its x-max-length is 2. Nothing was published."
    for go in (lambda: producer.publish(3), lambda: publish(connection, "bounded", 3)):
        with pytest.raises(QueueFull) as refused:
            go()
        assert str(refused.value) == said
    with pytest.raises(QueueFull), producer.batch():
        producer.publish(4, exchange="", routing_key="other")
        producer.publish(5)
    assert [bounded.get(no_ack=True).payload for _ in range(2)] == [1, 2]
    producer.publish(6)
    assert [message.payload for message in iter(lambda: other.get(no_ack=True), None)] == [1, 2, 6]
    later = {"task": "t", "id": "i", "eta": "2999-01-01T00:00:00+00:00"}
    publish(connection, "bounded", 7)
    publish(connection, "bounded", 8, headers=later)  # is not ready, and does not count
    queue("bounded", max_length=2)(channel).declare()  # from now on the oldest one goes
    publish(connection, "bounded", 9)
    assert [message.payload for message in iter(lambda: bounded.get(no_ack=True), None)] == [7, 9]


def test_a_dead_letter_comes_into_a_full_queue(connection):
    """Its publisher has been answered long since."""
    channel = connection.default_channel
    queue("grave", max_length=1, queue_arguments={"x-overflow": "reject-publish"})(channel).declare()
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    source = queue("q", queue_arguments=dead)(channel)
    source.declare()
    publish(connection, "q", 1, 2)
    for _ in range(2):
        source.get().reject()
    grave = queue("grave")(channel)
    assert [grave.get(no_ack=True).payload for _ in range(2)] == [1, 2]
    publish(connection, "grave", 3)
    with pytest.raises(QueueFull):
        publish(connection, "grave", 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x-max-length-bytes": 10}, "x-max-length-bytes=10 of the queue 'q' has no effect on Firebird: limit"),
        ({"x-max-length": 5, "x-overflow": "reject-publish-dlx"}, "x-overflow='reject-publish-dlx'"),
        ({"x-queue-type": "stream"}, "x-queue-type='stream' .*: it may be 'classic' or 'quorum'"),
        ({"x-single-active-consumer": True}, "x-single-active-consumer=True"),
        ({"x-delivery-limit": 3}, "x-delivery-limit=3 .*: set delivery_limit in broker_transport_options"),
        ({"x-max-priority": 255}, "x-max-priority=255 .*: it may be a whole number up to 10"),
        ({"x-consumer-timeout": 1000}, "x-consumer-timeout=1000 .*: leave it out"),
    ],
)
def test_an_argument_of_a_queue_that_has_no_effect_is_refused(connection, arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        queue("q", queue_arguments=arguments)(connection.default_channel).declare()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        connection.default_channel.queue_declare("q", passive=True)


def test_exchanges_publications_and_consumers_with_what_has_no_effect_are_refused(connection):
    channel = connection.default_channel
    queue("q")(channel).declare()
    for ask, said in (
        (lambda: channel.exchange_declare("x", arguments={"alternate-exchange": "y"}), "alternate-exchange='y'"),
        (lambda: channel.exchange_declare("x", arguments={"x-delayed-type": "direct"}), "x-delayed-type='direct'"),
        (lambda: publish(connection, "q", 1, mandatory=True), "mandatory=True of a message .*: set deadletter_queue"),
        (lambda: publish(connection, "q", 1, immediate=True), "immediate=True"),
        (lambda: publish(connection, "q", 1, headers={"CC": ["r"]}), r"CC=\['r'\]"),
        (lambda: publish(connection, "q", 1, headers={"BCC": ["r"]}), r"BCC=\['r'\]"),
        (lambda: channel.basic_consume("q", callback=print, arguments={"x-priority": 5}), "x-priority=5 of a consumer"),
        (lambda: channel.basic_consume("q", callback=print, exclusive=True), "exclusive=True"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            ask()
    producer = connection.Producer()
    with pytest.raises(ConfigurationError, match="mandatory=True"), producer.batch():
        producer.publish(1, exchange="", routing_key="q", mandatory=True)
    assert channel.basic_get("q") is None
    assert "x" not in channel.get_exchanges()


def test_arguments_that_ask_for_what_is_so_here_are_taken(connection):
    """Arguments of quorum queues and of Celery's settings for them, and such as mean something to a program alone."""
    arguments = {
        "x-queue-type": "quorum", "x-queue-mode": "lazy", "x-max-priority": 10, "x-overflow": "drop-head",
        "x-dead-letter-strategy": "at-least-once", "x-queue-leader-locator": "balanced", "x-max-length-bytes": None,
        "x-single-active-consumer": False, "mine": 1,
    }  # fmt: skip
    channel = connection.default_channel
    kombu.Queue("q", kombu.Exchange("x", arguments={"mine": 1}), queue_arguments=arguments, channel=channel).declare()
    publish(connection, "q", 1, headers={"CC": "a text of the application's"})
    assert channel.basic_get("q").payload == 1
