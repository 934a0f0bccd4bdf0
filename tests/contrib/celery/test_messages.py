"""Messages in the database: routed, claimed, settled, rescued, on the real engine."""

import time
from contextlib import ExitStack

import pytest
from support.programs import command_line
from support.publishing import published
from support.sql import execute, held, one, table_reads

from fbtasks.config import Settings
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import DONE, GIVEN_BACK, REJECTED, UNSEEN, Publication, QueueSpec
from fbtasks.queue.operations.doctor.examination import examine
from fbtasks.queue.register import hosts, processes

pytestmark = pytest.mark.emptied

LONG = 1e6


PROCEDURES = {
    "bind": "FBTASKS_CELERY_API.BIND",
    "declare_exchange": "FBTASKS_CELERY_API.DECLARE_EXCHANGE",
    "drop_exchange": "FBTASKS_CELERY.DROP_EXCHANGE",
    "drop_queue": "FBTASKS_CELERY.DROP_QUEUE",
    "purge": "FBTASKS_CELERY_UPKEEP.PURGE",
    "settle": "FBTASKS_CELERY.SETTLE",
    "unbind": "FBTASKS_CELERY.UNBIND",
    "unclaim": "FBTASKS_CELERY.UNCLAIM",
    "unregister": "FBTASKS_WORKER.UNREGISTER",
    "use": "FBTASKS_CELERY.USE_QUEUE",
}


class Store:
    """The functions of ``messages`` and ``processes``, and procedures, each in a transaction of its own."""

    def __init__(self, shared):
        self.shared = shared
        self.claims = 0

    def __getattr__(self, name):
        if name in PROCEDURES:
            return lambda *args: self.shared.use(lambda t: t.call(PROCEDURES[name], *args))
        function = getattr(messages, name, None) or getattr(processes, name)
        return lambda *args, **options: self.shared.use(lambda t: function(t, *args, **options))

    def put(self, key, text=b"x", exchange="", **options):
        (routed,), _ = self.publish([Publication(exchange, key, text, **options)])
        return routed

    def queue(self, name, **options):
        return self.declare_queue(QueueSpec(name, **options), None).id

    def consumer(self, lease=30.0, **options):
        options = {"delivery_limit": messages.DELIVERY_LIMIT, **options}
        return self.register("consumer", host="elsewhere", pid=1, pid_start=1, lease=lease, **options)

    def take(self, consumer, queue, most=10, settled=b""):
        self.claims += 1
        return self.claim(consumer, self.claims, queue, most, settled)

    def waiting(self, name):
        return self.declare_queue(QueueSpec(name), None, passive=True).waiting


@pytest.fixture
def store(app):
    shared = SharedDatabase(Settings("test", url=app.settings.url))
    yield Store(shared)
    shared.close()


def texts(found):
    return [claimed.message for claimed in found]


def test_topic_keys_match_as_in_amqp(store):
    store.declare_exchange("t", "topic", 0, 0)
    cases = {
        "a.*": ["a.b", "a."], "a.#": ["a", "a.b", "a.b.c", "a."], "#": ["a", "a.b", "a.b.c", "a.", "x_y", "(a|b)"],
        "#.c": ["a.b.c"], "a.*.c": ["a.b.c"], "a.#.c": ["a.b.c"], "x_y": ["x_y"],
        "(a|b)": ["(a|b)"], "*": ["a", "x_y", "(a|b)"],
    }  # fmt: skip
    numbers = {}
    for key in cases:
        numbers[key] = store.queue(key)
        store.bind(key, "t", key)
    consumer = store.consumer()
    for key in ("a", "a.b", "a.b.c", "a.", "x_y", "(a|b)"):
        store.put(key, key.encode(), "t")
    for key, wanted in cases.items():
        assert sorted(texts(store.take(consumer, numbers[key]))) == sorted(w.encode() for w in wanted), key


