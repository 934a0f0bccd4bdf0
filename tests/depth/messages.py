"""Messages of kombu: that wait, are claimed, have expired; many queues; queues with a limit. Results of Celery."""

from itertools import count

from kombu import Connection, Queue
from support.publishing import published
from support.sql import execute, named, one

from fbtasks.contrib.celery.store import keyvalues, messages
from fbtasks.contrib.celery.store.messages import DONE, Publication, QueueSpec
from fbtasks.queue.register import processes

from .scene import Line, Scene
from .waiting import COUNTS


class Messages(Scene):
    """A queue ``q``, and a consumer."""

    def set_up(self):
        self.claims = count(1)
        with self.app.database.session() as session:
            self.consumer = self.registered(session)
            self.number = self.declared(session, "q")

    def registered(self, session):
        facts = {"host": "here", "pid": 1, "pid_start": 1, "lease": 36_000.0}
        return session.run(lambda t: processes.register(t, "consumer", **facts))

    def declared(self, session, name, **options):
        return session.run(lambda t: messages.declare_queue(t, QueueSpec(name, **options), None)).id

    def put(self, number, queue="q", *, large=False):
        message, data = ("NULL", "x'00'") if large else ("'x'", "NULL")
        for done in range(0, number, 10_000):
            block = published(min(10_000, number - done), queue, message=message, data=data)
            self.session.run(lambda t: t.script(block))  # noqa: B023

    def publish(self, queue="q", priority=0):
        self.session.run(lambda t: messages.publish(t, [Publication("", queue, b"x", priority)]))

    def claim(self, most=1, number=None):
        return self.session.run(
            lambda t: messages.claim(t, self.consumer, next(self.claims), number or self.number, most, b"")
        )

    def settle(self, taken):
        records = b"".join(each.settle(DONE) for each in taken)
        self.session.run(lambda t: t.call("FBTASKS_CELERY.SETTLE", self.consumer, records))

    def consume(self, queue="q", number=None):
        """A message before all others: published, looked for, claimed and settled."""
        self.publish(queue, 9)
        assert self.session.run(lambda t: messages.ready(t, [number or self.number]))[0]
        taken = self.claim(1, number)
        assert len(taken) == 1
        self.settle(taken)

    def sweep(self):
        self.session.run(messages.sweep)

    def come_and_go(self):
        """Another consumer registers, and leaves."""
        number = self.registered(self.session)
        self.session.call("FBTASKS_WORKER.UNREGISTER", number)


