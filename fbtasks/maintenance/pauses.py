"""When this process was held up itself: that time does not count against others.

A machine that was suspended, a disk that did not answer, a stopped process on the embedded engine: everybody is silent
then, and who wakes first must not take the others for dead.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MOST: Final = 100


class Pauses:
    """The pauses between this process's heartbeats that were longer than usual. Times are monotonic, in seconds."""

    def __init__(self, usual: float, now: float) -> None:
        """*usual* is the time between two heartbeats; the first one is counted from *now* on."""
        self._usual = usual
        self._last = now
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def beat(self, now: float) -> None:
        """Notes a heartbeat."""
        if now - self._last > 2 * self._usual:
            self._pauses.append((self._last + self._usual, now))
        self._last = now

    def within(self, seconds: float, now: float) -> float:
        """How many of the last *seconds* were such pauses."""
        return sum(max(0.0, end - max(begin, now - seconds)) for begin, end in self._pauses)
