"""The table: all scenes, measured at two depths, and after what is done in them has been done many times."""

import time
from contextlib import closing
from typing import NamedTuple

from . import messages
from .beside import Weighed, idle_worker, weigh
from .clock import Schedules
from .counter import Count, Counter
from .feeding import Changes, DueEvents, Halted, Kept, Logged, Polled, PolledByKey
from .holding import Held, Keys, Ordered, Unique
from .numbers import Handlers, Limits, Tables
from .scene import GROWS, Line, staged
from .snapshots import Made, Priorities, Read
from .waiting import Due, Ended, Parked, Scheduled, Waiting
from .workflows import Chain, Chord, Group

SCENES = (
    Waiting,
    Parked,
    Scheduled,
    Due,
    DueEvents,
    Ended,
    Held,
    Ordered,
    Unique,
    Keys,
    Limits,
    Handlers,
    Tables,
    Made,
    Read,
    Priorities,
    Schedules,
    Kept,
    Logged,
    Changes,
    Halted,
    Polled,
    PolledByKey,
    Chord,
    Chain,
    Group,
    *messages.SCENES,
)
SLACK = 30
EACH = 10
"""Pages that an operation may fetch more in any case, and for each of its statements: an index with a level more has
each look into it fetch one."""
MEGABYTES = 100
"""What a command may have of memory, however much it tells of."""
HEAVY = 100_000
"""From which depth on commands that have to do with all of it are run."""
SECONDS = 10
"""How long a plain task may wait beside it, on a busy machine: for no more than one step of it."""


class Measured(NamedTuple):
    """What one operation costs: the median of several times, each."""

    line: Line
    base: int
    """Pages that it fetches in an empty queue only because it opens connections; 0 where it opens none."""
    shallow: Count
    deep: Count
    worn: Count | None
    """In the deeper database, after it has been done many times."""
    allowed: float
    """Pages that it may fetch in the deeper database."""

    @property
    def grows(self):
        """Whether it costs more than it may."""
        return self.deep.fetches > self.allowed

    @property
    def wears(self):
        """Whether it costs more for having been done often."""
        return self.worn is not None and self.worn.fetches > GROWS * self.deep.fetches + SLACK


class Found(NamedTuple):
    """What was found in a scene, at the two depths."""

    shallow: int
    deep: int
    lines: list[Measured]
    heavy: list[Weighed]
    idle: tuple[float, float] | None
    """Pages that a worker without anything to do fetches in a second, at both depths."""
    idle_fault: str


def measure(kind, project, shallow, deep, often, seconds=0):
    """All lines of a scene, counted at both depths, and once more after each was done *often*; then what is heavy.

    What a connection alone costs more in the deeper database is allowed: the engine reads RDB$PAGES for it.
    An idle worker is counted for *seconds*, at both depths; 0: not at all.
    """
    seconds *= kind.idles
    shallow, deep = max(shallow, kind.least), max(1, kind.least // shallow) * deep
    deep = max(2, min(deep, kind.deepest) // kind.shrinks)
    shallow = max(1, shallow // kind.shrinks)
    with staged(kind, project) as scene, closing(Counter(project.url)) as counter, counter.counting():
        lines = list(scene.lines())
        empty = [_cost(counter, line).fetches if line.opens else 0 for line in lines]
        scene.fill(shallow)
        opened = counter.of(scene.connect).fetches
        before = [_cost(counter, line) for line in lines]
        at_first = _idle(counter, project, seconds)
        scene.fill(deep - shallow)
        dearer = max(1.0, counter.of(scene.connect).fetches / opened)
        allowed = [_allowed(each, deep / shallow, dearer) for each in zip(lines, empty, before, strict=True)]
        after = [_cost(counter, line) for line in lines]
        # Once more: a high count was seen that did not stay (publish: 452 pages, and 14 again); what grows stays high.
        after = [
            min(_cost(counter, line), cost) if cost.fetches > most else cost
            for line, most, cost in zip(lines, allowed, after, strict=True)
        ]
        later = _idle(counter, project, seconds)
        worn = [_worn(counter, line, often) for line in lines]
        heavy = [weigh(scene, each) for each in scene.heavy() if deep >= HEAVY]
    measured = [Measured(*each) for each in zip(lines, empty, before, after, worn, allowed, strict=True)]
    return Found(shallow, deep, measured, heavy, (at_first, later) if seconds else None, kind.idle_fault)


def _allowed(measured, ratio, dearer):
    """Returns the pages that a line may fetch in the deeper database; *ratio* is that of the depths.

    *dearer*: how many times as much a connection costs there.
    """
    line, base, few = measured
    factor = 1.25 * ratio if line.grows is None else line.grows
    return base * dearer + max(0, few.fetches - base) * factor + SLACK + EACH * few.statements


def _cost(counter, line):
    if not line.opens:
        line.act()  # what is prepared at the first time
    return sorted(counter.of(line.act) for _ in range(line.times))[line.times // 2]


def _idle(counter, project, seconds):
    """What a worker of a queue without tasks fetches in a second, its upkeep of all queues included."""
    if not seconds:
        return 0.0
    with idle_worker(project):
        return counter.of(lambda: time.sleep(seconds)).fetches / seconds


def _worn(counter, line, often):
    if not line.wears or line.fault:
        return None
    for _ in range(often):
        line.act()
    return _cost(counter, line)


def faults(found):
    """What is not as the table says: what grows and may not, and what is known to grow and does not."""
    wrong = []
    for each in found.lines:
        counts = f"{each.line.what}: {each.shallow.fetches} pages, then {each.deep.fetches}"
        if each.grows and not each.line.fault:
            wrong.append(f"{counts}, at most {each.allowed:.0f} are allowed")
        elif each.line.fault and not each.grows:
            wrong.append(f"{counts}: it no longer grows because {each.line.fault}; remove that from the table")
        if each.worn is not None and each.wears:
            wrong.append(f"{counts}, and {each.worn.fetches} after it was done many times")
    if found.idle is not None and found.idle[1] > 2 * found.idle[0] + SLACK and not found.idle_fault:
        wrong.append("an idle worker: {:.0f} pages a second, then {:.0f}".format(*found.idle))
    return wrong + [text for each in found.heavy for text in _too_heavy(each)]


def _too_heavy(weighed):
    takes = weighed.megabytes > MEGABYTES or weighed.waited > SECONDS
    if takes == bool(weighed.heavy.fault):
        return []
    what = f"{weighed.megabytes:.0f} MB at the most, and a plain task waited for {weighed.waited:.1f} s beside it"
    known = f": no longer too much because {weighed.heavy.fault}; remove that from the table" if not takes else ""
    return [f"{weighed.heavy}: {what}{known}"]
