"""Workflows: a large group that something follows, a long chain, and a large group that has ended."""

from fbtasks import chain, group
from fbtasks.queue import tasks
from fbtasks.tasks.call import Succeeded

from .scene import Line, Scene

WHOLE = "it reads the whole workflow"
SOURCE = """
@app.task
def add(a, b=0): return a + b
@app.task
def total(numbers): return sum(numbers)
"""


class Workflow(Scene):
    """A workflow of many tasks: *last* is the result of the one that was enqueued last."""

    source = SOURCE
    deepest = 400_000
    shrinks = 4
    last = None

    def finish(self, most):
        """Claims up to *most* steps and has them succeed. Returns how many they were."""
        claims = self.session.run(lambda t: tasks.claim(t, 1, "default", most))
        self.end(claims, [Succeeded("application/json", b"3")] * len(claims))
        return len(claims)

    def step(self):
        self.look()
        assert self.finish(1) == 1

    def shown(self, *, grows=None):
        return Line(
            "fbtasks inspect workflow --limit 20",
            lambda: self.run("inspect", "workflow", str(self.last.id), "--limit", "20"),
            grows=grows,
            because=WHOLE,
            times=1,
            opens=False,
            wears=False,
        )


class Chord(Workflow):
    """A group of which no member has ended, and what follows it."""

    name = "chord"

    def fill(self, count):
        self.last = (group(self.add.s(number) for number in range(count)) | self.total.s()).delay()

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a member, by a worker", self.step)
        yield self.shown()
        yield self.command("inspect", "awaiting", "--limit", "20")


class Chain(Workflow):
    """A chain of which the first step waits for a worker."""

    name = "chain"

    def fill(self, count):
        steps = chain(self.add.s(1), *(self.add.s(1) for _ in range(count)))
        self.last = steps.apply_async(priority=0 if self.last is None else 1)  # steps of the longest run first

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a step, by a worker", self.step)
        yield self.shown()
        yield self.command("inspect", "awaiting", "--limit", "20")


class Group(Workflow):
    """A group that nothing follows, and whose members have succeeded."""

    name = "group that has ended"

    def fill(self, count):
        self.last = group(self.add.s(number) for number in range(count)).delay()
        while self.finish(500):
            pass

    def all_results(self):
        assert set(self.last.get(timeout=60)) == {3}

    def other(self):
        small = group(self.add.s(number) for number in range(5)).delay()
        assert self.finish(5) == 5
        assert small.get(timeout=60) == [3] * 5

    def lines(self):
        yield Line("a group of five, by a worker, and get()", self.other)
        yield Line(
            "get() of the group", self.all_results, grows=None, because="it reads each result", times=1, wears=False
        )
        yield self.command("inspect", "succeeded", "--limit", "20")