def test_names_may_have_any_letters_and_messages_any_bytes(store):
    text = bytes(range(256)) * 31
    name = "\N{SNOWMAN};:\N{PILE OF POO}" * 50
    store.declare_exchange(name, "direct", 0, 0)
    queue, consumer = store.queue(name, dead_exchange="", dead_routing_key="grave"), store.consumer()
    grave = store.queue("grave")
    store.bind(name, name, name)
    assert store.put(name, text, name) == 1
    (claimed,) = store.take(consumer, queue)
    assert (claimed.exchange, claimed.routing_key, claimed.message) == (name, name, text)
    store.settle(consumer, claimed.settle(REJECTED))
    (dead,) = store.take(consumer, grave)
    assert (dead.dead_queue, dead.message, dead.exchange, dead.routing_key) == (name, text, "", "grave")


def test_one_copy_for_each_queue_however_often_it_is_bound(store):
    store.declare_exchange("f", "fanout", 0, 0)
    store.declare_exchange("d", "direct", 0, 0)
    for name in ("one", "two"):
        store.queue(name)
        store.bind(name, "f", "")
        store.bind(name, "f", "other")
        store.bind(name, "d", name)
    assert store.put("whatever", exchange="f") == 2
    assert store.put("one", exchange="d") == 1
    assert store.put("three", exchange="d") == 0
    assert store.put("three", exchange="missing") == -1
    assert store.put("three", exchange="missing", fallback="two") == 1
    assert (store.waiting("one"), store.waiting("two")) == (2, 2)
    assert store.unbind("one", "d", "one")
    assert store.put("one", exchange="d") == 0
    assert store.drop_exchange("f", 0)
    assert store.put("whatever", exchange="f") == -1


def test_higher_priority_first_and_then_first_come(store):
    queue, consumer = store.queue("q"), store.consumer()
    for number, priority in enumerate((0, 9, 3, 9)):
        store.put("q", b"%d" % number, priority=priority)
    assert texts(store.take(consumer, queue, 3)) == [b"1", b"3", b"2"]
    assert texts(store.take(consumer, queue, 3)) == [b"0"]
    assert store.take(consumer, queue) == []


def test_settling_is_fenced(store):
    queue, first, second = store.queue("q"), store.consumer(), store.consumer()
    store.put("q", b"x" * 20_000)
    (old,) = store.take(first, queue)
    assert old.message is None
    assert store.body(old.id) == b"x" * 20_000
    assert store.settle(second, old.settle(DONE)) == 1, "another consumer's"
    assert store.rescue(first, gone=True, awake=LONG) == (1, "its process is gone")
    (new,) = store.take(second, queue)
    assert (new.id, new.redelivered) == (old.id, True)
    assert store.settle(first, old.settle(DONE) + old.settle(GIVEN_BACK) + old.settle(REJECTED)) == 3
    assert store.settle(second, new.settle(DONE)) == 0
    assert store.body(old.id) is None
    assert store.take(first, queue) is None, "it is not registered any more"


def test_a_message_goes_back_to_its_own_queue_alone(store):
    store.declare_exchange("f", "fanout", 0, 0)
    one, two = store.queue("one"), store.queue("two")
    for name in ("one", "two"):
        store.bind(name, "f", "")
    store.put("", exchange="f")
    consumer = store.consumer()
    (mine,) = store.take(consumer, one)
    store.settle(consumer, mine.settle(GIVEN_BACK))
    assert (store.waiting("one"), store.waiting("two")) == (1, 1)
    (again,) = store.take(consumer, one)
    assert again.redelivered
    store.settle(consumer, again.settle(UNSEEN))
    assert not store.take(consumer, two)[0].redelivered


def test_withheld_until_due(store, wait_for):
    queue, consumer = store.queue("q"), store.consumer()
    now = int(time.time() * 1000)
    store.put("q", b"later", start=now + 3_600_000, priority=9)
    store.put("q", b"soon", start=now + 700)
    store.put("q", b"past", start=now - 5000)
    assert texts(store.take(consumer, queue)) == [b"past"]
    ready, seconds = store.ready([queue])
    assert (ready, 0 < seconds < 0.8) == (set(), True)
    assert texts(wait_for(lambda: store.take(consumer, queue))) == [b"soon"]
    assert store.waiting("q") == 1
    assert store.purge("q", 200) == 1


