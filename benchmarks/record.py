"""The record of a run: what was measured when, with a calibration before and after every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.calibration import Calibration, calibrate, slow_stretches
from benchmarks.figures import Figure, Reading, Sample


class _Entry(NamedTuple):
    sample: Sample
    round: int
    stretches: frozenset[int]
    """The stretches between calibrations in which it was measured: two for a ratio."""


class Record:
    """Takes samples in as they come."""

    def __init__(self, file: Path, calibration: Callable[[Path], Calibration] = calibrate) -> None:
        """*file* is written for the calibrations, on the disk that is measured."""
        self._file = file
        self._calibrate = calibration
        self.calibrations = [calibration(file)]
        self._entries: list[_Entry] = []
        self.round = 0
        self.notes: list[str] = []
        """What could not be measured, and why."""

    def note(self, text: str) -> None:
        """Notes, once, what is missing."""
        if text not in self.notes:
            self.notes.append(text)

    def measured(self, samples: Iterable[Sample]) -> int:
        """Takes in the *samples* of one measurement, which runs meanwhile, and calibrates. Returns its stretch.

        When it raises, what it yielded before is kept.
        """
        stretch = len(self.calibrations) - 1
        try:
            for sample in samples:
                self.derived([sample], stretch)
        finally:
            self.calibrations.append(self._calibrate(self._file))
        return stretch

    def derived(self, samples: Iterable[Sample], *stretches: int) -> None:
        """Takes in what follows from measurements in these stretches."""
        self._entries += [_Entry(sample, self.round, frozenset(stretches)) for sample in samples]

    def figures(self) -> dict[str, Figure]:
        """All figures by their keys, in the order in which they were first measured."""
        slow = slow_stretches(self.calibrations)
        found: dict[str, Figure] = {}
        for sample, number, stretches in self._entries:
            figure = found.setdefault(sample.key, Figure(sample.key, sample.label, sample.unit))
            figure.readings.append(Reading(number, sample.value, any(slow[stretch] for stretch in stretches)))
        return found
