"""This worker among the others: its registration, its heartbeat, and the watch over its neighbours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from fbtasks import clock
from fbtasks.call import HeartbeatReply, Neighbour
from fbtasks.errors import ConflictError
from fbtasks.firebird.session import INSERT, UPDATE, Session, Transaction
from fbtasks.maintenance import hosts
from fbtasks.maintenance.rescue import rescue
from fbtasks.maintenance.watch import SHARE, Rhythm, Suspect, Watch
from fbtasks.store import workers
from fbtasks.version import VERSION
from fbtasks.worker.backoff import SOON

logger = logging.getLogger("fbtasks.worker")

_HELD_UP: Final = 2
"""Heartbeats in a row that do not renew the lease, until that is said."""
RESCUE_ATTEMPTS: Final = 10
"""Attempts to bury a neighbour, whose row another transaction may hold; the next heartbeat tries again."""


def heartbeat(
    session: Session,
    worker_id: int,
    rhythm: Rhythm,
    *,
    draining: bool = False,
    conflicts: int = 0,
    kind: bytes = UPDATE,
) -> HeartbeatReply:
    """Sends one heartbeat, in a transaction of *kind*."""
    return session.run(
        lambda t: workers.heartbeat(
            t,
            worker_id,
            lease=rhythm.lease,
            draining=draining,
            conflicts=conflicts,
            share=SHARE,
            beat=rhythm.heartbeat,
        ),
        kind,
        point="heartbeat",
    )


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
        self._failed: list[int] = []
        self._held_up = 0
        """Heartbeats in a row that did not renew the lease."""
        self._draining = False
        self._beaten_at = 0.0
        self._watch = Watch(self.rhythm)
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

    def beat(self, session: Session, *, draining: bool) -> HeartbeatReply | None:
        """Renews the lease when it is time. None when it is not."""
        now = clock.monotonic()
        if now < self._next_beat:
            return None
        conflicts = session.take_conflicts()
        self._draining = draining
        self._watch.begin()
        reply = heartbeat(session, self.worker_id, self.rhythm, draining=draining, conflicts=conflicts)
        self._neighbours = reply.neighbours
        self._note(reply)
        pause = self._watch.pause(self._neighbours)
        if reply.alive and not reply.renewed:
            self._watch.held_up()
            pause = min(pause, SOON)
        self._say_held_up(reply)
        self._next_beat = now + pause
        self._wait_for_deaths()
        return reply

    def beat_meanwhile(self, session: Session) -> None:
        """Renews the lease when it is time, in the middle of another transaction, which takes long.

        The next heartbeat comes at once all the same, when that one has ended: it is told what this one leaves aside.
        """
        now = clock.monotonic()
        if now < max(self._next_beat, self._beaten_at) + self.rhythm.heartbeat / 2:
            return
        self._beaten_at = now
        self._watch.begin()
        # INSERT is of use for being another kind than that of the transaction around it: a heartbeat waits for no row.
        with suppress(ConflictError):
            self._note(heartbeat(session, self.worker_id, self.rhythm, draining=self._draining, kind=INSERT))

    def _note(self, reply: HeartbeatReply) -> None:
        if reply.renewed:
            self._watch.beaten(reply.silence, self.companion.silence() if self.companion is not None else (0.0, 0.0))

    def _say_held_up(self, reply: HeartbeatReply) -> None:
        """Says, once, that the lease is not renewed. A first time may be the companion's own renewal."""
        held_up = reply.alive and not reply.renewed
        self._held_up = self._held_up + 1 if held_up else 0
        if self._held_up == _HELD_UP:
            logger.warning(
                "Another transaction holds the row of this worker, %d, in QUEUE_WORKER: its lease is not renewed until "
                "that one ends. After %g s other workers may take it for dead.",
                self.worker_id,
                self.rhythm.lease,
            )

    def lost(self) -> None:
        """The connection is lost; the next heartbeat comes as soon as there is another one."""
        self._watch.lost()
        self.beat_soon()

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

    @property
    def leisure(self) -> float:
        """Seconds for which the worker need not be heard of."""
        return self._watch.leisure

    def filenos(self) -> list[int]:
        """Descriptors that become readable when a neighbour on this host dies."""
        return list(self._pidfds.values())

    def see(self, ready: Iterable[int]) -> None:
        """To be told which descriptors are readable: the next heartbeat looks after those that have died."""
        died = set(ready)
        for worker_id in [worker_id for worker_id, file in self._pidfds.items() if file in died]:
            self._unwatch(worker_id)
            self.beat_soon()

    def rescue(self, session: Session) -> int:
        """Takes back what dead neighbours held. Gives how many tasks."""

        def take_back(suspect: Suspect) -> tuple[int, str | None]:
            released, why, failed = session.run(
                lambda t: workers.rescue(
                    t,
                    suspect.neighbour.worker_id,
                    gone=suspect.gone,
                    share=SHARE,
                    credit=suspect.credit,
                    crash_limit=self._crash_limit,
                ),
                point="rescue",
                attempts=RESCUE_ATTEMPTS,
            )
            if failed is not None:
                self._failed.append(failed)
            return released, why

        def cut(suspect: Suspect) -> bool:
            worker_id, credit = suspect.neighbour.worker_id, suspect.credit
            return session.run(lambda t: workers.cut(t, worker_id, share=SHARE, credit=credit))

        suspects = self._watch.suspects(self._neighbours)
        self._neighbours = ()  # the next heartbeat tells who is left
        return rescue(suspects, take_back, cut, kind="Worker", again="tasks run")

    def take_failed(self) -> list[int]:
        """The tasks that a rescue has failed since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def leave(self, session: Session) -> None:
        """Strikes the worker off the register."""
        self._next_beat = 0.0
        self.beat(session, draining=True)  # its last conflicts are counted
        try:
            session.run(lambda t: workers.unregister(t, self.worker_id))
        except ConflictError as error:
            logger.warning("Worker %d stays registered until its lease ends: %s", self.worker_id, error)

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
