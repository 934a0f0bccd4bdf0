"""A database in which one thing can be made deep, and what is done beside that."""

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from support.held import unread
from support.programs import command_line_in

from fbtasks import FBTasks
from fbtasks.cli.top.sight import look
from fbtasks.queue import tasks
from fbtasks.queue.upkeep.collecting import Room
from fbtasks.tasks.call import Finished, Succeeded

GROWS = 1.5
"""By how much more an operation may cost in the deeper database: an index has one level more, and little else."""


@dataclass(frozen=True)
class Line:
    """One operation of the table: it is done several times at each depth, and leaves the depth as it was."""

    what: str
    act: Callable[[], object]
    grows: float | None = GROWS
    """How many times as much it may cost in the deeper database. None: as much more as is deeper, since it counts or
    lists all that is there; *because* says so."""
    because: str = ""
    fault: str = ""
    """What is known to be wrong: then it does cost more, and the test fails as soon as it does not."""
    times: int = 5
    opens: bool = False
    """Whether it opens a connection each time, which costs more than most of what is done with it, at any depth."""
    wears: bool = True
    """Whether it is done again and again, and counted after that."""


TASKS = """
from dataclasses import replace
app.settings = replace(app.settings, statistics=False)  # counts what waits at a random moment of each minute
@app.task(ignore_result=True)
def plain(n=0): pass
@app.task
def beside(): pass
"""


class Scene:
    """An app on an empty queue, with a *name* under which the results are shown. Each subclass has one thing deep."""

    source = ""
    """The tasks, beside those of all scenes."""
    deepest = 1_000_000
    """The depth of a long run at the most, where nobody has more."""
    shrinks = 1
    """By what the depths are divided, for what is dear to make and of which nobody has as many."""
    least = 1
    """The lesser depth at the least, where much is taken at once. The greater one goes with it."""

    slow = False
    """Whether it is counted in long runs alone, and where FBTASKS_SLOW is set."""
    idles = True
    """Whether an idle worker leaves it as it is, and is counted beside it."""
    idle_fault = ""
    """What is known to be wrong: such a worker may read more now and then."""

    def __init__(self, project):
        self.project = project
        self.text = f"{TASKS}{self.source}"
        project.write(self.text)
        self.app = FBTasks("proj", project.url)
        self.names = {"app": self.app, "__name__": "proj"}
        exec(self.text, self.names)  # as in the module that workers and commands import
        self.app.database.migrate()
        self.set_up()
        self.session = self.app.database.open()

    def set_up(self):
        """What a subclass has made before."""

    def close(self):
        """Ends all connections."""
        self.session.close()
        self.app.close()

    def __getattr__(self, name):
        """A task of the app."""
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(name) from None

    def fill(self, count):
        """Adds *count*."""
        raise NotImplementedError

    def lines(self):
        """What is done at each depth."""
        raise NotImplementedError

    def heavy(self):
        """Commands that have to do with all of it, which are run last."""
        yield from ()

    # What scenes have done

    def command(self, *arguments, **options):
        """``fbtasks`` with *arguments*."""
        shown = " ".join(("fbtasks", *arguments))
        return Line(shown, lambda: self.run(*arguments), **({"opens": True, "wears": False, "times": 1} | options))

    def run(self, *arguments):
        """Runs ``fbtasks`` in this process. Returns what it prints."""
        path = ("-A", "proj") if arguments[0] in ("migrate", "call") else ()
        done = command_line_in(self.project.folder, self.project.env, arguments[0], *path, *arguments[1:])
        assert done.returncode in (0, 1), done.stderr  # health and doctor answer with 1
        return done.stdout

    def glance(self):
        """A look of ``fbtasks top``."""
        because = "it counts up to 1,000 of each state"
        return Line("a look of fbtasks top", lambda: look(self.app.database), grows=4, because=because)

    def connect(self):
        """Opens a connection, and does nothing with it."""
        self.app.connect().close()

    def enqueue(self, task, count, arguments=(), **options):
        """Enqueues *count* equal calls of *task*, a thousand in a transaction."""
        for done in range(0, count, 1_000):
            task.delay_many([arguments] * min(1_000, count - done), **options)

    def look(self, queue="default"):
        """What a worker asks before it claims."""
        self.session.run(tasks.promote)
        tasks.any_ready(self.session, [queue])

    def take(self, most, queue="default"):
        """Claims up to *most* tasks and ends them. Returns how many they were."""
        claims = self.session.run(lambda t: tasks.claim(t, 1, queue, most))
        self.end(claims, [Succeeded(keep=False)] * len(claims))
        return len(claims)

    def end(self, claims, outcomes):
        """Records what became of *claims*."""
        ended = [Finished(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
        self.session.run(lambda t: tasks.finish(t, 1, 0, ended))

    def take_one(self, queue="default"):
        """As a worker does with one place: looks for work and claims until it has a task, and ends that."""
        for _ in range(50):
            self.look(queue)
            if self.take(1, queue):
                return
        raise AssertionError("there is nothing to claim")

    def settled(self):
        """Claims of plain tasks go on until all that was enqueued with limits is let in or held."""
        while unread(self.app):
            for _ in range(10):  # each reads a few
                self.plain_one()

    def collected(self, deleted):
        """The upkeep of a worker that has *deleted* so many rows: else empty pages stay in the indexes."""
        room = Room()
        room.want(deleted)
        while room.next_turn < math.inf:
            room.turn(self.session)

    def plain_one(self):
        """A plain task: enqueued before all others, looked for, claimed and ended."""
        self.plain.apply_async(priority=9)
        self.look()
        assert self.take(1) == 1


@contextmanager
def staged(kind, project):
    """For the block, a scene of its *kind* in the database of *project*."""
    scene = kind(project)
    try:
        yield scene
    finally:
        scene.close()
