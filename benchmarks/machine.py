"""On what the figures were taken. No names: neither the host's nor its users'."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.database import BenchDatabase


def description(database: BenchDatabase) -> dict[str, str]:
    """Versions, machine and date, each under its name."""
    engine, page_size, buffers, forced = database.facts()
    where = "embedded" if database.embedded else "server"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "fbtasks": package("fbtasks"),
        "Firebird": f"{engine}, {where}, pages of {page_size} bytes, {buffers} of them cached, "
        f"forced writes {'on' if forced else 'off'}",
        "firebird-driver": package("firebird-driver"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "memory": _memory(),
    }


def package(name: str) -> str:
    """The version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{available} cores, {model}"


def _memory() -> str:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal"):
                return f"{int(line.split()[1]) / 2**20:.0f} GiB"
    return "unknown"
