"""Checks of the queue, its workers, and what features have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.feature import Feature
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.queue.operations.doctor.finding import Checks, Said, error, note, ok, warning
from fbtasks.queue.operations.workers import Health, Look, unknown_names
from fbtasks.states import State
from fbtasks.system.showing import command_line, count, span

LONG: Final = 3600
"""Seconds for which a task may run."""
MOST: Final = 10_000
"""Tasks of a queue that are counted."""
APART: Final = 1.0
"""Seconds from one look at what waits to the next."""
LATE: Final = 10.0
"""Seconds for which a task may wait in a queue that grows."""


class Work:
    """A queue that can be used, with a session."""

    def __init__(self, database: Database, session: Session) -> None:
        self.database = database
        self.session = session

    @cached_property
    def look(self) -> Look:
        """The workers and the queues."""
        return Look(self.database, self.session)

    @cached_property
    def health(self) -> Health:
        """The answer of ``fbtasks health``, without that of features."""
        return self.look.health({}, ())

    def ready(self) -> dict[str, int]:
        """Returns how many tasks are ready in each queue that a worker serves, and in which one has waited for a while.

        They are counted up to a bound.
        """
        late = self.look.waits(LATE).keys() & self.look.serving.keys()
        rows = results.bounded(self.session, MOST + 1) if late else ()
        return {row.queue: row.ready for row in rows if row.queue in late}

    def of_feature(self, feature: Feature) -> Iterator[Said]:
        """What a feature finds."""
        beside = [sentence.removesuffix(".") for sentence in feature.beside(self.session)]
        yield ok("; ".join(beside) or f"nothing is wrong with {feature.name}")
        for each in feature.problems(self.session, self.look.asked):
            yield (error if each.is_wrong else warning)(str(each), id=each.id)


def _of_health(name: str, fine: str, work: Work) -> Iterator[Said]:
    """What ``fbtasks health`` finds under that name."""
    yield ok(fine)
    for each in work.health.wrong():
        if each.id == name:
            yield error(str(each))


def _workers(work: Work) -> Iterator[Said]:
    alive = work.look.alive
    yield from _of_health("workers", f"{count(len(alive), 'worker')} alive", work)
    for each in work.look.workers:
        if not each.alive:
            remedy = "one that is alive takes over its tasks" if alive else "fbtasks worker -A MODULE"
            said = f"the worker {each.name}, process {each.pid} on {each.host}, is dead"
            yield warning(f"{said}, and holds {count(each.running, 'task')}", remedy)


def _orphans(work: Work) -> Iterator[Said]:
    yield ok("each task that runs has a worker")

    def repair() -> str:
        released = 0
        while some := work.session.call("FBTASKS_WORKER.ORPHANS", 0, tasks.BATCH):
            released += some
        return f"{count(released, 'task')} put back"

    ((found,),) = work.session.read("orphans", MOST)
    if found:
        yield warning(f"{count(found, 'task')} marked as running by a worker that is not registered", repair=repair)


def _long_tasks(work: Work) -> Iterator[Said]:
    yield ok(f"no task runs for longer than {span(LONG)}")
    for each in work.look.alive:
        if each.busy_for is not None and each.busy_for > LONG:
            yield warning(f"a task of the worker {each.name} runs for {span(each.busy_for)} (fbtasks inspect active)")


def _unknown_names(work: Work) -> Iterator[Said]:
    yield ok("workers know the names of the tasks that wait first")
    for queue, name, meant in unknown_names(work.session, State.READY):
        if queue in work.look.serving:
            yield warning(f"queue {queue}: no worker knows a task named {name}, which waits{meant}")


def _backlog(work: Work) -> Iterator[Said]:
    yield ok("no queue that workers serve grows")
    before = work.ready()
    if any(ready <= MOST for ready in before.values()):
        clock.sleep(APART)
    for queue, ready in work.ready().items():
        more = ready - before.get(queue, 0)
        if more > 0:
            said = f"queue {queue}: {count(ready, 'task')} wait, {more} more than {span(APART)} ago"
            yield warning(f"{said} ({command_line('fbtasks worker -A MODULE -Q {}', queue)})")
        elif ready > MOST:
            yield note(f"queue {queue}: more than {MOST} tasks wait; whether it grows is not counted")


def checks(database: Database) -> Checks[Work]:
    """Returns the checks of the queue and those of the features of *database*."""
    return {**{each.name: partial(Work.of_feature, feature=each) for each in database.features}, **CHECKS}


CHECKS: Final[Checks[Work]] = {
    "identity": partial(_of_health, "identity", "the database was not restored or moved since it was adopted"),
    "workers": _workers,
    "unserved": partial(_of_health, "unserved", "each queue with tasks has a worker"),
    "overdue": partial(_of_health, "overdue", "no task waits for too long"),
    "parked-names": partial(_of_health, "parked-names", "workers know the names of all tasks that are parked"),
    "unknown-names": _unknown_names,
    "orphans": _orphans,
    "long-tasks": _long_tasks,
    "backlog": _backlog,
}
"""After those of features, which say what else waits for workers."""
