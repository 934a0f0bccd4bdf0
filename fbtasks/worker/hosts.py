"""Who and where a process is, so that another process of the same host can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_name() -> str:
    """The host and, behind a slash, its process number space: equal pids of two containers are two processes."""
    try:
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        space = "0"
    return f"{socket.gethostname()}/{space}"


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since the machine started; 0 when that cannot be known or it is gone.

    A zombie counts as gone: it runs nothing.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_gone(host: str, pid: int, started: int) -> bool:
    """Whether a process of *this* host has ended. False for one of another host: nothing is known of it."""
    return host == host_name() and started != 0 and start_ticks(pid) != started
