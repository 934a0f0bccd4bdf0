"""What is measured: figures with a reading for each round, ratios of what was measured side by side, and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

ROUNDS_TO_DECIDE = 5
"""Rounds that a verdict needs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    key: str
    """Names the figure, by parts with slashes between: ``celery-redis/prefork/2/drain``."""
    label: str
    """The figure for people."""
    value: float
    unit: str

    def of(self, key: str, label: str) -> Sample:
        """The same as a figure of *key*, which people know as *label*."""
        return Sample(f"{key}/{self.key}", f"{label}: {self.label}", self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample in its round."""

    round: int
    value: float
    slow: bool = False
    """Whether a calibration beside it was off: the machine had another pace than in the rest of the run."""


@dataclass(slots=True)
class Figure:
    """All readings of one figure in a run."""

    key: str
    label: str
    unit: str
    readings: list[Reading] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """The values alone."""
        return [reading.value for reading in self.readings]

    @property
    def value(self) -> float:
        """Their median."""
        return median(self.values)

    @property
    def rounds(self) -> int:
        """The rounds in which it was measured."""
        return len({reading.round for reading in self.readings})


class Verdict(StrEnum):
    """What a run says of a target."""

    REACHED = "yes"
    MISSED = "no"
    OPEN = "not decided"
    MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the figure *key*."""

    what: str
    key: str
    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether *value* is within the bounds."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"at most {self.most:g}" if self.least is None else f"at least {self.least:g}"

    def judge(self, figure: Figure | None) -> Verdict:
        """Decided by all rounds alone, when they are enough; not by a median in a range that crosses the bound."""
        if figure is None:
            return Verdict.MISSING
        held = {self.holds(value) for value in figure.values}
        if figure.rounds < ROUNDS_TO_DECIDE or len(held) > 1:
            return Verdict.OPEN
        return Verdict.REACHED if held == {True} else Verdict.MISSED


def ratios(ours: Sequence[Sample], theirs: Sequence[Sample], key: str, label: str) -> Iterator[Sample]:
    """For each thing that was measured of both: ours divided by theirs, as a figure of *key*, known as *label*."""
    values = {sample.key: sample.value for sample in ours}
    for sample in theirs:
        if sample.key in values and sample.value > 0:
            ratio = values[sample.key] / sample.value
            yield Sample(f"{key}/{sample.key}/ratio", f"fbtasks / {label}: {sample.label}", ratio, "")


def drain_rate(stamps: Iterable[float], end: float | None = None) -> float:
    """Tasks a second over the second half of a drain, from the times at which its tasks ran.

    The first half is the warm-up. The drain ends when the last task ran, or at *end*.
    """
    ordered = sorted(stamps)
    start = len(ordered) // 2 - 1
    last = ordered[-1] if end is None else end
    return (len(ordered) - 1 - start) / (last - ordered[start])


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which *share* (0 to 1) of *values* lie: always one of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