def test_a_priority_has_the_order_of_publication_also_when_a_message_was_withheld(store):
    queue, consumer = store.queue("q"), store.consumer()
    now = int(time.time() * 1000)
    store.put("q", b"withheld", start=now + 200)
    store.put("q", b"later")
    store.put("q", b"better", priority=1)
    time.sleep(0.25)
    assert texts(store.take(consumer, queue)) == [b"better", b"withheld", b"later"]


def test_time_to_live_and_what_becomes_of_the_dead(store, wait_for):
    store.declare_exchange("dead", "direct", 0, 0)
    store.queue("grave")
    store.bind("grave", "dead", "rip")
    queue = store.queue("q", message_ttl=60_000, dead_exchange="dead", dead_routing_key="rip", max_length=2)
    consumer = store.consumer()
    store.put("q", b"expired", ttl=1)
    time.sleep(0.01)
    assert store.take(consumer, queue) == []
    for text in (b"a", b"b", b"c"):
        store.put("q", text)
    (refused, _) = store.take(consumer, queue)
    store.settle(consumer, refused.settle(REJECTED))
    grave = store.queue("grave")
    found = store.take(consumer, grave)
    assert [(c.message, c.dead_queue, c.dead_reason) for c in found] == [
        (b"expired", "q", "expired"), (b"a", "q", "maxlen"), (b"b", "q", "rejected"),
    ]  # fmt: skip


def test_the_sweep_takes_away_what_is_over(store, wait_for):
    store.queue("idle", expires=200)
    used = store.queue("used", expires=200)
    consumer, gone = store.consumer(), store.consumer()
    store.use(consumer, "used", 1)
    store.put("used", b"old", ttl=1)
    store.put("used", b"new")
    (claimed,) = [c for c in store.take(gone, used) if c.message == b"new"]
    with store.shared.database.session() as session:
        session.run(lambda t: t.script(f"DELETE FROM QUEUE_PROCESS WHERE ID = {gone}"))
    assert wait_for(lambda: store.sweep()[0]) == 1
    assert store.declare_queue(QueueSpec("idle"), None, passive=True) is None
    (again,) = store.take(consumer, used)
    assert (again.id, again.redelivered) == (claimed.id, True)
    store.use(consumer, "used", 0)
    assert wait_for(lambda: store.sweep()[0]) == 1
    assert store.put("used") == 0


def test_two_queues_with_a_limit_may_be_the_dead_letter_queues_of_each_other(store):
    numbers = [
        store.queue(name, max_length=1, dead_exchange="", dead_routing_key=other) for name, other in ("ab", "ba")
    ]
    for text in (b"1", b"2", b"3"):
        store.put("a", text)
    consumer = store.consumer()
    assert [texts(store.take(consumer, number)) for number in numbers] == [[b"3"], [b"1", b"2"]]


def test_what_another_transaction_holds_is_left(store, app):
    queue, consumer = store.queue("q"), store.consumer()
    for number in range(3):
        store.put("q", b"%d" % number)
    first, *_ = store.take(consumer, queue)
    with held(app, "QUEUE_MSG", first.id):
        assert store.rescue(consumer, gone=True, awake=LONG)[0] == 2
        assert store.sweep().released == 0
    assert store.sweep().released == 1
    with held(app, "QUEUE_MSG", first.id):
        expire(store, f"ID <> {first.id}")
        assert store.sweep().expired == 2
        assert store.purge("q", 200) == 0
        store.queue("q", max_length=5)
    assert store.purge("q", 200) == 1


def test_an_auto_delete_exchange_goes_with_its_last_binding(store):
    for queue in ("one", "two"):
        store.queue(queue)
    store.declare_exchange("x", "fanout", 0, 1)
    for queue in ("one", "two"):
        store.bind(queue, "x", "")
    store.unbind("one", "x", "")
    assert store.put("", exchange="x") == 1
    store.drop_queue("two", 0, 0, None)
    assert store.put("", exchange="x") == -1


