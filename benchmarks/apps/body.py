"""The bodies of the measured tasks, the same for every system: they append to a file, in binary, when they ran."""

import os
import struct
import time

OUT = "BENCH_OUT"
"""The variable with the name of the file of :func:`noop`."""
PAIRS = ".pairs"
"""What the name of the file of :func:`stamp` has behind that."""

_files: dict[str, int] = {}


def noop() -> None:
    """Appends the monotonic time, which is the machine's: 8 bytes."""
    _append("", struct.pack("=d", time.monotonic()))


def stamp(number: float) -> None:
    """Appends *number* and the monotonic time: 16 bytes."""
    _append(PAIRS, struct.pack("=dd", number, time.monotonic()))


def _append(which: str, data: bytes) -> None:
    if which not in _files:
        _files[which] = os.open(os.environ[OUT] + which, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_files[which], data)
