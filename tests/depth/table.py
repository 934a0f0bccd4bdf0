"""The table: all scenes, measured at two depths, and after what is done in them has been done many times."""

from contextlib import closing
from typing import NamedTuple

from .clock import Schedules
from .counter import Count, Counter
from .feeding import Changes, DueEvents, Kept, Logged, Polled, PolledByKey
from .holding import Held, Ordered, Unique
from .scene import GROWS, Line, Scene, staged
from .waiting import Due, Ended, Scheduled, Waiting

SCENES: tuple[type[Scene], ...] = (
    Waiting, Scheduled, Due, DueEvents, Schedules, Kept, Logged, Changes, Polled, PolledByKey, Ended, Held, Ordered,
    Unique,
)  # fmt: skip
SLACK = 30
"""Pages that an operation may fetch more in any case: an index with a level more has each look into it fetch one."""


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
    def grows(self) -> bool:
        """Whether it costs more than it may."""
        return self.deep.fetches > self.allowed

    @property
    def wears(self) -> bool:
        """Whether it costs more for having been done often."""
        return self.worn is not None and self.worn.fetches > GROWS * self.deep.fetches + SLACK


def measure(kind: type[Scene], project, shallow: int, deep: int, often: int) -> list[Measured]:
    """All lines of a scene, counted at both depths, and once more after each was done *often*."""
    deep = max(2, min(deep, kind.deepest) // kind.shrinks)
    shallow = max(1, shallow // kind.shrinks)
    with staged(kind, project) as scene, closing(Counter(project.url)) as counter, counter.counting():
        lines = list(scene.lines())
        empty = [_cost(counter, line).fetches if line.opens else 0 for line in lines]
        scene.fill(shallow)
        before = [_cost(counter, line) for line in lines]
        scene.fill(deep - shallow)
        after = [_cost(counter, line) for line in lines]
        worn = [_worn(counter, line, often) for line in lines]
    factors = [1.1 * deep / shallow if line.grows is None else line.grows for line in lines]
    allowed = [
        base + max(0, few.fetches - base) * factor + SLACK
        for base, few, factor in zip(empty, before, factors, strict=True)
    ]
    return [Measured(*each) for each in zip(lines, empty, before, after, worn, allowed, strict=True)]


def _cost(counter: Counter, line: Line) -> Count:
    line.act()  # what is prepared at the first time
    return sorted(counter.of(line.act) for _ in range(line.times))[line.times // 2]


def _worn(counter: Counter, line: Line, often: int) -> Count | None:
    if not line.wears:
        return None
    for _ in range(often):
        line.act()
    return _cost(counter, line)


def faults(found: list[Measured]) -> list[str]:
    """What is not as the table says: what grows and may not, and what is known to grow and does not."""
    wrong = []
    for each in found:
        counts = f"{each.line.what}: {each.shallow.fetches} pages, then {each.deep.fetches}"
        if each.grows and not each.line.fault:
            wrong.append(f"{counts}, at most {each.allowed:.0f} are allowed")
        elif each.line.fault and not each.grows:
            wrong.append(f"{counts}: it no longer grows because {each.line.fault}; remove that from the table")
        if each.worn is not None and each.wears:
            wrong.append(f"{counts}, and {each.worn.fetches} after it was done many times")
    return wrong
