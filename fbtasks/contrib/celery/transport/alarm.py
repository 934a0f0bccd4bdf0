"""When a thread that waits is to wake, as other threads ask for it."""

from __future__ import annotations

import math
import threading

from fbtasks import timing as clock


class Alarm:
    """The moment for which other threads ask the one that waits here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung = False
        self.at = math.inf
        """The earliest moment asked for, in monotonic time."""

    def ask_for(self, moment: float) -> None:
        """Has the waiting thread wake at *moment*, if it would not before."""
        if moment < self.at:
            self.at = moment
            self.ring()

    def ring(self) -> None:
        """Ends the wait, or the next one."""
        with self._changed:
            self._rung = True
            self._changed.notify()

    def clear(self) -> None:
        """Forgets what was asked for."""
        self.at = math.inf

    def wait(self, until: float) -> None:
        """Waits until *until*, or until another moment is asked for."""
        with self._changed:
            if not self._rung:
                self._changed.wait(max(0.0, until - clock.monotonic()))
            self._rung = False
