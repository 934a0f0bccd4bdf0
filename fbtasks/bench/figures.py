"""What is measured: samples of a figure, and the figure as the median of its samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    key: str
    """Names the figure, by parts with slashes between: ``drain/threads/10/ignored``."""
    label: str
    """The figure for people."""
    value: float
    unit: str


@dataclass(slots=True)
class Figure:
    """All samples of one figure in a run."""

    key: str
    label: str
    unit: str
    samples: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "key": self.key, "label": self.label, "unit": self.unit, "value": self.value, "samples": self.samples,
        }  # fmt: skip


class Figures:
    """The figures of one run, in the order in which they were first met."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}
        self.notes: list[str] = []
        """What could not be measured, and why."""

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes *samples* in as they come, so that those of a measurement that breaks off are kept."""
        for sample in samples:
            found = self._figures.setdefault(sample.key, Figure(sample.key, sample.label, sample.unit))
            found.samples.append(sample.value)

    def note(self, text: str) -> None:
        """Says, once, what is missing."""
        if text not in self.notes:
            self.notes.append(text)

    def all(self) -> list[Figure]:
        """All figures."""
        return list(self._figures.values())

    def get(self, key: str) -> float | None:
        """The value of a figure, or None when it was not measured."""
        found = self._figures.get(key)
        return None if found is None else found.value

    def best(self, keys: Sequence[str]) -> float | None:
        """The greatest of those of the figures that were measured."""
        return max((value for key in keys if (value := self.get(key)) is not None), default=None)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which *share* (0 to 1) of *values* lie: always one of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
