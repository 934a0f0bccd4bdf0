"""Watches the heartbeats of neighbours: which of them may be dead, and when to look again.

A process whose connection was lost finds that out with its next heartbeat, and then has to come back in. A neighbour
that looks only with its own heartbeats has to begin one of them early to be in time; one that looks at the very moment
at which the grace of the silent one ends leaves it all of that.

After its own stall a process counts the silence of others anew. A machine that was suspended, a disk that did not
answer, a stopped process on the embedded engine, a clock set forward: all were silent then, and the first to wake must
not take the others for dead. That it was held up itself a process learns in the database's time, as the others' silence
is told: a machine's own clock may have stood still.

A neighbour on this host is known to have ended, or to live. One that lives and is silent is held up most likely, as all
are where many processes share few processors: to ask the database for it, and to take its tasks, would hold it up more.
It is taken for one that hangs only when it has been silent for :data:`HANGS` leases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.queue.register import hosts
from fbtasks.queue.register.processes import SHARE
from fbtasks.tasks.call import HeartbeatReply, Neighbour

BEATS: Final = 14
"""Heartbeats in a lease."""
HANGS: Final = 4
"""Leases for which a process may be silent that is known to live."""
_LATE: Final = 1.5
"""Heartbeats without one of its own, up to which a process was not held up: it was busy."""
_LATER: Final = (0.02, 0.2)
"""Seconds by which a look comes after the moment at which a grace ends: times are told in milliseconds, and of many
processes that wait for that moment one is to be done before the others come."""


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

    @property
    def grace(self) -> float:
        """For which the process may be silent without a connection."""
        return self.lease / SHARE


class Suspect(NamedTuple):
    """A neighbour that may be dead."""

    neighbour: Neighbour
    gone: bool
    """Whether its process is known to have ended; else the database decides, by its lease and its connection."""


class NeighbourMonitor:
    """Watches the other processes that send heartbeats, and the stalls of its own."""

    def __init__(self, rhythm: Rhythm) -> None:
        self._rhythm = rhythm
        self._later = random.uniform(*_LATER)  # noqa: S311
        self._begun_at = 0.0
        self._alive_at: float | None = None
        self._connection_lost = False
        self.stalled_until = 0.0
        """The monotonic time at which the last stall of its own ended; 0.0: it had none."""

    def begin(self) -> None:
        """This process is about to send a heartbeat, or to connect and register."""
        self._begun_at = clock.monotonic()
        self._alive_at = self._alive_at or self._begun_at

    def registered(self) -> None:
        """It has registered. What held that up, since its last heartbeat if there was one, may have held up others."""
        self._renewed(stalled=self.overdue)

    def connection_lost(self) -> None:
        """Its connection was lost: others may have lost theirs, and have to come back."""
        self._connection_lost = True

    def heard(self, reply: HeartbeatReply) -> None:
        """Its heartbeat was answered.

        It had stalled when it was silent for longer than any of them may be, or when it was declared dead. When another
        transaction held its row it cannot be declared dead.
        """
        if reply.renewed:
            graces = [neighbour.lease / SHARE for neighbour in reply.neighbours]
            shortest = max(_LATE * self._rhythm.heartbeat, min([self._rhythm.grace, *graces]))
            self._renewed(stalled=reply.silence > shortest)
        elif reply.alive:
            self._alive_at = self._begun_at
        else:
            self.stalled_until = clock.monotonic()

    def _renewed(self, *, stalled: bool) -> None:
        if stalled or self._connection_lost:
            self.stalled_until = clock.monotonic()
        self._connection_lost = False
        self._alive_at = self._begun_at

    @property
    def awake(self) -> float:
        """Seconds since its last stall of its own: as much of a neighbour's silence counts."""
        return 0.0 if self._connection_lost else clock.monotonic() - self.stalled_until

    @property
    def overdue(self) -> bool:
        """Whether this process has been silent for so long that it may have been declared dead."""
        return self._alive_at is not None and clock.monotonic() > self._alive_at + self._rhythm.grace

    @property
    def leisure(self) -> float:
        """Seconds until the next heartbeat is due; 0.0 when it was before."""
        if self._alive_at is None:
            return 0.0
        return max(0.0, self._alive_at + self._rhythm.heartbeat - clock.monotonic())

    def suspects(self, neighbours: Iterable[Neighbour]) -> list[Suspect]:
        """Returns those of *neighbours* that may be dead: the database decides."""
        found = []
        for neighbour in neighbours:
            gone = _is_here(neighbour) and hosts.is_gone(neighbour.pid, neighbour.pid_start)
            if gone or self._grace_left(neighbour) <= 0:
                found.append(Suspect(neighbour, gone))
        return found

    def pause(self, neighbours: Iterable[Neighbour]) -> float:
        """Seconds from this process's heartbeat to its next: fewer than usual when a neighbour's grace ends before."""
        left = map(self._grace_left, neighbours)
        return min([self._rhythm.heartbeat, *(seconds + self._later for seconds in left if seconds > 0)])

    def _grace_left(self, neighbour: Neighbour) -> float:
        silence, grace = min(neighbour.silence, self.awake), neighbour.lease / SHARE
        late = silence + self._rhythm.heartbeat > grace  # else it does not matter yet
        if late and _is_here(neighbour) and hosts.lives(neighbour.pid, neighbour.pid_start):
            grace = neighbour.lease * HANGS
        return grace - silence


def _is_here(neighbour: Neighbour) -> bool:
    return neighbour.host == hosts.host_name()
