"""Tells PID namespaces apart: those of containers, of their host, and of other machines.

A process of one namespace does not see the processes of another, or sees other ones under the same numbers: what it
asks of a number there says nothing.
"""

from __future__ import annotations

import os
from pathlib import Path


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
