"""When this process was held up itself: that time does not count against others.

A machine that was suspended, a disk that did not answer, a stopped process on the embedded engine, a clock set forward:
everybody was silent then, and who wakes first must not take the others for dead. All is told in the database's time, as
the others' silence is: a machine's own clock may have stood still.
"""

from __future__ import annotations

from typing import Final

_MOST: Final = 100
_LEAST: Final = 0.05
"""The part of the usual time that a pause must last to be one."""


class Pauses:
    """By how much the pauses between this process's heartbeats were longer than usual, in seconds."""

    def __init__(self, usual: float) -> None:
        """*usual* is the time between two heartbeats."""
        self._usual = usual
        self._now = 0.0
        self._paused = 0.0
        self._pauses: tuple[tuple[float, float], ...] = ()

    def beat(self, silence: float, *, lost: bool = False) -> None:
        """Notes a heartbeat, and how long this process had been silent before it; less than 0 when a clock was set.

        When its connection was *lost* all of that is a pause: the others may have lost theirs, and have to come back.
        """
        silence = max(0.0, silence)
        longer = silence if lost else silence - self._usual
        self.add(silence, longer if longer > _LEAST * self._usual else 0.0)

    def add(self, seconds: float, paused: float) -> None:
        """Notes that time has passed, the last *paused* seconds of it in a pause."""
        self._now += seconds
        self._paused += paused
        if paused > 0:
            self._pauses = (*self._pauses[1 - _MOST :], (self._now - paused, self._now))

    @property
    def total(self) -> tuple[float, float]:
        """All seconds so far, and how many of them were pauses."""
        return self._now, self._paused

    def within(self, seconds: float) -> float:
        """How many of the last *seconds* before the last heartbeat were such pauses."""
        return sum(max(0.0, end - max(begin, self._now - seconds)) for begin, end in self._pauses)