def test_what_follows_from_a_row_is_kept_also_when_it_is_changed_by_hand(store, app):
    queue, consumer = store.queue("q"), store.consumer()
    store.bind("q", "amq.topic", "#")
    store.use(consumer, "q", 1)
    for _ in range(2):
        store.put("q", b"x" * 20_000)
    claimed, _ = store.take(consumer, queue)
    execute(app, "UPDATE QUEUE_MSG SET STATE = 0 WHERE ID = ?", claimed.id)
    assert store.settle(consumer, claimed.settle(DONE)) == 1, "it is not the consumer's any more"
    assert texts(store.take(consumer, queue)) == [None]
    execute(app, "DELETE FROM QUEUE_MSG WHERE ID = ?", claimed.id)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_MSG_BODY") == 1
    execute(app, "DELETE FROM QUEUE_MSG_QUEUE WHERE ID = ?", queue)
    for table in ("QUEUE_MSG", "QUEUE_MSG_BODY", "QUEUE_MSG_BINDING", "QUEUE_MSG_USE"):
        assert one(app, f"SELECT COUNT(*) FROM {table}") == 0


def test_an_auto_delete_queue_goes_with_its_last_consumer(store):
    store.queue("q", auto_delete=True)
    one, two = store.consumer(), store.consumer()
    store.use(one, "q", 1)
    store.use(two, "q", 1)
    store.use(one, "q", 0)
    assert store.put("q") == 1
    store.rescue(two, gone=True, awake=LONG)
    assert store.put("q") == 0


def test_a_living_consumer_is_left_alone_and_a_dead_one_is_not(store, wait_for):
    pid = hosts.start_ticks(1)
    alive = store.register("consumer", host=hosts.host_name(), pid=1, pid_start=pid, lease=30)
    assert store.rescue(alive, gone=False, awake=LONG, share=10**6)[1] is None, "its connection is there"
    lease = store.consumer(lease=0.05)
    assert wait_for(lambda: store.rescue(lease, gone=False, awake=LONG, share=1).why) == "its lease ran out"
    queue, consumer = store.queue("q"), store.consumer()
    store.put("q")
    assert len(store.take(consumer, queue)) == 1
    assert store.unclaim(consumer, store.claims, queue) == 1
    reply = store.heartbeat("consumer", consumer, lease=30)
    assert reply.alive
    assert {other.process_id for other in reply.neighbours} == {alive}
    store.unregister(consumer)
    assert not store.heartbeat("consumer", consumer, lease=30).alive


def states(store):
    sql = "SELECT MESSAGE, STATE, REDELIVERED, DEAD_REASON FROM QUEUE_MSG ORDER BY ID"
    return store.shared.use(lambda t: t.driver.cursor().execute(sql).fetchall())


def test_a_message_that_comes_back_too_often_is_not_delivered_again(store):
    queue, consumer = store.queue("q"), store.consumer(delivery_limit=2)
    store.put("q", b"poison")
    store.put("q", b"good")
    for times in range(3):
        claimed = store.take(consumer, queue, 1)[0]
        assert (claimed.message, claimed.redelivered) == (b"poison", times > 0)
        for _ in range(3):  # what was never delivered does not count
            store.settle(consumer, claimed.settle(UNSEEN))
            (claimed,) = store.take(consumer, queue, 1)
        store.settle(consumer, claimed.settle(GIVEN_BACK))
    found = store.take(consumer, queue)
    assert texts(found) == [b"good"]
    (ended,) = found.ended
    assert (ended.times, ended.dead_lettered, ended.message) == (3, False, b"poison")
    assert states(store)[0] == (b"poison", 3, 3, "delivery_limit")
    assert (store.waiting("q"), store.take(consumer, queue), store.ready([queue])) == (0, [], (set(), None))
    assert store.rescue(consumer, gone=True, awake=LONG) == (1, "its process is gone")
    assert store.sweep()[:3] == (0, 0, 0)
    assert store.purge("q", 200) == 2


