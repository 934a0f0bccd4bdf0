"""What the system tells of a process and its descendants. Linux only: elsewhere the figures are left out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def known() -> bool:
    """Whether this system tells."""
    return Path("/proc/self/stat").exists()


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
