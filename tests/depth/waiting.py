"""Tasks: that wait, for a worker or for their time; and that have ended."""

from datetime import timedelta

from support.sql import execute, one

from fbtasks.queue import tasks
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import Failed, Succeeded

from .beside import Heavy
from .scene import Line, Scene

COUNTS = "it counts all that wait"


class Waiting(Scene):
    """Tasks that are ready, in the queue of the worker and behind the tasks that it is given."""

    name = "waiting"

    def fill(self, count):
        self.enqueue(self.plain, count, priority=-1)

    def cancel(self):
        self.plain.apply_async(priority=-1).cancel()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("delay()", self.delay)
        yield Line("cancel()", self.cancel)
        yield Line("ten of them, by fbtasks purge", self.purge)
        yield self.command("inspect", "ready", "--limit", "20")
        yield self.command("inspect", "queues", grows=None, because=COUNTS)
        yield self.command("inspect", "stats", grows=None, because=COUNTS)
        yield self.command("inspect", "workers")
        yield self.command("inspect", "active", "--limit", "20")
        yield self.command("inspect", "parked", "--limit", "20")
        yield self.command("inspect", "sources", grows=None, because=COUNTS)
        yield self.command("health")
        yield self.glance()
        yield Line("fbtasks pause, and fbtasks resume", self.pause, times=1, opens=True, wears=False)

    def heavy(self):
        yield Heavy(("purge", "-A", "proj", "-y", "default"))

    def delay(self):
        self.plain.delay()
        assert self.take(1) == 1

    def purge(self):
        assert self.session.call("FBTASKS_OPERATOR.PURGE", "default", 10) == 10
        self.fill(10)

    def pause(self):
        self.run("pause", "-A", "proj", "default")
        self.run("resume", "-A", "proj", "default")


class Parked(Scene):
    """Tasks that were put aside, since their name is paused."""

    name = "parked"
    idle_fault = "a worker reads all of them to find names that it knows, at most for a fiftieth of its time"
    source = """
@app.task(ignore_result=True)
def paused(): pass
"""

    def set_up(self):
        self.run("pause", "-A", "proj", "--task", "proj.paused")

    def fill(self, count):
        for done in range(0, count, 1_000):
            self.paused.delay_many(((),) * min(1_000, count - done))
            while one(self.app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 0"):
                self.take(1)

    def beat(self):
        with self.session.transaction() as transaction:
            options = {"host": "here", "pid": 1, "pid_start": 1, "lease": 60.0}
            number = processes.register(transaction, "worker", **options)
            processes.heartbeat(transaction, "worker", number, lease=60.0)
            transaction.call("FBTASKS_WORKER.UNREGISTER", number)

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a worker registers, has one heartbeat and ends", self.beat)
        yield self.command("inspect", "parked", "--limit", "20")
        yield self.command("health")
        yield self.glance()


class Scheduled(Scene):
    """Tasks that are due tomorrow."""

    name = "scheduled for tomorrow"

    def fill(self, count):
        self.enqueue(self.plain, count, countdown=86_400)

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a task with countdown=0.001", self.soon)
        yield self.command("inspect", "scheduled", "--limit", "20")
        yield self.command("inspect", "queues", grows=None, because=COUNTS)
        yield self.command("health")
        yield self.glance()

    def soon(self):
        self.plain.apply_async(countdown=0.001)
        while not self.take(1):
            self.look()


class Due(Scene):
    """Tasks that have become due at one moment, of which one half has been made ready."""

    name = "due at one moment"
    least = 1_000
    deepest = (
        100_000  # what was promoted leaves pages in the index of what is due, until tasks that end have them collected
    )
    idles = False

    def schedule(self, count):
        self.plain.delay_many(((),) * count, countdown=86_400)

    def fill(self, count):
        moment = one(self.app, "SELECT QUEUE_NOW() FROM RDB$DATABASE")
        for done in range(0, count, 10_000):
            self.schedule(min(10_000, count - done))
        execute(self.app, "UPDATE QUEUE_TASK SET START_TIME = ? WHERE STATE = 1", moment - timedelta(seconds=60))
        for _ in range(0, count // 2, 500):
            self.session.run(tasks.promote)

    def lines(self):
        yield Line("100 of them, by a worker", self.hundred, times=3, wears=False)
        yield Line("a plain task, by a worker", self.beside)

    def hundred(self):
        assert self.session.run(lambda t: tasks.promote(t, 100)).tasks == 100
        tasks.any_ready(self.session, ["default"])
        assert self.take(100) == 100

    def beside(self):
        self.plain.apply_async(priority=9)
        tasks.any_ready(self.session, ["default"])
        assert self.take(1) == 1


class Ended(Scene):
    """Tasks that have ended: one half succeeded, and their results are kept; the other half failed."""

    name = "ended"
    source = """
@app.task
def add(a, b): return a + b
"""

    last = 0

    def fill(self, count):
        for done in range(0, count, 1_000):
            self.add.delay_many([(1, 2)] * min(1_000, count - done))
            claims = self.session.run(lambda t: tasks.claim(t, 1, "default", 1_000))
            self.last = claims[-1].id
            half = len(claims) // 2
            outcomes = [Succeeded("application/json", b"3")] * half
            outcomes += [Failed("builtins.ValueError", f"no {number % 20}", "Traceback\n") for number in range(half)]
            self.end(claims, outcomes)
        self.collected(count)

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a task with a result, by a worker, and get()", self.result)
        yield self.command("inspect", "failed", "--limit", "20")
        yield self.command("inspect", "succeeded", "--limit", "20")
        yield self.command("inspect", "cancelled", "--limit", "20")
        yield Line("fbtasks inspect task", self.task_shown, times=1, opens=True, wears=False)
        yield self.command("inspect", "stats", grows=None, because=COUNTS)
        yield self.command("inspect", "queues", grows=None, because=COUNTS)
        yield self.command("health")
        yield self.command("doctor")
        yield self.glance()
        yield Line("ten of them, by fbtasks prune", self.prune)
        yield Line("fbtasks retry, of one", self.retry, times=1, opens=True, wears=False)

    def heavy(self):
        yield Heavy(("inspect", "failed", "--limit", "100000"))

    def result(self):
        result = self.add.apply_async((1, 2), priority=9)
        self.end(self.session.run(lambda t: tasks.claim(t, 1, "default", 1)), [Succeeded("application/json", b"3")])
        assert result.get(timeout=10) == 3

    def task_shown(self):
        self.run("inspect", "task", str(self.last))

    def prune(self):
        assert self.session.run(lambda t: tasks.prune(t, State.FAILED, timedelta(seconds=-1), 10)) == 10
        self.fill(20)
        assert self.session.run(lambda t: tasks.prune(t, State.SUCCEEDED, timedelta(seconds=-1), 10)) == 10

    def retry(self):
        failed = self.add.apply_async((1, 2), priority=9)
        claims = self.session.run(lambda t: tasks.claim(t, 1, "default", 1))
        self.end(claims, [Failed("builtins.ValueError", "no")])
        self.run("retry", str(failed.id))
        assert self.take(1) == 1
