"""Who and where a process is, so that another process of its PID namespace can tell whether it still lives."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final

from fbtasks.firebird.embedded.namespace import pid_namespace, status_of

_UNKNOWN: Final = f"?/{secrets.token_hex(4)}"
"""In the place of a PID namespace that the system does not tell: no other process has the same."""


def host_name() -> str:
    """The host as it runs now, with the PID namespace of this process.

    Two processes have the same name only where each can tell by the other's pid whether that one lives. Containers on a
    server's database have names of their own, and leave that to the lease and the connection.
    """
    return f"{socket.gethostname()}/{pid_namespace() or _UNKNOWN}"


LONGEST: Final = 255
"""Characters of the name of a host that the register keeps."""
ENDED: Final = -1


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since the machine started; 0 when that cannot be known.

    :data:`ENDED` for one that has ended. A zombie has: it runs nothing.
    """
    state, _, ticks = status_of(pid)
    return ENDED if state in "ZX" else ticks


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal (SIGSTOP) or a debugger."""
    return status_of(pid).state in "Tt"


def is_gone(pid: int, started: int) -> bool:
    """Whether a process with this :func:`host_name` has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # of another user, and alive
    return start_ticks(pid) not in (0, started)


def is_known_gone(host: str, pid: int, started: int) -> bool:
    """Whether a process of the register is one of this host, and has ended."""
    return host == host_name()[:LONGEST] and is_gone(pid, started)


def lives(pid: int, started: int) -> bool:
    """Whether a process with this :func:`host_name` is known to live, and not to be stopped."""
    state, _, ticks = status_of(pid)
    return ticks == started != 0 and state not in "ZXTt"


def watch(pid: int, started: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is none to be had."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        file = os.pidfd_open(pid)
    except OSError:
        return None
    if start_ticks(pid) in (0, started):
        return file
    os.close(file)
    return None
