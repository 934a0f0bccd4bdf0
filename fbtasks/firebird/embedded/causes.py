"""Tells why the embedded engine does not answer: processes in its table of locks that are stopped, or are zombies.

The engine's processes ask the kernel whether another one lives. A process that has ended is there until its parent has
reaped it, and so are its locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fbtasks.firebird.embedded.namespace import status_of

_START_AGAIN: Final = "if that does not help, end all processes that use the database, and start them again."
_REMEDY: Final = (
    "A process that uses the database is stopped (SIGSTOP, a debugger), or has ended and was not reaped by its parent "
    "(a zombie), or one was killed while it changed what the engine's processes share. Have the first go on, or end "
    f"that parent; {_START_AGAIN}"
)


def remedy(pids: Iterable[int]) -> str:
    """Returns what to do when the engine does not answer, which processes of these numbers use."""
    told = list(_causes(pids))
    return f"{' '.join(told)} {_START_AGAIN.capitalize()}" if told else _REMEDY


def _causes(pids: Iterable[int]) -> Iterator[str]:
    for pid in sorted({*pids}):
        status = status_of(pid)
        if status.state in "Tt":
            yield f"Process {_named(pid)} uses the database and is stopped: have it go on (kill -CONT {pid})."
        elif status.state == "Z":
            parent = f"its parent, {_named(status.parent)}"
            if status.parent == os.getpid():
                parent += ", this process"
            elif status.parent == 1:
                parent += " (in a container, start it with one that reaps: docker run --init)"
            yield f"Process {_named(pid)} has ended and is a zombie, for which the engine waits: end {parent}."


def _named(pid: int) -> str:
    with suppress(OSError):
        return f"{pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return str(pid)
