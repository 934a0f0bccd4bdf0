"""The consumer: the one loop of a worker that speaks to the database.

Each turn it records what has ended, renews the lease when it is time, claims as much as the executor can use soon,
and then waits for whichever comes first: an outcome, an event, a signal, the next scheduled task, a poll.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fbtasks import clock
from fbtasks.app import FBTasks
from fbtasks.call import Cancelled, Claim, Failed, Finished, Parked, Released, Retry, Succeeded
from fbtasks.errors import DatabaseUnavailable
from fbtasks.maintenance.prune import give_up_parked, prune
from fbtasks.maintenance.rescue import rescue
from fbtasks.notify.listener import Listener
from fbtasks.store import tasks, workers
from fbtasks.store.hostlock import HostLock
from fbtasks.store.session import Session, Transaction
from fbtasks.version import VERSION
from fbtasks.worker import hosts
from fbtasks.worker.executors.base import Executor

logger = logging.getLogger("fbtasks.worker")

LEASE: Final = 30.0
HEARTBEAT: Final = 5.0
MAINTENANCE: Final = 60.0
POLL_FIRST: Final = 0.05
POLL_LAST: Final = 1.0
AHEAD: Final = 0.05
"""Seconds of work to hold beyond what runs: enough to keep executors busy, little enough to hide nothing."""
MOST_AHEAD: Final = 200
HELD_TOO_LONG: Final = 1.0
"""Seconds after which a claim that has not begun is given back for others to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    name: str
    queues: tuple[str, ...]
    pool: str
    concurrency: int
    burst: bool = False
    grace: float = 30.0
    """Seconds that running tasks have to end in when the worker is asked to stop."""


