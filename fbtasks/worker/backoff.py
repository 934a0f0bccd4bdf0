"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from typing import Final

FIRST: Final = 0.05
SOON: Final = 0.4
"""Seconds between two attempts, at the most, while the worker may still be in time to keep what it holds."""
LAST: Final = 5.0


class Backoff:
    """The pauses between attempts to connect and work: each twice as long as the one before, until work succeeds."""

    def __init__(self) -> None:
        self._pause = FIRST

    def next(self, *, overdue: bool, leisure: float = 0.0) -> float:
        """Seconds until the next attempt.

        *overdue*: it is too late to keep what is held. *leisure*: seconds until the worker has to be heard of again.
        """
        pause = self._pause
        self._pause = min(pause * 2, LAST if overdue else max(SOON, leisure))
        return pause

    def reset(self) -> None:
        """What was attempted has succeeded."""
        self._pause = FIRST
