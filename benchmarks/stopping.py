"""Ending a run on request, with SIGINT or SIGTERM, where nothing is left half done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_blocks = 0
"""The blocks that hold requests back now, one in the other."""
_asked: int | None = None
"""The signal that has come meanwhile."""


def heed_signals() -> None:
    """From now on SIGINT and SIGTERM raise SystemExit, with the exit code of a program that the signal has killed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, _frame: object) -> None:
    global _asked
    if _blocks:
        _asked = number
    else:
        sys.exit(128 + number)


@contextmanager
def held() -> Iterator[None]:
    """Holds requests to end back for the block, in the main thread. Raises at its end, also in place of an error.

    For what must not be cut in two: the driver does not know of a transaction whose begin was interrupted.
    """
    global _blocks, _asked
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        if _asked is not None and not _blocks:
            number, _asked = _asked, None
            sys.exit(128 + number)
