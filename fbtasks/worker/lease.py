"""This worker among the others: its registration, its heartbeat, and what it takes over from dead neighbours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.errors import ConflictError
from fbtasks.firebird import connections
from fbtasks.firebird.session import INSERT, Session
from fbtasks.queue.register import hosts, processes
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.queue.register.registration import Registration
from fbtasks.queue.shares import Share, share_text
from fbtasks.tasks.call import HeartbeatReply
from fbtasks.timing import Quiet
from fbtasks.version import VERSION
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.child_status import ChildStatus

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")

SOON: Final = 0.4
"""Seconds between two attempts, at the most, while the worker may still be in time to keep what it holds."""
RESCUE_ATTEMPTS: Final = 10
"""Attempts to declare a neighbour dead, whose row another transaction may hold; the next heartbeat tries again."""


class Lease:
    """Registers the worker, renews its lease, and takes over what dead neighbours held."""

    def __init__(self, app: FBTasks, options: WorkerOptions) -> None:
        self.worker_id = 0
        self.rhythm = Rhythm(options.lease)
        self._registration = Registration(
            "worker",
            self.rhythm,
            name=options.name,
            queues=[share_text(queue, options.shares.get(queue, Share())) for queue in options.queues],
            pool=options.pool,
            concurrency=options.concurrency,
            version=app.settings.version or VERSION,
            tasks=sorted(app.tasks),
            features=processes.features_and_app(app.features.names, app.name),
        )
        self.monitor = self._registration.monitor
        self.monitor.begin()
        self._name = options.name
        self._crash_limit = app.settings.crash_limit
        self.next_beat = 0.0
        """The monotonic time of the next heartbeat."""
        self._pidfds: dict[int, int] = {}
        self.companion: ChildStatus | None = None
        """What the worker shares with another process that sends heartbeats for it as well."""
        self._quiet = Quiet()
        self._draining = False
        self._beaten_at = 0.0

    def register(self, session: Session) -> None:
        """Announces the worker under a new id, and claims as that what it still holds under the one that it had."""
        self.worker_id = self._registration.register(partial(session.run, point="register"), former=self.worker_id)
        if self.companion is not None:
            self.companion.shared.worker_id = self.worker_id

    def look_for_namesakes(self, session: Session) -> None:
        """Warns of other workers that live and have the same name."""
        here = hosts.host_name()
        for host, pid, start in processes.namesakes(session, self._name, self.worker_id):
            if host != here or not hosts.is_gone(pid, start):
                logger.warning(
                    "Another worker is named %s: its pid is %d, and this one's %d. Both work; lists of tasks "
                    "name them alike. Give each a name of its own: -n NAME.",
                    self._name,
                    pid,
                    os.getpid(),
                )

    def drain(self) -> None:
        """The worker is to end, as the next heartbeat says, which comes at once; from any thread."""
        self._draining = True
        self.beat_soon()

    def beat(self, session: Session) -> HeartbeatReply | None:
        """Renews the lease when it is time. None when it is not."""
        now = clock.monotonic()
        if now < self.next_beat:
            return None
        run, conflicts = partial(session.run, point="heartbeat"), session.take_conflicts()
        reply = self._registration.heartbeat(run, self.worker_id, draining=self._draining, conflicts=conflicts)
        if self.companion is not None:  # what it was held up, the worker was held up as well
            self.monitor.stalled_until = max(self.monitor.stalled_until, self.companion.shared.stalled_until)
        pause = self._registration.pause()
        if reply.alive and not reply.renewed:
            pause = min(pause, SOON)
            if self.companion is None and self._quiet.over():  # else it may have been the companion's own renewal
                logger.warning(
                    "Another transaction holds this worker's row, %d, in QUEUE_PROCESS: its lease is not renewed until "
                    "that one ends. After %g s other workers may take it for dead.",
                    self.worker_id,
                    self.rhythm.lease,
                )
        self.next_beat = now + pause
        self._wait_for_deaths()
        return reply

    def beat_meanwhile(self, session: Session) -> None:
        """Renews the lease when it is time, in the middle of another transaction, which takes long.

        The next heartbeat comes at once all the same, when that one has ended: it is told what this one leaves aside.
        """
        now = clock.monotonic()
        if now < max(self.next_beat, self._beaten_at) + self.rhythm.heartbeat / 2:
            return
        self._beaten_at = now
        # INSERT is of use for being another kind than that of the transaction around it: a heartbeat waits for no row.
        run = partial(session.run, kind=INSERT, point="heartbeat")
        with suppress(ConflictError):
            self._registration.heartbeat(run, self.worker_id, draining=self._draining)

    def lost(self) -> None:
        """The connection is lost; the next heartbeat comes as soon as there is another one."""
        self.monitor.connection_lost()
        self.beat_soon()

    def beat_soon(self) -> None:
        """Sends the next heartbeat at once."""
        self.next_beat = 0.0

    def filenos(self) -> list[int]:
        """Descriptors that become readable when a neighbour on this host dies."""
        return list(self._pidfds.values())

    def see(self, ready: Iterable[int]) -> None:
        """Takes the descriptors that are readable: the next heartbeat looks for the workers that have died."""
        died = set(ready)
        for worker_id in [worker_id for worker_id, file in self._pidfds.items() if file in died]:
            self._unwatch(worker_id)
            self.beat_soon()

    def rescue(self, session: Session) -> None:
        """Takes over what dead neighbours held."""
        run = partial(session.run, point="rescue", attempts=RESCUE_ATTEMPTS)
        find_the_dead = partial(connections.find_the_dead, session.url)
        if self._registration.rescue(run, find_the_dead, crash_limit=self._crash_limit):
            self.beat_soon()

    def leave(self, session: Session) -> None:
        """Deletes the worker from the register."""
        self.drain()
        self.beat(session)  # its last conflicts are counted
        try:
            self._registration.unregister(session.run, self.worker_id)
        except ConflictError as error:
            logger.warning("Worker %d stays registered until its lease ends: %s", self.worker_id, error)

    def close(self) -> None:
        """Ends the watch."""
        for worker_id in list(self._pidfds):
            self._unwatch(worker_id)

    def _wait_for_deaths(self) -> None:
        name = hosts.host_name()
        here = {n.process_id: n for n in self._registration.neighbours if n.host == name}
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