def test_it_goes_to_the_dead_letter_exchange_where_there_is_one(store):
    store.queue("grave")
    queue, consumer = store.queue("q", dead_exchange="", dead_routing_key="grave"), store.consumer(delivery_limit=0)
    store.put("q", b"x" * 20_000)
    (claimed,) = store.take(consumer, queue)
    store.settle(consumer, claimed.settle(GIVEN_BACK))
    found = store.take(consumer, queue)
    assert (found, found.ended[0].dead_lettered, found.ended[0].message) == ([], True, None)
    (dead,) = store.take(consumer, store.queue("grave"))
    assert (dead.dead_queue, dead.dead_reason, dead.redelivered) == ("q", "delivery_limit", False)
    assert store.body(dead.id) == b"x" * 20_000
    assert len(states(store)) == 1


def test_what_kills_its_consumers_ends_and_takes_no_neighbour_along(store):
    """The first of three messages kills each consumer that gets it, and the others were claimed together with it."""
    queue = store.queue("q")
    for text in (b"kills", b"a", b"b"):
        store.put("q", text)
    done, ended, deaths = [], [], 0
    while len(done) < 2:
        assert not {b"a", b"b"}.intersection(each.message for each in ended)
        consumer = store.consumer(delivery_limit=4)
        found = store.take(consumer, queue)
        ended += found.ended
        for claimed in found:
            if claimed.message == b"kills":
                break
            done.append(claimed.message)
            store.settle(consumer, claimed.settle(DONE))
        else:
            continue
        deaths += 1
        assert deaths < 10
        store.rescue(consumer, gone=True, awake=LONG)
    assert (deaths, done, [each.message for each in ended]) == (5, [b"a", b"b"], [b"kills"])
    assert [row[:2] for row in states(store)] == [(b"kills", 3)]


def test_without_a_limit_it_comes_back_for_ever(store):
    queue, consumer = store.queue("q"), store.consumer(delivery_limit=None)
    store.put("q")
    for _ in range(22):  # more than the default limit
        (claimed,) = store.take(consumer, queue)
        store.settle(consumer, claimed.settle(GIVEN_BACK))
    assert states(store) == [(b"x", 0, 22, None)]
    store.shared.use(lambda t: t.script("UPDATE QUEUE_MSG SET REDELIVERED = 1000000"))
    (claimed,) = store.take(consumer, queue)
    store.settle(consumer, claimed.settle(GIVEN_BACK))
    assert states(store) == [(b"x", 0, 1000001, None)]
    assert store.take(store.consumer(), queue).ended


def fill(store, queue, count, *, ttl="NULL", priority=0):
    store.shared.use(lambda t: t.script(published(count, queue, ttl=ttl, priority=priority)))


def expire(store, condition):
    store.shared.use(lambda t: t.script(f"UPDATE QUEUE_MSG SET EXPIRE_TIME = TIMESTAMP '2001-01-01' WHERE {condition}"))


def reads(store, work):
    """Rows of QUEUE_MSG that *work* reads: one after the other, and by an index."""
    with store.shared.database.session() as session:
        before = table_reads(session, "QUEUE_MSG")
        done = session.run(work)
        after = table_reads(session, "QUEUE_MSG")
    return done, after[0] - before[0], after[1] - before[1]


def test_a_sweep_reads_no_more_than_so_many_of_the_messages_that_wait(store):
    store.queue("full")
    store.queue("other")
    fill(store, "full", 5_000, ttl=3_600_000)
    fill(store, "other", 3)
    expire(store, "QUEUE_ID = (SELECT ID FROM QUEUE_MSG_QUEUE WHERE NAME = 'other')")
    swept, one_by_one, by_index = reads(store, lambda t: messages.sweep(t))
    assert swept[:3] == (0, 0, 3), "first of their queue, though 5,000 messages are older"
    assert one_by_one == 0
    assert by_index <= messages.READS + 100
    expire(store, "MOD(ID, 1250) = 77")  # in the middle of a queue
    found, sweeps, last = 0, 0, swept.last
    while last is not None:
        swept, one_by_one, by_index = reads(store, lambda t, after=last: messages.sweep(t, after))
        assert (one_by_one, by_index <= messages.READS + 100) == (0, True)
        found, sweeps, last = found + swept.expired, sweeps + 1, swept.last
    assert sweeps == 4
    found += store.sweep().expired  # from the beginning again
    assert found == 4


