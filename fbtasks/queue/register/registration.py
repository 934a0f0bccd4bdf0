"""One process in the register of the living: it registers, beats, and takes over what dead neighbours held."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fbtasks.errors import ConflictError, StatementRefused
from fbtasks.firebird.session import Transaction
from fbtasks.queue.register import hosts, processes
from fbtasks.queue.register.neighbours import NeighbourMonitor, Rhythm, Suspect
from fbtasks.queue.register.processes import Kind, Rescued
from fbtasks.tasks.call import HeartbeatReply, Neighbour

logger = logging.getLogger(__name__)
T = TypeVar("T")
_AGAIN = {
    "worker": ("tasks runs", "tasks run"),
    "consumer": ("messages is delivered", "messages are delivered"),
}
"""What becomes of one thing that a dead process held, and of several."""


class Run(Protocol):
    """Runs work in a transaction of its own, again when another one is in its way."""

    def __call__(self, work: Callable[[Transaction], T]) -> T:
        """Returns what *work* returns."""


class Registration:
    """The entry of this process in the register."""

    def __init__(self, kind: Kind, rhythm: Rhythm, **facts: Any) -> None:
        """*facts* are those of :func:`fbtasks.queue.register.processes.register` that belong to this kind."""
        self.kind: Kind = kind
        self.rhythm = rhythm
        self.monitor = NeighbourMonitor(rhythm)
        self._facts = facts
        self.neighbours: tuple[Neighbour, ...] = ()
        """Those that the last heartbeat told of."""
        self._taken_over: set[int] = set()
        """Neighbours that were declared dead with the last heartbeat."""

    def register(self, run: Run, former: int | None = None) -> int:
        """Announces the process. Returns its number. Tasks that a worker still holds as *former* become its own."""
        self.monitor.begin()
        pid, facts = os.getpid(), {**self._facts, "former": former}
        host, begun, lease = hosts.host_name(), hosts.start_ticks(pid), self.rhythm.lease
        process_id = run(
            lambda t: processes.register(t, self.kind, host=host, pid=pid, pid_start=begun, lease=lease, **facts)
        )
        self.monitor.registered()
        return process_id

    def heartbeat(self, run: Run, process_id: int, *, draining: bool = False, conflicts: int = 0) -> HeartbeatReply:
        """Renews the lease."""
        self.monitor.begin()
        lease = self.rhythm.lease
        reply = run(
            lambda t: processes.heartbeat(t, self.kind, process_id, lease=lease, draining=draining, conflicts=conflicts)
        )
        self.monitor.heard(reply)
        self.neighbours = reply.neighbours
        return reply

    def pause(self) -> float:
        """Seconds from the last heartbeat to the next."""
        return self.monitor.pause(self.neighbours)

    def rescue(self, run: Run, find_the_dead: Callable[[], None], *, crash_limit: int = 0) -> bool:
        """Takes over what dead neighbours held. A task with *crash_limit* crashes is failed.

        *find_the_dead* is called before a neighbour is taken for alive because its connection is there. Returns whether
        the next heartbeat is to come at once: it tells who is behind those that were dead.
        """
        suspects = self.monitor.suspects(self.neighbours)
        self.neighbours = ()  # the next heartbeat tells which are left
        before, self._taken_over = self._taken_over, set()
        for suspect in suspects:
            if self._rescue(run, suspect, find_the_dead, crash_limit, before):
                self._taken_over.add(suspect.neighbour.process_id)
        return not self._taken_over <= before  # one that holds locked tasks stays registered

    def _rescue(
        self, run: Run, suspect: Suspect, find_the_dead: Callable[[], None], crash_limit: int, before: set[int]
    ) -> bool:
        neighbour, awake = suspect.neighbour, self.monitor.awake
        number = neighbour.process_id
        who = self.kind.capitalize(), number, neighbour.host.partition("/")[0]

        def rescue(transaction: Transaction) -> Rescued:
            return processes.rescue(transaction, number, gone=suspect.gone, awake=awake, crash_limit=crash_limit)

        try:
            rescued = run(rescue)
            if rescued.why is None and not suspect.gone:
                find_the_dead()
                rescued = run(rescue)
        except ConflictError:  # it writes at this moment, or it was stopped while it did
            if run(lambda t: processes.kill_connection(t, number, awake=awake)):
                logger.warning("%s %d on %s holds locks and is silent: its connection is killed.", *who)
            return False
        except StatementRefused as error:  # a row of the register that was written by hand
            logger.error("%s %d on %s cannot be looked after: %s", *who, error)
            return False
        if rescued.why is not None and (rescued.released or number not in before):  # else it was told
            what = rescued.released, _AGAIN[self.kind][rescued.released != 1]
            logger.warning("%s %d on %s is dead: %s. %d of its %s again.", *who, rescued.why, *what)
        return rescued.why is not None

    def unregister(self, run: Run, process_id: int) -> None:
        """Deletes the process from the register."""
        run(lambda t: t.call("FBTASKS_WORKER.UNREGISTER", process_id))
