"""The watch over one's neighbours: whose silence is put to the database, and when to look again.

A worker whose connection was cut finds that out with its next heartbeat, and then has to come back in. Who looks only
with its own heartbeats has to begin one of them early to be in time; who looks at the very moment at which the grace of
the silent one ends leaves it all of that.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fbtasks import clock
from fbtasks.call import Neighbour
from fbtasks.maintenance import hosts
from fbtasks.maintenance.pauses import Pauses

BEATS: Final = 14
"""Heartbeats in a lease."""
SHARE: Final = 7
"""The part of a lease for which somebody may be silent whose connection is gone: he had time to come back."""
_LATER: Final = (0.02, 0.2)
"""Seconds by which a look comes after the moment at which somebody's grace ends: times are told in milliseconds, and of
many processes that wait for that moment one is to be done before the others come."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The times that follow from the lease of a process, in seconds."""

    lease: float
    longest: float = float("inf")
    """Between two heartbeats, at the most."""

    @property
    def heartbeat(self) -> float:
        """Between two heartbeats."""
        return min(self.longest, self.lease / BEATS)


class Suspect(NamedTuple):
    """A neighbour that may be dead."""

    neighbour: Neighbour
    gone: bool
    """Whether its process is known to have ended; else the database decides, by its lease and its connection."""
    credit: float
    """Seconds of its silence that do not count: whoever looks was held up himself."""


class Watch:
    """What one process that sends heartbeats knows of the others that do, and of its own pauses."""

    def __init__(self, rhythm: Rhythm) -> None:
        self._rhythm = rhythm
        self._later = random.uniform(*_LATER)  # noqa: S311
        self._pauses = Pauses(rhythm.heartbeat)
        self._asked = 0.0
        self._alive_at: float | None = None
        self._was_lost = False

    def begin(self) -> None:
        """This process is about to send a heartbeat, or to connect and register."""
        self._asked = clock.monotonic()
        self._alive_at = self._alive_at or self._asked

    def registered(self) -> None:
        """It has registered. What held that up, since its last heartbeat if there was one, may have held up others."""
        self.beaten(clock.monotonic() - (self._alive_at or self._asked))

    def lost(self) -> None:
        """Its connection was lost: until its next heartbeat nothing that it has not heard of others counts."""
        self._was_lost = True

    def beaten(self, silence: float, companion: tuple[float, float] = (0.0, 0.0)) -> None:
        """It has sent a heartbeat, after *silence* seconds in the database's time.

        *companion* are the seconds in which another process has sent them for it meanwhile, and its pauses in these.
        """
        self._pauses.add(*companion)
        self._pauses.beat(silence, lost=self._was_lost)
        self._was_lost = False
        self._alive_at = self._asked

    def held_up(self) -> None:
        """Its heartbeat was answered, but another transaction holds its row: then it cannot be buried either."""
        self._alive_at = self._asked

    @property
    def overdue(self) -> bool:
        """Whether this process has been silent for so long that it may have been taken for dead."""
        return self._alive_at is not None and clock.monotonic() > self._alive_at + self._rhythm.lease / SHARE

    @property
    def leisure(self) -> float:
        """Seconds until the next heartbeat is due; 0.0 when it was before."""
        if self._alive_at is None:
            return 0.0
        return max(0.0, self._alive_at + self._rhythm.heartbeat - clock.monotonic())

    @property
    def total(self) -> tuple[float, float]:
        """Seconds between all its heartbeats so far, and how many of these were pauses."""
        return self._pauses.total

    def suspects(self, neighbours: Iterable[Neighbour]) -> list[Suspect]:
        """Those of the *neighbours* that the last heartbeat told of who are to be put to the database."""
        found = []
        here = hosts.host_name()
        for neighbour in neighbours:
            gone = neighbour.host == here and hosts.is_gone(neighbour.pid, neighbour.pid_start)
            credit = self._pauses.within(neighbour.silence)
            if gone or neighbour.silence - credit >= neighbour.lease / SHARE:
                found.append(Suspect(neighbour, gone, credit))
        return found

    def pause(self, neighbours: Iterable[Neighbour]) -> float:
        """Seconds from this process's heartbeat to its next: fewer than usual when somebody's grace ends before."""
        left = (n.lease / SHARE - n.silence + self._pauses.within(n.silence) for n in neighbours)
        return min([self._rhythm.heartbeat, *(seconds + self._later for seconds in left if seconds > 0)])
