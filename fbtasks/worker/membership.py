"""This worker among the others: its registration, its heartbeat, and the watch over its neighbours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fbtasks import clock
from fbtasks.call import Neighbour, Pulse
from fbtasks.maintenance import hosts
from fbtasks.maintenance.rescue import rescue
from fbtasks.maintenance.watch import Watch
from fbtasks.store import workers
from fbtasks.store.session import Session, Transaction
from fbtasks.version import VERSION

logger = logging.getLogger("fbtasks.worker")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The times that follow from the lease, in seconds."""

    lease: float

    @property
    def heartbeat(self) -> float:
        """Between two heartbeats."""
        return self.lease / 14

    @property
    def grace(self) -> float:
        """Of silence, after which a worker whose connection is gone is taken for dead: it had time to come back."""
        return self.lease / 7

    @property
    def silent(self) -> float:
        """Of silence, after which somebody's grace may end before one's own next heartbeat."""
        return self.grace - self.heartbeat


class Companion(Protocol):
    """Another process that sends heartbeats for the worker as well."""

    def serve(self, worker_id: int) -> None:
        """Says as whom the worker is registered."""

    def silence(self) -> tuple[float, float]:
        """Seconds between its heartbeats since the last call, and how many of these were pauses."""


class Membership:
    """Registers the worker, renews its lease, and buries neighbours that have died."""

    def __init__(
        self, *, name: str, queues: Iterable[str], pool: str, concurrency: int, tasks: Iterable[str], lease: float,
        crash_limit: int,
    ) -> None:  # fmt: skip
        self.worker_id = 0
        self.rhythm = Rhythm(lease)
        self._facts = {
            "name": name,
            "host": hosts.host_name(),
            "pid": os.getpid(),
            "pid_start": hosts.start_ticks(os.getpid()),
            "lease": lease,
            "queues": tuple(queues),
            "pool": pool,
            "concurrency": concurrency,
            "version": VERSION,
            "tasks": sorted(tasks),
        }
        self._crash_limit = crash_limit
        self._next_beat = 0.0
        self._neighbours: tuple[Neighbour, ...] = ()
        self._pidfds: dict[int, int] = {}
        self.companion: Companion | None = None
        self._watch = Watch(heartbeat=self.rhythm.heartbeat, grace=self.rhythm.grace)
        self._watch.begin()

    def register(self, session: Session) -> None:
        """Announces the worker under a new id, and claims as that what it still holds under the one that it had."""
        facts = {**self._facts, "former": self.worker_id}

        def announce(transaction: Transaction) -> int:
            return workers.register(transaction, **facts)  # type: ignore[arg-type]  # the facts are those it wants

        self.worker_id = session.run(announce, point="register")
        self._watch.registered()
        if self.companion is not None:
            self.companion.serve(self.worker_id)

    def beat(self, session: Session, *, draining: bool) -> Pulse | None:
        """Renews the lease when it is time. None when it is not."""
        now = clock.monotonic()
        if now < self._next_beat:
            return None
        conflicts = session.take_conflicts()
        self._watch.begin()
        rhythm = self.rhythm
        pulse = session.run(
            lambda t: workers.heartbeat(
                t, self.worker_id, lease=rhythm.lease, draining=draining, conflicts=conflicts, silent=rhythm.silent
            ),
            point="heartbeat",
        )
        if pulse.alive:
            self._watch.beaten(pulse.silence, self.companion.silence() if self.companion is not None else (0.0, 0.0))
        self._neighbours = pulse.neighbours
        self._next_beat = now + self._watch.pause(self._neighbours)
        self._wait_for_deaths()
        return pulse

    def beat_soon(self) -> None:
        """Has the next heartbeat come at once."""
        self._next_beat = 0.0

    @property
    def next_beat(self) -> float:
        """The monotonic time of the next heartbeat."""
        return self._next_beat

    @property
    def overdue(self) -> bool:
        """Whether so much time has passed since the last heartbeat that the worker may have been taken for dead."""
        return self._watch.overdue

    def filenos(self) -> list[int]:
        """Descriptors that become readable when a neighbour on this host dies."""
        return list(self._pidfds.values())

    def rescue(self, session: Session) -> int:
        """Takes back what dead neighbours held. Gives how many tasks."""
        suspects = self._watch.suspects(self._neighbours)
        released = rescue(session, suspects, grace=self.rhythm.grace, crash_limit=self._crash_limit)
        for suspect in suspects:
            if suspect.gone:
                self._unwatch(suspect.neighbour.worker_id)
        self._neighbours = ()  # the next heartbeat tells who is left
        return released

    def leave(self, session: Session) -> None:
        """Strikes the worker off the register."""
        self._next_beat = 0.0
        self.beat(session, draining=True)  # its last conflicts are counted
        session.run(lambda t: workers.unregister(t, self.worker_id))

    def close(self) -> None:
        """Ends the watch."""
        for worker_id in list(self._pidfds):
            self._unwatch(worker_id)

    def _wait_for_deaths(self) -> None:
        here = {w.worker_id: w for w in self._neighbours if w.host == self._facts["host"]}
        for worker_id in self._pidfds.keys() - here.keys():
            self._unwatch(worker_id)
        for worker_id in here.keys() - self._pidfds.keys():
            file = hosts.watch(here[worker_id].pid, here[worker_id].pid_start)
            if file is not None:
                self._pidfds[worker_id] = file

    def _unwatch(self, worker_id: int) -> None:
        file = self._pidfds.pop(worker_id, None)
        if file is not None:
            os.close(file)