class Consumer:
    """Claims, has the executor run, and records, until it is told to stop."""

    def __init__(self, app: FBTasks, executor: Executor, options: WorkerOptions) -> None:
        self._app = app
        self._executor = executor
        self._options = options
        self._known = frozenset(app.tasks)
        self._session: Session | None = None
        self._turn = HostLock(app.settings.url)
        self._buffer: deque[Claim] = deque()
        self._buffered_at = 0.0
        self._ended: list[Finished] = []
        self._average = 1.0
        self._hungry = True
        self._poll = POLL_FIRST
        self._next_poll = self._next_due = self._next_heartbeat = self._next_maintenance = 0.0
        self._first_queue = 0
        self._draining_since: float | None = None
        self._killed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.worker_id = 0

    @property
    def wake_fd(self) -> int:
        """A descriptor to write a byte to in order to wake the loop, also from a signal handler."""
        return self._wake_write

    def wake(self) -> None:
        """Wakes the loop because there may be something to claim; from any thread."""
        self._hungry = True
        self._next_due = 0.0
        with suppress(BlockingIOError):  # the pipe is full of wakes already
            os.write(self._wake_write, b"!")

    def drain(self) -> None:
        """Asks the loop to stop claiming and to end; the second time, at once. For signal handlers."""
        if self._draining_since is None:
            self._draining_since = clock.monotonic()
        else:
            self._killed = True

    def open(self) -> None:
        """Connects and registers the worker."""
        self._session = self._app.database.open()
        self._register()

    def start(self) -> None:
        """Starts the executor."""
        self._executor.start(self.worker_id)

    def run(self, *, listen: bool = True) -> None:
        """Works until told to stop (or, in a burst, until nothing is due); with events unless *listen* is false."""
        listener = self._listen() if listen else None
        try:
            while not self._finished():
                try:
                    self._step()
                except DatabaseUnavailable as error:
                    self._reconnect(error)
                    continue
                self._wait()
        finally:
            if listener is not None:
                listener.stop()

    def _listen(self) -> Listener | None:
        events = [f"fbtasks:queue:{queue}" for queue in self._options.queues]
        listener = Listener(self._app.database, [*events, "fbtasks:parked"], self.wake)
        return listener if listener.start() else None

    def _step(self) -> None:
        self._collect()
        self._record()
        self._beat()
        if self._draining_since is None:
            self._give_back_stale()
            self._promote()
            self._claim()
            self._maintain()
        else:
            self._give_back(self._buffer)
            self._buffer.clear()
        self._submit()
        if not self._executor.filenos():  # the solo pool has run it already
            self._collect()
        self._record()

    def _finished(self) -> bool:
        if self._draining_since is not None:
            idle = not self._executor.busy() and not self._ended and not self._buffer
            waited = clock.monotonic() - self._draining_since
            return self._killed or idle or waited > self._options.grace
        if not self._options.burst or self._hungry or self._buffer or self._ended or self._executor.busy():
            return False
        return not self._anything_due()

    def _anything_due(self) -> bool:
        try:
            if (due := self._db.read("next_due")) and due[0][0] <= 0:
                self._hungry, self._next_due = True, 0.0
            elif any(self._db.read("any_ready", queue) for queue in self._options.queues):
                self._hungry = True
        except DatabaseUnavailable as error:
            self._reconnect(error)
            return True
        return self._hungry

    # What has ended

    def _collect(self) -> None:
        for finished, recorded in self._executor.collect():
            self._average += 0.2 * (finished.elapsed - self._average)
            if recorded:
                _log(finished)
            else:
                self._ended.append(finished)

    def _record(self) -> None:
        if not self._ended:
            return
        batch = sorted(self._ended, key=lambda item: (item.claim.queue, item.claim.id))
        with self._turn.held():
            stale = set(self._db.run(lambda t: tasks.finish(t, self.worker_id, 0, batch)))
        self._ended.clear()
        for finished in batch:
            if finished.claim.id in stale:
                logger.warning(
                    "The outcome of task %d came too late and was dropped: claim %d is no longer its claim.",
                    finished.claim.id,
                    finished.claim.claim_id,
                )
            else:
                _log(finished)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        self._ended.extend(Finished(claim, Released()) for claim in claims)

    def _give_back_stale(self) -> None:
        if self._buffer and clock.monotonic() - self._buffered_at > HELD_TOO_LONG:
            self._give_back(self._buffer)
            self._buffer.clear()
            self._average = max(self._average, 1.0)
            self._record()

    # What is to be done

    def _promote(self) -> None:
        now = clock.monotonic()
        if now < self._next_due:
            return
        promoted, next_due = self._db.run(tasks.promote)
        self._next_due = now + (POLL_LAST * 30 if next_due is None else next_due)
        self._hungry = self._hungry or promoted > 0

    def _claim(self) -> None:
        now = clock.monotonic()
        if not self._hungry and now < self._next_poll:
            return
        room = self._room()
        if room <= 0:
            return
        if not self._hungry and not any(self._db.read("any_ready", queue) for queue in self._options.queues):
            self._poll = min(self._poll * 2, POLL_LAST)
            self._next_poll = now + self._poll
            return
        claims = self._claim_from_queues(room)
        self._hungry = len(claims) >= room
        self._poll = POLL_FIRST if claims else min(self._poll * 2, POLL_LAST)
        self._next_poll = clock.monotonic() + self._poll
        self._take(claims)

    def _room(self) -> int:
        ahead = min(MOST_AHEAD, int(self._options.concurrency * AHEAD / max(self._average, 1e-4)))
        if self._options.pool == "solo":
            ahead = 0
        held = len(self._buffer)
        room = self._executor.free() + ahead - held
        return 0 if held and room < ahead // 2 else room

    def _claim_from_queues(self, room: int) -> list[Claim]:
        """Claims from all queues in turn, each an equal share of what room is left."""
        queues = self._options.queues
        order = [queues[(self._first_queue + i) % len(queues)] for i in range(len(queues))]
        self._first_queue = (self._first_queue + 1) % len(queues)
        claims: list[Claim] = []
        with self._turn.held():
            for place, queue in enumerate(order):
                share = -(-(room - len(claims)) // (len(order) - place))
                if share > 0:
                    claims += self._claim_from(queue, share)
        return claims

    def _claim_from(self, queue: str, most: int, parked_name: str | None = None) -> list[Claim]:
        return self._db.run(lambda t: tasks.claim(t, self.worker_id, queue, most, parked_name))

    def _take(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.name in self._known:
                self._buffer.append(claim)
            else:
                logger.error(
                    "Task %d is parked: this worker knows no task named %r. Start a worker that imports it.",
                    claim.id,
                    claim.name,
                )
                self._ended.append(Finished(claim, Parked()))
        if claims:
            self._buffered_at = clock.monotonic()

    def _submit(self) -> None:
        while self._buffer and self._executor.free() > 0:
            claim = self._buffer.popleft()
            self._buffered_at = clock.monotonic()
            if claim.payload is None:
                claim = self._with_payload(claim)
            logger.debug("Task %d (%s) begins.", claim.id, claim.name)
            self._executor.submit(claim)

    def _with_payload(self, claim: Claim) -> Claim:
        with self._db.transaction() as transaction:
            return replace(claim, payload=tasks.payload(transaction, claim.id) or b"")

    # The worker itself

    @property
    def _db(self) -> Session:
        if self._session is None:
            raise DatabaseUnavailable("the worker has no connection.")
        return self._session

    def _register(self) -> None:
        options = self._options
        pid = os.getpid()

        def announce(transaction: Transaction) -> int:
            return workers.register(
                transaction,
                name=options.name,
                host=hosts.host_name(),
                pid=pid,
                pid_start=hosts.start_ticks(pid),
                lease=LEASE,
                queues=options.queues,
                pool=options.pool,
                concurrency=options.concurrency,
                version=VERSION,
                tasks=sorted(self._known),
            )

        self.worker_id = self._db.run(announce)

    def _beat(self) -> None:
        now = clock.monotonic()
        if now < self._next_heartbeat:
            return
        conflicts = self._db.take_conflicts()
        draining = self._draining_since is not None
        alive = self._db.run(
            lambda t: workers.heartbeat(t, self.worker_id, lease=LEASE, draining=draining, conflicts=conflicts)
        )
        self._next_heartbeat = now + HEARTBEAT
        if not alive:
            logger.warning("This worker was taken for dead and its tasks given to others; it registers again.")
            self._buffer.clear()
            self._register()
        if not draining:
            rescue(self._db, lambda w: w.id != self.worker_id and hosts.is_gone(w.host, w.pid, w.pid_start))
            self._take_parked()

    def _take_parked(self) -> None:
        for queue, name in self._db.read("parked_names"):
            room = self._room()
            if room > 0 and name in self._known and queue in self._options.queues:
                with self._turn.held():
                    claims = self._claim_from(queue, room, name)
                self._take(claims)

    def _maintain(self) -> None:
        now = clock.monotonic()
        if now >= self._next_maintenance:
            self._next_maintenance = now + MAINTENANCE
            prune(self._db, self._app.settings)
            give_up_parked(self._db, self._app.settings)

    def _reconnect(self, error: Exception) -> None:
        """Waits for the database with a growing pause, then settles what the cut left uncertain."""
        logger.error("The database is away: %s Trying again.", error)
        pause = 0.1
        while not self._killed and (self._draining_since is None or not self._grace_over()):
            try:
                if self._session is not None:
                    self._session.close()
                self._session = self._app.database.open()
                self._settle()
            except DatabaseUnavailable:
                self._collect()  # what ends meanwhile is kept until it can be recorded
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                logger.info("The database is back.")
                self._hungry, self._next_heartbeat = True, 0.0
                return

    def _grace_over(self) -> bool:
        since = self._draining_since
        return since is not None and clock.monotonic() - since > self._options.grace

    def _settle(self) -> None:
        """Gives back what the database says this worker holds and it does not: the answer to a claim was lost."""
        ours = {(claim.id, claim.claim_id) for claim in self._held()}
        for task, claim_id in self._db.read("held_by", self.worker_id):
            if (task, claim_id) not in ours:
                self._ended.append(Finished(_bare_claim(task, claim_id), Released()))

    def _held(self) -> list[Claim]:
        return [*self._buffer, *self._executor.busy(), *(item.claim for item in self._ended)]

    def _wait(self) -> None:
        now = clock.monotonic()
        until = [self._next_heartbeat]
        if self._draining_since is None:
            if self._hungry and self._room() > 0:
                return
            until += [self._next_due, self._next_poll if self._room() > 0 else self._next_due]
            if self._buffer:
                until.append(self._buffered_at + HELD_TOO_LONG)
        else:
            until.append(self._draining_since + self._options.grace)
        timeout = max(0.0, min(until) - now)
        if self._options.burst and not self._executor.busy():
            timeout = min(timeout, POLL_FIRST)
        if self._ended:
            timeout = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for fileno in self._executor.filenos():
                selector.register(fileno, selectors.EVENT_READ)
            selector.select(timeout)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 65536)

    def close(self) -> None:
        """Stops the executor, gives back whatever has not ended, and leaves the register."""
        try:
            busy = self._executor.busy()
            self._executor.stop(kill=bool(busy))
            self._give_back([*self._buffer, *busy])
            if busy:
                logger.warning("%d running tasks were stopped and go back to their queues.", len(busy))
            if self._session is not None:
                self._record()
                self._db.run(
                    lambda t: workers.heartbeat(
                        t, self.worker_id, lease=LEASE, draining=True, conflicts=self._db.take_conflicts()
                    )
                )
                self._db.run(lambda t: workers.unregister(t, self.worker_id))
        except DatabaseUnavailable as error:
            logger.error("The database is away; what this worker held runs again when its lease ends: %s", error)
        finally:
            if self._session is not None:
                self._session.close()
                self._session = None
            self._turn.close()
            os.close(self._wake_read)
            os.close(self._wake_write)


def _bare_claim(task: int, claim_id: int) -> Claim:
    epoch = clock.utcnow()
    return Claim(
        id=task, claim_id=claim_id, name="", queue="", priority=0, try_count=0, crash_count=0, max_tries=None,
        raised_at=epoch, start_at=epoch, expires_at=None, content_type="", payload=b"", task_id=None,
    )  # fmt: skip


def _log(finished: Finished) -> None:
    claim, elapsed = finished.claim, finished.elapsed
    match finished.outcome:
        case Succeeded():
            logger.info("Task %d (%s) succeeded in %.3f s.", claim.id, claim.name, elapsed)
        case Failed(error_type, message):
            logger.error("Task %d (%s) failed in %.3f s: %s: %s", claim.id, claim.name, elapsed, error_type, message)
        case Retry(delay, message):
            logger.warning("Task %d (%s) is tried again in %.1f s after: %s", claim.id, claim.name, delay, message)
        case Cancelled(message):
            logger.info("Task %d (%s) was cancelled: %s", claim.id, claim.name, message)
        case Released():
            logger.info("Task %d (%s) was given back.", claim.id, claim.name)
        case Parked():
            pass
