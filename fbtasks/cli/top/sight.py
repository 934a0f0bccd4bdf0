"""What ``fbtasks top`` shows: one look at the queue costs the same however much waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from fbtasks.cli import render
from fbtasks.cli.output import visible
from fbtasks.database.database import Database
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.operations import overview, pausing
from fbtasks.queue.operations.overview import Overview
from fbtasks.queue.operations.tasks import get_task
from fbtasks.queue.results import Filter
from fbtasks.states import State
from fbtasks.system.showing import CUT, shorten
from fbtasks.tasks.call import TaskRow

MOST_RUNNING: Final = 500
"""Running tasks that are read: those that come first by queue, priority and time."""
MOST_FAILED: Final = 100
_LONGEST: Final = 5_000
"""Characters that are shown of an argument or a result, and twice as many of a traceback."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tasks a second between two looks."""

    started: float = 0.0
    """Claimed by a worker."""
    finished: float = 0.0
    """Succeeded, failed, or stopped by a cancel."""
    failed: float = 0.0
    retried: float = 0.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look has found."""

    overview: Overview
    paused_names: list[str]
    running: list[TaskRow]
    """The longest first."""
    failed: list[TaskRow]
    """The newest first."""
    rates: Mapping[str, Rates]
    """By queue; none at the first look."""

    @property
    def total(self) -> Rates:
        """The rates of all queues together."""
        return Rates(*map(sum, zip(*map(astuple, self.rates.values()), strict=True)))


def look(database: Database, before: Sight | None = None) -> Sight:
    """Looks at the queue; *before* is the last look, for the rates."""

    def read(session: Session) -> Sight:
        with session.reading():
            found = overview.read(database, session)
            running = results.listing(session, State.RUNNING, Filter(limit=MOST_RUNNING))
            return Sight(
                found,
                pausing.paused_names(session),
                sorted(running, key=lambda row: row.elapsed_ms or 0, reverse=True),
                list(results.listing(session, State.FAILED, Filter(limit=MOST_FAILED))),
                {} if before is None else rates(before, found),
            )

    return database.use(read)


def rates(sight: Sight, after: Overview) -> Mapping[str, Rates]:
    """Returns the rates between the look *sight* and the next one; those of the former where they cannot be told."""
    before = sight.overview
    seconds = (after.time - before.time).total_seconds()
    if seconds <= 0 or before.time.hour != after.time.hour:
        return sight.rates  # counters are those since a whole hour, which is another one now
    counted = {row.queue: row for row in before.counters}
    ran = {row.queue: row.running for row in before.queues}
    runs = {row.queue: row.running for row in after.queues}
    found = {}
    for row in after.counters:
        former = counted.get(row.queue)
        succeeded, failed, cancelled, retried, released = (
            getattr(row, name) - getattr(former, name, 0)
            for name in ("succeeded", "failed", "cancelled", "retried", "released")
        )
        finished = succeeded + failed + cancelled
        started = finished + retried + released + runs.get(row.queue, 0) - ran.get(row.queue, 0)
        numbers = (max(0, number) / seconds for number in (started, finished, failed, retried))
        found[row.queue] = Rates(*numbers)
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    """A task that is looked into: its texts are made visible, and cut."""

    row: TaskRow
    facts: Mapping[str, str]
    why: Sequence[str]
    """What keeps it from running."""
    traceback: str


def open_task(database: Database, number: int) -> Opened:
    """Returns a task. Raises :class:`TaskNotFound`."""
    found = get_task(database, str(number))
    facts = {name: _cut(str(value), _LONGEST) for name, value in render.facts(found).items()}
    return Opened(found.row, facts, found.why, _cut((found.traceback or "").rstrip(), 2 * _LONGEST))


def _cut(text: str, longest: int) -> str:
    return visible(shorten(text, longest, CUT).expandtabs(4))


def open_first(database: Database, queue: str) -> Opened | None:
    """Returns the task whose turn in *queue* is first, of those that are ready; else one that is held, or parked."""

    def read(session: Session) -> int | None:
        for state in (State.READY, State.HELD, State.PARKED):
            for row in results.listing(session, state, Filter(queue=queue, limit=1)):
                return row.id
        return None

    number = database.use(read)
    return None if number is None else open_task(database, number)
