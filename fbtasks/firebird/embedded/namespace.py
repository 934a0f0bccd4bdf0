"""Tells PID namespaces apart: those of containers, of their host, and of other machines.

A process of one namespace does not see the processes of another, or sees other ones under the same numbers: what it
asks of a number there says nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Status(NamedTuple):
    """State, parent and start of a process, as the system tells them."""

    state: str
    """A letter: Z of one that has ended and was not reaped, T and t of one that is stopped; ?: it cannot be known."""
    parent: int
    ticks: int
    """Its start, in clock ticks since that of the machine."""


def pid_namespace() -> str | None:
    """The PID namespace of this process, as no other one that lives now is called; None where the system does not tell.

    The kernel's number for a namespace is given again when that has ended.
    """
    try:
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return None
    return f"{space}/{boot}"


def sees_processes() -> bool:
    """Whether the numbers in ``/proc`` are those of this process's namespace; it may be mounted for another one."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def status_of(pid: int) -> Status:
    """The state of a process of this namespace. It cannot be known where /proc hides other users' processes."""
    if not sees_processes():
        return Status("?", 0, 0)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Status("?", 0, 0)
    return Status(fields[0], int(fields[1]), int(fields[19]))
