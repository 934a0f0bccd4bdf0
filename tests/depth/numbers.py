"""What a database has many of, and a claim or a command asks one after the other: limits, handlers, tables."""

from support.duties import Worker

from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.deployment import Deployment

from .scene import Line, Scene

ATTACHES = "the engine reads of all tables where they are, once a connection"


class Many(Scene):
    """Things of one kind, which are numbered as they are made."""

    made = 0

    def numbers(self, count):
        first, self.made = self.made, self.made + count
        return range(first, self.made)


class Limits(Many):
    """Limits in use in one queue, of each kind, and nothing waits for them."""

    name = "limits of one queue"
    shrinks = 100
    deepest = 40_000

    def fill(self, count):
        for number in self.numbers(count):
            self.app.limit(f"limit {number}", at_once=1)
            kinds = ({"limits": f"limit {number}"}, {"ordered": "key"}, {"unique": True}, {"batch": 10, "wait": 0})
            options = kinds[number % len(kinds)]
            task = self.app.task(name=f"limited {number}", ignore_result=True, **options)(lambda key=1: None)
            task.delay()
        while self.take(500):
            pass
        self.settled()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)


class Handlers(Many):
    """Handlers of events that are given batches, in one queue, and nothing waits for them."""

    name = "handlers of one queue"
    shrinks = 50
    deepest = 50_000

    def fill(self, count):
        for number in self.numbers(count):
            self.app.on_event(f"event.{number}", name=f"handler {number}", batch=10)(lambda events: None)
        subscriptions.apply(self.app.database, self.app.name, self.app.features["sources"].feeds())

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)


class Tables(Many):
    """Tables of the application, with subscriptions of ten of them."""

    name = "tables"
    shrinks = 50
    deepest = 150_000
    slow = True

    def set_up(self):
        self.fill(10)
        for number in range(10):
            self.app.on_change(f"T{number}", insert=True, name=f"fed {number}")(lambda change: None)
        subscriptions.apply(self.app.database, self.app.name, self.app.features["sources"].feeds())

    def fill(self, count):
        with self.app.connect() as connection:
            for number in self.numbers(count):
                connection.execute_immediate(f"CREATE TABLE T{number} (ID INTEGER NOT NULL PRIMARY KEY)")
            connection.commit()

    def lines(self):
        yield self.command("health", because=ATTACHES)
        yield self.command("inspect", "sources", because=ATTACHES)
        yield Line("a worker's start", self.start, times=1, opens=True, wears=False)

    def start(self):
        sources = Deployment(self.app, Worker(id=1))
        sources.begin(self.session)
        sources.do(self.session)
