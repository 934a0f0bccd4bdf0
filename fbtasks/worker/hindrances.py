"""What a worker cannot do for now, since another transaction holds a row that it would change.

The rows are the application's to lock as well. So a conflict that stays is no reason to give the connection up, nor to
leave off what has nothing to do with that row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fbtasks import timing as clock
from fbtasks.errors import ConflictError

logger = logging.getLogger("fbtasks.worker")
FIRST: Final = 0.2
LAST: Final = 5.0
"""Seconds until what could not be done is tried again: twice as many each time, up to the latter."""
SAY: Final = 60.0
"""Seconds between two lines of the log about one thing."""


@dataclass(slots=True)
class Hindrance:
    """When to try again what another transaction is in the way of, and when to say that again."""

    pause: float = FIRST
    last: float = LAST
    until: float = 0.0
    """When to try again, on the monotonic clock."""
    quiet_until: float = 0.0

    def wait(self) -> None:
        """Has it left alone for a while, which is twice as long each time."""
        self.until = clock.monotonic() + self.pause
        self.pause = min(2 * self.pause, self.last)

    def is_to_be_said(self) -> bool:
        """Whether the log is to have a line of it now; then not for a while."""
        now = clock.monotonic()
        if now < self.quiet_until:
            return False
        self.quiet_until = now + SAY
        return True


class Hindrances:
    """What could not be done, and when to try it again."""

    def __init__(self) -> None:
        self._met: dict[str, Hindrance] = {}

    def attempt(self, what: str, act: Callable[[], None]) -> None:
        """Does *what*, unless another transaction is in its way, or was a moment ago."""
        if clock.monotonic() < self.until(what):
            return
        try:
            act()
        except ConflictError as error:
            met = self._met.setdefault(what, Hindrance())
            met.wait()
            if met.is_to_be_said():
                logger.warning(
                    "Another transaction is in the way of %s: %s. It is tried again; all else goes on.", what, error
                )
        else:
            self._met.pop(what, None)

    def until(self, what: str) -> float:
        """The monotonic time until which *what* is not tried again; 0.0 when nothing is in its way."""
        met = self._met.get(what)
        return 0.0 if met is None else met.until