def test_a_claim_takes_away_no_more_than_a_batch_of_expired_messages(store):
    queue, consumer = store.queue("q"), store.consumer()
    fill(store, "q", 3 * messages.BATCH, ttl=1, priority=5)
    expire(store, "PRIORITY = 5")
    store.put("q", b"live")
    for left in (2, 1, 0):
        found = store.take(consumer, queue)
        assert (texts(found), found.unseen) == ([], True)
        with store.shared.database.session() as session:
            counted = session.run(lambda t: t.driver.cursor().execute("SELECT COUNT(*) FROM QUEUE_MSG").fetchone()[0])
        assert counted == left * messages.BATCH + 1
    found = store.take(consumer, queue)
    assert (texts(found), found.unseen) == ([b"live"], False)


def counted(store):
    """How many messages of the queue ``q`` are ready: as its count says, as there are; and the rows of the count."""
    sql = """SELECT (SELECT COALESCE(SUM(MANY), 0) FROM QUEUE_MSG_COUNT),
            (SELECT COUNT(*) FROM QUEUE_MSG WHERE STATE = 0), (SELECT COUNT(*) FROM QUEUE_MSG_COUNT)
        FROM RDB$DATABASE"""
    return store.shared.use(lambda t: t.driver.cursor().execute(sql).fetchone())


def test_the_count_of_a_queue_with_max_length_is_right_whatever_happens(store):
    queue, consumer = store.queue("q"), store.consumer()
    fill(store, "q", 6)
    store.queue("q", max_length=8)
    assert counted(store)[:2] == (6, 6), "those that were there count"
    for number in range(5):
        store.put("q", b"%d" % number, priority=number)
    assert counted(store)[:2] == (8, 8)
    first, second, third, fourth = store.take(consumer, queue, 4)
    assert counted(store)[:2] == (4, 4)
    store.settle(
        consumer, first.settle(DONE) + second.settle(GIVEN_BACK) + third.settle(UNSEEN) + fourth.settle(REJECTED)
    )
    assert counted(store)[:2] == (6, 6)
    taken = store.take(consumer, queue, 3)
    assert store.unclaim(consumer, store.claims, queue) == len(taken)
    assert counted(store)[:2] == (6, 6)
    store.take(consumer, queue, 3)
    assert store.rescue(consumer, gone=True, awake=LONG)[0] == 3
    assert counted(store)[:2] == (6, 6)
    expire(store, "PRIORITY > 0")
    store.sweep()
    assert counted(store)[0] == counted(store)[1] < 6
    store.queue("q", max_length=1)
    store.put("q")
    assert counted(store)[:2] == (1, 1)
    assert store.purge("q", 200) == 1
    assert counted(store)[:2] == (0, 0)
    store.put("q")
    store.shared.use(lambda t: t.script("DELETE FROM QUEUE_MSG"))  # by hand
    assert counted(store) == (0, 0, 1)
    store.drop_queue("q", 0, 0, None)
    assert counted(store) == (0, 0, 0)


def test_those_that_publish_to_a_full_queue_at_once_do_not_wait_for_each_other(store):
    queue, consumer = store.queue("q", max_length=3), store.consumer()
    for number, priority in enumerate((0, 9, 0)):
        store.put("q", b"%d" % number, priority=priority)
    with store.shared.database.session() as session, session.transaction() as transaction:
        for text in (b"a", b"b"):
            messages.publish(transaction, [Publication("", "q", text)])
        store.put("q", b"c")  # the oldest two are being taken away: it is the third that goes
    assert counted(store)[:2] == (3, 3)
    assert texts(store.take(consumer, queue)) == [b"a", b"b", b"c"]