class Backlog(Messages):
    """Messages that wait, every second of them with a large body."""

    name = "messages that wait"
    least = 1_000

    def set_up(self):
        super().set_up()
        self.connection = Connection(self.project.url)

    def close(self):
        self.connection.release()
        super().close()

    def fill(self, count):
        self.put(count // 2)
        self.put(count - count // 2, large=True)

    def lines(self):
        yield Line("publish", self.publish)
        yield Line("publish, look, claim and acknowledge", self.consume)
        yield Line("basic_get and acknowledge", self.get)
        yield Line("queue_declare", self.declare)
        yield Line("queue_declare, passive", self.look_at_queue, grows=None, because=COUNTS, wears=False)
        yield Line("a look for work", self.look_for_work)
        yield Line("a look for work with a full prefetch", self.full_prefetch, wears=False)
        yield Line("deleting an empty queue", self.drop)
        yield Line("an auto-delete queue, with its last consumer", self.auto_delete)
        yield Line("purge, one step", self.purge, wears=False, times=3)
        yield Line(
            "the sweep", self.sweep, grows=2.0, because="it looks at a thousand messages, where there are as many"
        )
        yield Line("a consumer comes and goes", self.come_and_go)

    def send(self):
        """A message that kombu can read, before all others."""
        self.connection.default_channel.basic_publish(
            self.connection.default_channel.prepare_message("x", priority=9), "", "q"
        )

    def get(self):
        self.send()
        self.connection.default_channel.basic_get("q").ack()

    def declare(self):
        Queue("q").bind(self.connection.default_channel).queue_declare()

    def look_at_queue(self):
        self.session.run(lambda t: messages.declare_queue(t, QueueSpec("q"), None, passive=True))

    def look_for_work(self):
        self.session.run(lambda t: messages.ready(t, [self.number]))

    def full_prefetch(self):
        """All looks of a connection that has as much in hand as it may have."""
        self.send()
        held = []
        with self.connection.clone() as connection, connection.channel() as channel:
            channel.basic_qos(0, 1, False)
            channel.basic_consume("q", callback=held.append)
            while not held:
                connection.drain_events(timeout=10)
            for _ in range(5):
                connection.transport.inbox.poll_at = 0.0
                assert connection.transport.deliver() == 0
            held[0].ack()

    def drop(self):
        self.declared(self.session, "reply")
        self.session.run(lambda t: t.call("FBTASKS_CELERY.DROP_QUEUE", "reply", 0, 0, None))

    def auto_delete(self):
        self.declared(self.session, "reply", auto_delete=True)
        for begins in (True, False):
            self.session.run(lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", self.consumer, "reply", int(begins)))  # noqa: B023

    def purge(self):
        assert self.session.run(lambda t: t.call("FBTASKS_CELERY_UPKEEP.PURGE", "q", 100)) == 100


class Bounded(Messages):
    """Messages of queues with a ``max_length``: one with room left, one that is full."""

    name = "queues with max_length"

    def set_up(self):
        super().set_up()
        with self.app.database.session() as session:
            self.numbers = {name: self.declared(session, name) for name in ("room", "full")}
        self.depth = 0

    def fill(self, count):
        self.depth += count
        for name in ("room", "full"):
            self.declared(self.session, name, max_length=None)
            self.put(count, name)
        self.declared(self.session, "room", max_length=10_000_000)
        self.declared(self.session, "full", max_length=self.depth)

    def lines(self):
        yield Line("publish below the limit", self.below)
        yield Line("publish at the limit", self.publish_full)
        yield Line("claim, acknowledge and publish", self.take)

    def below(self):
        self.publish("room")

    def publish_full(self):
        self.publish("full")

    def take(self):
        self.settle(self.claim(1, self.numbers["full"]))
        self.publish("full")


class Claimed(Messages):
    """Messages that a consumer has claimed."""

    name = "messages that are claimed"

    def fill(self, count):
        self.put(count)
        while count > 0:
            count -= len(self.claim(1_000))

    def lines(self):
        yield Line("publish, look, claim and acknowledge", self.consume)
        yield Line(
            "the sweep", self.sweep, grows=2.5, because="each of a thousand messages is on a page of its own then"
        )
        yield Line("a consumer comes and goes", self.come_and_go)
        yield Line("a claim is given back", self.unclaim, grows=None, because="its consumer holds all", wears=False)

    def unclaim(self):
        self.publish()
        number = next(self.claims)
        assert len(self.session.run(lambda t: messages.claim(t, self.consumer, number, self.number, 1, b""))) == 1
        assert self.session.run(lambda t: t.call("FBTASKS_CELERY.UNCLAIM", self.consumer, number, self.number)) == 1
        self.settle(self.claim())


class Queues(Messages):
    """Declared queues without a message."""

    name = "declared queues"
    shrinks = 10
    deepest = 100_000

    def set_up(self):
        super().set_up()
        self.made = count()

    def fill(self, count):
        for _ in range(count):
            name = f"queue {next(self.made)}"
            self.session.run(lambda t: messages.declare_queue(t, QueueSpec(name), None))  # noqa: B023

    def lines(self):
        yield Line("publish, look, claim and acknowledge", self.consume)
        yield Line("publish through an exchange, claim and acknowledge", self.publish_through)
        yield Line("the sweep", self.sweep)
        yield Line("a consumer comes and goes", self.come_and_go)

    def publish_through(self):
        self.session.run(lambda t: t.call("FBTASKS_CELERY_API.BIND", "q", "amq.direct", "key"))
        self.session.run(lambda t: messages.publish(t, [Publication("amq.direct", "key", b"x")]))
        self.settle(self.claim())


class Expired(Messages):
    """Messages that waited too long, all before one that did not."""

    name = "messages that have expired"
    least = 1_000

    def fill(self, count):
        self.put(count)
        execute(self.app, "UPDATE QUEUE_MSG SET EXPIRE_TIME = DATEADD(-1 SECOND TO QUEUE_NOW()) WHERE STATE = 0")

    def lines(self):
        yield Line("a message of a higher priority", self.consume)
        yield Line("a claim, which takes 200 of them away", self.step, times=3, wears=False)

    def step(self):
        assert not self.claim()


class Results(Scene):
    """Results of Celery, and chords, that are kept."""

    name = "results of Celery"

    def set_up(self):
        self.made = 0

    def fill(self, count):
        first, self.made = self.made, self.made + count
        self.app.database.use(
            lambda session: session.run(
                lambda t: t.script(
                    named(f"""EXECUTE BLOCK AS DECLARE I INTEGER = {first}; DECLARE ID BIGINT; BEGIN
                    WHILE (I < {self.made}) DO BEGIN
                        EXECUTE PROCEDURE FBTASKS_CELERY_API.PUT_VALUE(
                            'celery-task-meta-' || :I, 1, 86400000, 'x', NULL);
                        EXECUTE PROCEDURE FBTASKS_CELERY_API.CHORD_BEGIN('chord-' || :I, 86400000, NULL)
                            RETURNING_VALUES ID;
                        I = I + 1;
                    END END""")
                )
            )
        )

    def lines(self):
        yield Line("a result is stored", self.store)
        yield Line("a result is read", self.read)
        yield Line("10 expired ones are cleaned up", self.clean_up)

    def store(self, name="one", expires=3600.0):
        self.session.run(lambda t: keyvalues.store(t, name, b"x", final=False, expires=expires))

    def read(self):
        assert self.session.run(lambda t: keyvalues.fetch(t, "celery-task-meta-0")) == b"x"

    def clean_up(self):
        for number in range(10):
            self.store(f"old {number}", 0.0)
        assert self.session.call("FBTASKS_CELERY.PRUNE", 500) == 10
        assert not one(self.app, "SELECT COUNT(*) FROM QUEUE_CELERY WHERE NAME STARTING WITH 'old '")


SCENES = (Backlog, Bounded, Claimed, Queues, Expired, Results)
