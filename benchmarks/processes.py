"""Processes: how one ends with its parent, and what the system tells of one and its descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def die_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """For Popen's ``preexec_fn``: the process gets the signal *number* when the benchmark ends, in any way."""
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(1, int(number), 0, 0, 0)  # PR_SET_PDEATHSIG


def family(pid: int) -> list[int]:
    """*pid* and its descendants."""
    found = [pid]
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in entry.read_text().split():
                found += family(int(child))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """The processor time that these processes have used so far."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def memory(pids: list[int]) -> int:
    """The memory of these processes in bytes; what they share is counted once, in equal parts."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def rest(pids: Callable[[], list[int]], seconds: float) -> None:
    """Waits until the processes *pids* use hardly any processor time, for so many *seconds* at most."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        before = cpu_seconds(pids())
        time.sleep(0.25)
        if cpu_seconds(pids()) - before < 0.03:
            return
