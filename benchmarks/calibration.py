"""The pace of the machine: the same small work again and again, beside every sample."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

STEPS: Final = 400_000
WRITES: Final = 5
PAGE: Final = bytes(8192)
CPU_LIMIT: Final = 1.25
WRITE_LIMIT: Final = 2.0
"""By what factor a calibration may differ from the median of the run, either way. The time of a write varies more."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds of one calibration."""

    cpu: float
    write: float


def calibrate(file: Path) -> Calibration:
    """A fixed piece of work for the processor, and a synchronous write of a page to *file* (the median of a few)."""
    begun = time.perf_counter()
    total = 0
    for number in range(STEPS):
        total ^= number * number
    cpu = time.perf_counter() - begun
    writes = []
    opened = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(WRITES):
            begun = time.perf_counter()
            os.pwrite(opened, PAGE, 0)
            os.fsync(opened)
            writes.append(time.perf_counter() - begun)
    finally:
        os.close(opened)
    return Calibration(cpu, median(writes))


def slow_stretches(taken: list[Calibration]) -> list[bool]:
    """For each stretch between two calibrations: whether one of the two is off from the run's median."""
    cpu, write = median(c.cpu for c in taken), median(c.write for c in taken)
    off = [_differs(c.cpu, cpu, CPU_LIMIT) or _differs(c.write, write, WRITE_LIMIT) for c in taken]
    return [before or after for before, after in pairwise(off)]


def _differs(value: float, usual: float, limit: float) -> bool:
    return max(value / usual, usual / value) > limit
