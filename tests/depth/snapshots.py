"""What is done beside a transaction as old as a report's or a backup's: the engine keeps all that it may see."""

from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

from firebird.driver import Isolation, tpb

from fbtasks import group
from fbtasks.queue import tasks
from fbtasks.tasks.call import Succeeded
from fbtasks.worker.claiming import Claiming

from .scene import Line, Scene


class Snapshots(Scene):
    """Something that is done while snapshots are open."""

    idles = False

    def set_up(self):
        self.run("migrate")
        self.held = ExitStack()

    def close(self):
        self.held.close()
        super().close()

    def hold(self):
        """Begins a snapshot, which stays open."""
        connection = self.held.enter_context(closing(self.app.connect()))
        connection.begin(tpb(Isolation.SNAPSHOT))
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchall()


class Made(Snapshots):
    """Calls of each kind that were made and have ended beside one snapshot. Each kind has a queue of its own."""

    name = "made under a snapshot"
    shrinks = 125
    deepest = 200_000
    slow = True
    source = """
app.limit("one", at_once=1)
@app.task(queue="limited", limits="one", ignore_result=True)
def limited(): pass
@app.task(queue="ordered", ordered="key", ignore_result=True)
def ordered(key=1): pass
@app.task(queue="unique", unique=True, ignore_result=True)
def unique(): pass
@app.task(queue="batched", batch=10, wait=0, ignore_result=True)
def batched(calls): pass
@app.task(queue="grouped")
def member(): return 1
@app.task(queue="grouped", ignore_result=True)
def total(numbers): pass
@app.on_event("now", queue="events")
def heard(event): pass
"""

    events = 0

    def set_up(self):
        super().set_up()
        self.hold()

    def fill(self, count):
        for line in self.lines():
            for _ in range(count):
                line.act()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        for task in (self.limited, self.ordered, self.unique, self.batched):
            yield Line(f"one that is {task.options.queue}", lambda task=task: self.one_of(task), wears=False)
        yield Line("a chord of two members", self.chord, wears=False)
        yield Line("an event with an order key, of many", self.event, wears=False)

    def one_of(self, task):
        task.delay()
        self.take_one(task.options.queue)

    def chord(self):
        (group(self.member.s(), self.member.s()) | self.total.s()).delay()
        ended = 0
        while ended < 3:
            claims = self.session.run(lambda t: tasks.claim(t, 1, "grouped", 3))
            self.end(claims, [Succeeded("application/json", b"1")] * len(claims))
            ended += len(claims)

    def event(self):
        self.events = self.events + 1
        self.app.raise_event("now", order_key=f"key {self.events % 1000}")
        self.take_one("events")


class Read(Snapshots):
    """Calls with a limit that have ended beside one snapshot, while others came and went that saw them wait."""

    name = "limited and read under a snapshot"
    shrinks = 2
    deepest = 20_000
    source = """
app.limit("customer", at_once=50)
@app.task(queue="limited", limits={"customer": "number"}, ignore_result=True)
def bill(number): pass
"""

    def set_up(self):
        super().set_up()
        self.hold()

    def fill(self, count):
        for _ in range(0, count, 50):
            self.enqueue(self.bill, 50, (1,), queue="limited")
            with closing(self.app.connect()) as reader, closing(reader.cursor()) as cursor:
                reader.begin(tpb(Isolation.SNAPSHOT))
                cursor.execute("SELECT COUNT(*) FROM RDB$DATABASE").fetchall()
                while self.take(20, "limited"):
                    pass

    def lines(self):
        yield Line("one of the limit's key, by a worker", self.next_one, wears=False)

    def next_one(self):
        self.bill.delay(1)
        self.take_one("limited")


class Priorities(Snapshots):
    """Tasks of four priorities that had waited for a minute when a snapshot began, and have ended since."""

    name = "four priorities under a snapshot"
    shrinks = 5
    deepest = 500_000

    def set_up(self):
        super().set_up()
        self.claiming, self.later = Claiming(["default"]), Claiming(["default"])

    def fill(self, count):
        for priority in (9, 5, 0, -5):
            self.enqueue(self.plain, count // 4, priority=priority, eta=datetime.now(UTC) - timedelta(minutes=1))
        self.hold()
        while self.claimed(self.claiming, 500):
            pass

    def lines(self):
        yield Line("one of the lowest priority, claimed behind the last one", self.next_one)
        yield Line("one of the highest, and then one of the lowest", self.highest_and_lowest)
        fault = "a worker has no mark in a priority until it has claimed a task of it, and walks over what ended there"
        yield Line("the lowest, by a worker that began later", self.next_one_later, fault=fault, wears=False)

    def next_one(self, claiming=None, priority=-5):
        self.plain.apply_async(priority=priority)
        (claim,) = self.claimed(claiming or self.claiming, 1)
        assert claim.priority == priority

    def next_one_later(self):
        self.next_one(self.later)

    def highest_and_lowest(self):
        self.next_one(priority=9)
        self.next_one()

    def claimed(self, claiming, most):
        """Claims up to *most* tasks as a worker does, and ends them."""
        taken = self.session.run(lambda t: claiming.claim(t, 1, most))
        claiming.committed(taken)
        self.end(taken.claims, [Succeeded(keep=False)] * len(taken.claims))
        return taken.claims
