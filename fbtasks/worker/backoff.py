"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from typing import Final

FIRST: Final = 0.05
SOON: Final = 0.4
"""Seconds between two attempts, at the most, while the worker may still be in time to keep what it holds."""
LAST: Final = 5.0


class Backoff:
    """The pauses between attempts to connect: each twice as long as the one before."""

    def __init__(self) -> None:
        self._pause = FIRST

    def next(self, *, overdue: bool) -> float:
        """Seconds until the next attempt. *overdue*: it is too late to keep what is held."""
        pause = self._pause
        self._pause = min(pause * 2, LAST if overdue else SOON)
        return pause

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._pause = FIRST
