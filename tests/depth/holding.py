"""Tasks that are held back: by a limit, by the one before them in their order, as duplicates."""

from .scene import Line, Scene
from .waiting import COUNTS


class Held(Scene):
    """Tasks of one key of a limit, of which one may run at a time."""

    name = "held by a limit"
    shrinks = 2
    deepest = 100_000
    source = """
app.limit("customer", at_once=1)
@app.task(limits={"customer": "number"}, ignore_result=True)
def bill(number): pass
"""

    def set_up(self):
        self.run("migrate")

    def fill(self, count):
        self.enqueue(self.bill, count, (1,))
        self.settled()
        self.collected(count)  # they were ready, for a moment

    def other_key(self):
        self.bill.delay(2)
        self.take_one()

    def next_of_key(self):
        self.bill.delay(1)
        self.take_one()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a task of the limit's key, by a worker", self.next_of_key)
        yield Line("a task of another key, by a worker", self.other_key)
        yield self.command("limits", "list", grows=None, because=COUNTS)
        yield self.command("inspect", "held", "--limit", "20")
        yield self.command("inspect", "queues", grows=None, because=COUNTS)
        yield self.command("health")
        yield self.glance()


class Ordered(Scene):
    """Tasks that run one at a time, in the order of enqueueing: all of one customer."""

    name = "ordered"
    shrinks = 2
    deepest = 100_000
    source = """
@app.task(ordered="customer", ignore_result=True)
def post(customer): pass
"""

    def set_up(self):
        self.run("migrate")

    def fill(self, count):
        self.enqueue(self.post, count, (1,))
        self.settled()

    def next_one(self):
        self.post.delay(1)
        self.take_one()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("an ordered task, by a worker", self.next_one)
        yield self.command("inspect", "held", "--limit", "20")


class Unique(Scene):
    """Tasks of which one with each argument waits."""

    name = "unique"
    deepest = 100_000
    source = """
@app.task(unique=True, ignore_result=True)
def sync(number): pass
"""

    made = 0

    def set_up(self):
        self.run("migrate")

    def fill(self, count):
        first, self.made = self.made, self.made + count
        for done in range(first, self.made, 1_000):
            self.sync.delay_many([(number,) for number in range(done, min(done + 1_000, self.made))])
        self.settled()

    def again(self):
        self.sync.delay(0)

    def another(self):
        self.sync.apply_async((-1,), priority=9)
        self.take_one()

    def lines(self):
        yield Line("a call that is a duplicate", self.again)
        yield Line("one that is not, by a worker", self.another)


class Keys(Scene):
    """Ordered tasks of as many customers, of which each could run, behind the tasks that a worker is given."""

    name = "keys that could run"
    shrinks = 10
    deepest = 100_000
    source = """
@app.task(ordered="customer", ignore_result=True)
def post(customer): pass
"""
    made = 0

    def set_up(self):
        self.run("migrate")

    def fill(self, count):
        first, self.made = self.made, self.made + count
        for done in range(first, self.made, 1_000):
            numbers = range(done, min(done + 1_000, self.made))
            self.post.delay_many([(number,) for number in numbers], priority=-1)
        self.settled()

    def next_one(self):
        self.post.apply_async((-1,), priority=5)
        self.take_one()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("one of them, by a worker", self.next_one)