def test_transactions_that_count_at_once_do_not_wait_for_each_other(store):
    store.queue("q", max_length=1_000)

    def put(transaction):
        messages.publish(transaction, [Publication("", "q", b"x")])

    store.put("q")
    with ExitStack() as open_ones:
        for _ in range(3):
            session = open_ones.enter_context(store.shared.database.session())
            put(open_ones.enter_context(session.transaction()))
        store.put("q")
        assert counted(store)[:2] == (2, 2)
    assert counted(store) == (5, 5, 4)
    for _ in range(500):  # each merges two by one chance in ten
        store.put("q")
        if counted(store)[2] == 1:
            break
    most, there, rows = counted(store)
    assert (most, rows) == (there, 1)


def test_what_was_claimed_by_nobody_that_is_registered_is_given_back(store):
    queue, consumer = store.queue("q"), store.consumer()
    store.put("q", b"a")
    store.put("q", b"b")
    (first,) = store.take(consumer, queue, 1)
    store.shared.use(lambda t: t.script("UPDATE QUEUE_MSG SET STATE = 2 WHERE STATE = 0"))
    assert store.sweep().released == 1
    assert texts(store.take(consumer, queue)) == [b"b"]
    assert store.settle(consumer, first.settle(DONE)) == 0


def test_any_number_of_queues_may_be_asked_for_at_once(store):
    queue = store.queue("q")
    store.put("q")
    assert store.ready([*range(10_000, 11_000), queue]) == ({queue}, None)


def test_a_declaration_counts_up_to_a_hundred(store):
    store.queue("q")
    fill(store, "q", 99)
    store.put("q", start=4_000_000_000_000)
    assert store.declare_queue(QueueSpec("q"), None).waiting == 100
    fill(store, "q", 101)
    assert store.declare_queue(QueueSpec("q"), None).waiting == 100
    assert store.waiting("q") == 201
    assert not store.drop_queue("q", 0, 1, None)


def test_the_length_of_a_queue_is_counted_up_to_a_bound(store):
    queue, consumer = store.queue("q"), store.consumer()
    fill(store, "q", 300)
    store.put("q", start=4_000_000_000_000)
    store.take(consumer, queue, 2)
    store.use(consumer, "q", 1)
    assert store.lengths(["none", "q"], 1000) == [("q", 298, 1, 2, 0, 1)]
    (found,), unordered, indexed = reads(store, lambda t: messages.lengths(t, ["q"], 100))
    assert (found, found.messages) == (("q", 100, 1, 2, 0, 1), 103)
    assert unordered == 0
    assert indexed < 250  # those that were claimed are versions of the rows that are ready


def test_who_looks_at_the_database_is_told_of_the_queues_of_celery(store, app, url, capsys):
    def told(*command):
        capsys.readouterr()
        command_line(*command, "--url", url)
        out, err = capsys.readouterr()
        return out.splitlines()[-1], err

    said = "Queues of Celery, whose messages its own workers run (celery -A MODULE worker): "
    assert told("inspect", "ready") == ("Nothing waits.", "")
    store.use(store.consumer(), "celery", store.queue("celery"))
    store.queue("mail")
    store.queue("celeryev.7", expires=60_000)
    for _ in range(3):
        store.put("celery")
    said += "celery: 3 messages, 1 consumer; mail: 0 messages, no consumer"
    for command in ("queues", "workers", "ready", "active"):
        assert told("inspect", command)[0].startswith(said)
    out, err = told("health")
    assert out == "no worker is alive (fbtasks worker -A MODULE)"
    assert err.startswith(said)
    store.put("mail")
    assert told("health")[1].startswith("queue mail of Celery: it has messages, and no consumer\n")
    assert [each.level.name for each in examine(app.database) if each.id == "no-consumer"] == ["WARNING"]
