"""The consumer: the one loop of a worker that speaks to the database.

Each turn it records what has ended, renews the lease when it is time, claims as much as the executor can use soon,
and then waits for whichever comes first: an outcome, an event, a signal, the next scheduled task, a poll. While the
database is away the loop goes on: what runs is held to its limits, and its outcomes are kept.
"""

from __future__ import annotations

import logging
import os
import selectors
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fbtasks import clock
from fbtasks.app import FBTasks
from fbtasks.call import Cancelled, Claim, Claims, Finished, HeartbeatReply, Parked, Released, Stale
from fbtasks.errors import (
    ConflictError,
    DatabaseError,
    DatabaseReplaced,
    DatabaseUnavailable,
    SchemaError,
    StatementRefused,
)
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.maintenance.housekeeping import Housekeeping
from fbtasks.maintenance.rescue import release_orphans
from fbtasks.notify.listener import WatchedListener
from fbtasks.store import tasks
from fbtasks.store.migrate import latest_version
from fbtasks.worker.backoff import Backoff
from fbtasks.worker.claiming import Claiming, Taken
from fbtasks.worker.executors.base import Executor
from fbtasks.worker.hindrances import Hindrances
from fbtasks.worker.hooks import FailureHooks
from fbtasks.worker.membership import Membership
from fbtasks.worker.outcomes import ATTEMPTS, GATHER, MOST_BLOCKED, Outcomes, Tally
from fbtasks.worker.parked import ParkedNames, UnknownNames

logger = logging.getLogger("fbtasks.worker")

LEASE: Final = 30.0
POLL_FIRST: Final = 0.05
POLL_LAST: Final = 1.0
POLL_WITH_EVENTS: Final = 15.0
"""Seconds between polls while events are known to arrive."""
DUE_LAST: Final = 30.0
"""Seconds after which scheduled tasks are looked at anew, whatever was said about the next."""
HELD_TOO_LONG: Final = 0.1
"""Seconds after which claims that no executor takes are given back for other workers."""

CLAIM: Final = "claiming tasks"
PROMOTE: Final = "looking for scheduled tasks that are due"
CLAIM_PARKED: Final = "claiming parked tasks"

Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""One that needs no descriptor of its own, so that a worker that has used up its descriptors still waits."""


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
    lease: float = LEASE
    """Seconds of silence after which other workers may take over what this one holds."""


class Consumer:
    """Claims, has the executor run, and records, until it is told to stop."""

    def __init__(self, app: FBTasks, executor: Executor, options: WorkerOptions) -> None:
        self._app = app
        self._executor = executor
        self._options = options
        self._known = frozenset(app.tasks)
        self._session: Session | None = None
        self._turn = HostLock(app.settings.url)
        self.membership = Membership(
            name=options.name,
            queues=options.queues,
            pool=options.pool,
            concurrency=options.concurrency,
            tasks=self._known,
            lease=options.lease,
            crash_limit=app.settings.crash_limit,
        )
        self._listener: WatchedListener | None = None
        self._buffer: deque[Claim] = deque()
        self._buffered_at = 0.0
        self._outcomes = Outcomes(self._turn)
        self._hooks = FailureHooks(app, executor)
        self._hindrances = Hindrances()
        self._claiming = Claiming(options.queues)
        self._housekeeping = Housekeeping(app.settings)
        self._hungry = True
        self._parked = ParkedNames()
        self._unknown = UnknownNames()
        self._stops = False
        self._poll = POLL_FIRST
        self._next_poll = self._next_due = self._next_maintenance = 0.0
        self._away_since: float | None = None
        self._next_attempt = 0.0
        self._backoff = Backoff()
        self._announced = False
        self._draining_since: float | None = None
        self._said_waiting = self._killed = False
        self.outdated = False
        """Whether the schema was migrated beneath this worker, so that it drains and is to start afresh."""
        self.replaced: DatabaseReplaced | None = None
        """Why this worker drains and is to leave, when the database was replaced or restored, or its file deleted."""
        self._stopped: list[tuple[Finished, bool]] | None = None
        """What the executor had when it was stopped."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    @property
    def tally(self) -> Tally:
        """How many tasks ended in which way."""
        return self._outcomes.tally

    def wake(self, events: Iterable[str]) -> None:
        """Wakes the loop for *events* of the database; from any thread."""
        for event in events:
            match event.split(":")[1]:
                case "queue":
                    self._hungry = True
                    self._next_due = 0.0
                case "parked":
                    self._parked.hint()
                case "cancel":
                    self._stops = True
        with suppress(BlockingIOError):  # the pipe is full of wakes already
            os.write(self._wake_write, b"!")

    def stop(self) -> None:
        """Asks the loop to stop claiming, and to end when what runs has ended or the grace is over; from any thread."""
        self.outdated = False
        self._drain()

    def stop_at_once(self) -> None:
        """Asks the loop to end now, whatever runs; from any thread."""
        self._killed = True

    def _drain(self) -> None:
        self._said_waiting = False
        self._draining_since = clock.monotonic()
        self.membership.beat_soon()

    def say_waiting(self, running: Collection[Claim]) -> None:
        """Says, once, that the worker ends when *running* have ended, and how long it waits for that."""
        if self._said_waiting or not running:
            return
        self._said_waiting = True
        what = "1 running task" if len(running) == 1 else f"{len(running)} running tasks"
        them = "it" if len(running) == 1 else "them"
        logger.info("Waiting up to %g s for %s; a second signal stops %s.", self._options.grace, what, them)

    def open(self) -> None:
        """Connects and registers the worker."""
        self._connect()
        self._register()

    def _connect(self) -> None:
        session = self._session = self._app.database.open()
        session.meanwhile = lambda: self.membership.beat_meanwhile(session)

    def start(self) -> None:
        """Starts the executor, which becomes ready while this process connects, and creates a queue that is missing."""
        self._executor.start()
        self._app.database.make_ready()

    def _register(self) -> None:
        self.membership.register(self._db)
        self._executor.serve(self.membership.worker_id, self._app.database.mark)

    def run(self, *, listen: bool = True) -> None:
        """Works until told to stop, with events unless *listen* is false; or, in a burst, until nothing is due."""
        if listen and not self._options.burst:
            self._listener = WatchedListener(self._app.database, self._events, self.wake)
            self._listener.start()
        try:
            while not self._finished():
                self._collect()
                if self._session is not None or self._reconnected():
                    try:
                        self._step()
                        if self._away_since is not None:
                            self._come_back(self._away_since)
                    except SchemaError:
                        raise
                    except DatabaseError as error:
                        self._lose(error)
                elif self._draining_since is not None:
                    self.say_waiting(self._executor.busy())
                self._wait()
        finally:
            if self._listener is not None:
                self._listener.stop()

    def _events(self) -> list[str]:
        own = f"fbtasks:worker:{self.membership.worker_id}"
        return [own, "fbtasks:parked", "fbtasks:cancel", *(f"fbtasks:queue:{queue}" for queue in self._options.queues)]

    def _step(self) -> None:
        if not self._announced and self._executor.free() > 0:
            self._announced = True
            logger.info("Worker %s is ready.", self._options.name)
        self._beat()
        if self._stops:
            self._stop_cancelled()
        draining = self._draining_since is not None
        if not draining:
            self._give_back_stale()
            self._retry_blocked()
            self._exchange()
            self._submit()
            self._begin_suspects()
            self._hindrances.attempt(PROMOTE, self._promote)
            self._hindrances.attempt(CLAIM_PARKED, self._take_parked)
            self._maintain()
        else:
            self._give_back([*self._buffer, *self._executor.take_all_back()])
            self._buffer.clear()
            self._record()
            self._retry_blocked()
        self._call_hooks()
        self._unknown.say()
        self._collect()
        if draining:
            self.say_waiting(self._executor.busy())

    def _call_hooks(self) -> None:
        self._hooks.settle(self._outcomes.take_settled())
        self._hooks.look_up(self.membership.take_failed())
        self._hooks.call(self._db)

    def _finished(self) -> bool:
        if self._draining_since is not None:
            lost = self.replaced is not None and self._session is None  # there is no way to record anything
            idle = not self._executor.busy() and (lost or not self._holds_some()) and not self._executor.hooks()
            return self._killed or idle or self._grace_over()
        if not self._options.burst or self._hungry or self._parked.found or self._holds_some():
            return False
        return not self._executor.busy() and not self._executor.hooks() and not self._anything_due()

    def _holds_some(self) -> bool:
        return bool(self._buffer or self._outcomes or self._outcomes.blocked or self._hooks)

    def _grace_over(self) -> bool:
        since = self._draining_since
        return since is not None and clock.monotonic() - since > self._options.grace

    def _anything_due(self) -> bool:
        if self._session is None:
            return True
        try:
            self._hungry = self._any_ready() or self._next_due <= clock.monotonic()
        except DatabaseError as error:
            self._lose(error)
            return True
        return self._hungry

    # What has ended

    def _collect(self) -> None:
        self._keep(self._executor.collect())
        returned = self._executor.take_back()
        if returned:
            self._buffer.extendleft(reversed(returned))
            self._buffered_at = clock.monotonic()

    def _keep(self, ended: Iterable[tuple[Finished, bool]]) -> None:
        for finished, recorded in ended:
            if isinstance(finished.outcome, Parked):  # by a child that was started after the task had been removed
                self._known -= {finished.claim.name}
                self._unknown.meet(finished.claim.name)
            if not recorded:
                self._outcomes.add(finished)
            elif not isinstance(finished.outcome, Released):  # its claim was stale, which was said where it ran
                self._outcomes.recorded(finished)

    def _gathering(self) -> bool:
        """Whether it is better to wait for more outcomes before they are recorded: executors have enough to do."""
        return not self._outcomes.gathered and self._executor.idle() == 0 and self._draining_since is None

    def _record(self) -> None:
        """Records what has ended."""
        self._outcomes.record(self._db, self.membership.worker_id)

    def _retry_blocked(self) -> None:
        """Records what another transaction was in the way of, when its time has come."""
        self._outcomes.retry(self._db, self.membership.worker_id)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._outcomes.end(claim, Released())

    def _give_back_stale(self) -> None:
        if self._buffer and clock.monotonic() - self._buffered_at > HELD_TOO_LONG:
            self._give_back(self._buffer)
            self._buffer.clear()
            self._record()

    # What is to be done

    def _promote(self) -> None:
        now = clock.monotonic()
        if now < self._next_due:
            return
        self._next_due = now + DUE_LAST  # an event that comes while this looks has it look again
        try:
            promoted, due = self._db.run(tasks.promote, point="promote")
        except ConflictError:
            self._next_due = 0.0
            raise
        self._due_in(due if due is None or promoted else max(due, POLL_FIRST))  # somebody else may hold what is due
        self._hungry = self._hungry or promoted > 0

    def _due_in(self, seconds: float | None) -> None:
        if seconds is not None:
            self._next_due = min(self._next_due, clock.monotonic() + seconds)

    def _exchange(self) -> None:
        """Records what has ended and claims what there is room for, in one transaction where both are to be done."""
        room = self._room_to_claim()
        if self._outcomes and not room and not self._gathering():
            self._record()
            room = self._room_to_claim()
        if room:
            self._hindrances.attempt(CLAIM, lambda: self._claim(room))

    def _claim(self, room: int) -> None:
        db, worker_id, accused = self._db, self.membership.worker_id, self._takes_accused()
        batch = self._outcomes.begin()
        self._hungry = False  # an event that comes while this claim looks has it look again

        def work(transaction: Transaction) -> tuple[list[Stale], Taken]:
            stale = tasks.finish(transaction, worker_id, 0, batch) if batch else []
            return stale, self._claiming.claim(transaction, worker_id, room, accused=accused)

        try:
            with self._turn.held():
                if batch:
                    stale, taken = db.run(work, point="exchange finish", attempts=ATTEMPTS)
                else:
                    stale, taken = db.run(work, point="claim")
        except BaseException as error:
            self._outcomes.failed(error)
            self._hungry = True
            if not batch or not isinstance(error, ConflictError | StatementRefused):
                raise
            self._record()  # one of them cannot be written
            return
        self._claiming.committed(taken)
        self._outcomes.written(stale)
        self._claimed(taken, room)

    def _claimed(self, taken: Taken, room: int) -> None:
        claims = taken.claims
        more = taken.unseen or len(claims) >= room or any(claim.suspect for claim in claims)
        self._hungry = self._hungry or more
        if claims:
            self._poll = POLL_FIRST
            self._next_poll = clock.monotonic() + self._poll
        else:
            self._poll_later(clock.monotonic())
        self._take(claims)

    def _poll_later(self, now: float) -> None:
        self._poll = min(self._poll * 2, POLL_WITH_EVENTS if self._events_arrive() else POLL_LAST)
        self._next_poll = now + self._poll

    def _events_arrive(self) -> bool:
        return self._listener is not None and self._listener.heard_within(2.5 * self.membership.rhythm.heartbeat)

    def _room_to_claim(self) -> int:
        """How many tasks to claim now: 0 while there is no reason to look, or enough to do."""
        now = clock.monotonic()
        if (not self._hungry and now < self._next_poll) or self._hindrances.hinder(CLAIM):
            return 0
        room = self._room()
        if room <= 0 or (self._executor.idle() == 0 and room < self._executor.capacity() // 2):
            return 0
        if not self._hungry and not self._any_ready():
            self._poll_later(now)
            return 0
        return room

    def _any_ready(self) -> bool:
        """Whether there is something to claim; looks as well when the next scheduled task is due."""
        ready, due = tasks.any_ready(self._db, self._options.queues)
        self._due_in(due)
        return ready

    def _room(self) -> int:
        if self._outcomes.blocked >= MOST_BLOCKED:
            return 0
        return self._executor.free() - len(self._buffer) - len(self._hooks)

    def _take(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.name in self._known:
                self._buffer.append(claim)
            else:
                self._unknown.meet(claim.name)
                self._outcomes.end(claim, Parked())
        if claims:
            self._buffered_at = clock.monotonic()

    def _submit(self) -> None:
        """Hands out what was claimed, as far as the executor takes it."""
        executor, debug = self._executor, logger.isEnabledFor(logging.DEBUG)
        while self._buffer and (room := executor.free()) > 0:
            if self.membership.overdue:  # stopped for a while: what is held may be another worker's by now
                self.membership.beat_soon()
                return
            for _ in range(min(room, len(self._buffer))):
                claim = self._buffer[0]
                if claim.payload is None:
                    claim = self._buffer[0] = self._with_payload(claim)
                if claim.suspect and executor.idle() == 0:
                    return
                if debug:
                    logger.debug("Task %d (%s) is handed out.", claim.id, claim.name)
                if not executor.submit(claim):
                    return
                self._buffer.popleft()
            self._buffered_at = clock.monotonic()

    def _begin_suspects(self) -> None:
        """Has those begin whose process is ready, when that is noted in the database."""
        for claim in self._executor.prepared():
            if self.membership.overdue:
                self.membership.beat_soon()
                return
            try:
                allowed = self._marked(claim)
            except ConflictError:  # to be given back when the other transaction ends
                allowed = False
                self._outcomes.end(claim, Released())
            self._executor.begin(claim, allowed=allowed)

    def _with_payload(self, claim: Claim) -> Claim:
        with self._db.transaction() as transaction:
            return claim._replace(payload=tasks.payload(transaction, claim.id) or b"")

    def _marked(self, claim: Claim) -> bool:
        """Notes in the database that a suspect is about to begin. False when it is not this worker's any more."""
        return self._db.run(lambda t: tasks.start(t, claim), point="start", attempts=ATTEMPTS)

    def _take_parked(self) -> None:
        """Claims what is parked and of a name that this worker knows, as far as there is room."""
        if self._parked.due():
            self._look_for_parked()
        found = self._parked.found
        while found and (room := self._room()) > 0:
            queue, name = found[0]
            claims = self._claim_parked(queue, name, room) if name in self._known else Claims()
            if not claims and not claims.unseen:
                found.popleft()
            self._take(claims)
            self._submit()

    def _look_for_parked(self) -> None:
        since = self._parked.begin()
        names = self._db.read("parked_names")
        found = [(queue, name) for queue, name in names if name in self._known and queue in self._options.queues]
        self._parked.looked(since, found, events=self._events_arrive())

    def _claim_parked(self, queue: str, name: str, room: int) -> Claims:
        worker_id, accused = self.membership.worker_id, self._takes_accused()
        with self._turn.held():
            return self._db.run(lambda t: tasks.claim(t, worker_id, queue, room, name, accused=accused), point="claim")

    def _stop_cancelled(self) -> None:
        self._stops = False
        for (task,) in self._db.read("stops", self.membership.worker_id):
            self._executor.interrupt(task, Cancelled("cancelled on request"))

    # The worker itself

    @property
    def _db(self) -> Session:
        if self._session is None:
            raise DatabaseUnavailable("the worker has no connection.")
        return self._session

    def _beat(self) -> None:
        draining = self._draining_since is not None
        reply = self.membership.beat(self._db, draining=draining)
        if reply is None:
            return
        self._app.database.saw(reply.transaction)
        self._parked.beat(reply.parked)
        self._stops = reply.stops
        if not reply.alive:
            logger.warning("This worker was taken for dead and its tasks given to others; it registers again.")
            self._register()
            self._settle()
            if self._listener is not None:
                self._listener.restart()
        elif self._listener is not None:
            self._listener.check(self.membership.rhythm.heartbeat)
        self._look_at_schema(reply)
        self._look_at_database()
        if not draining:
            self.membership.rescue(self._db)

    def _look_at_schema(self, reply: HeartbeatReply) -> None:
        if reply.schema_version != latest_version() and self._draining_since is None:
            logger.warning(
                "The schema has version %d now, and this worker works with %d: it drains and starts afresh.",
                reply.schema_version,
                latest_version(),
            )
            self.outdated = True
            self._drain()

    def _look_at_database(self) -> None:
        """Has the worker leave when its connections are to a database that no new connection finds."""
        try:
            self._app.database.check()
        except DatabaseReplaced as error:
            self._leave_database(error)

    def _leave_database(self, error: DatabaseReplaced) -> None:
        if self.replaced is not None:
            return
        self.replaced = error
        logger.critical(
            "%s This worker claims nothing more, and leaves when its running tasks have ended, in %g s at the latest. "
            "How they end is recorded in the old database alone, if that still answers.",
            error,
            self._options.grace,
        )
        if self._draining_since is None:
            self._drain()

    def _maintain(self) -> None:
        now = clock.monotonic()
        if now >= self._next_maintenance:
            release_orphans(self._db)
            # Else their hooks could take longer than they need to come.
            parked = len(self._hooks) < tasks.BATCH
            self._next_maintenance = now + self._housekeeping.turn(self._db, give_up=parked)
            self._hooks.look_up(self._housekeeping.take_given_up())

    # The database is away

    def _lose(self, error: DatabaseError) -> None:
        """Gives the connection up. What runs goes on; what has ended is kept until it can be recorded."""
        self._away_since = self._away_since or clock.monotonic()
        pause = self._backoff.next(overdue=self.membership.overdue, leisure=self.membership.leisure)
        logger.error("The database is away: %s Trying again in %.1f s.", error, pause)
        if self._session is not None:
            self._session.close()
            self._session = None
        self._next_attempt = clock.monotonic() + pause
        self.membership.lost()

    def _reconnected(self) -> bool:
        """Connects when it is time to try, and settles what the cut left uncertain."""
        if clock.monotonic() < self._next_attempt:
            return False
        try:
            self._connect()
            self._settle()
        except SchemaError:
            raise
        except DatabaseReplaced as error:
            self._leave_database(error)
            self._lose(error)
            return False
        except DatabaseError as error:
            self._lose(error)
            return False
        self._hungry, self._next_due = True, 0.0
        if self._listener is not None:
            self._listener.pause()
        return True

    def _come_back(self, away_since: float) -> None:
        """Notes that work has succeeded. A connection alone shows little: of a disk that fails, one can still read."""
        logger.warning("The database is back after %.1f s.", clock.monotonic() - away_since)
        self._away_since = None
        self._backoff.reset()

    def _settle(self) -> None:
        """Compares, by their tokens, what the database says this worker holds with what it does.

        A claim whose answer was lost is given back, and what was taken away does not begin. An outcome whose answer was
        lost is simply written again: with its claim gone it changes nothing.
        """
        self._collect()  # what the executor has given up is in nobody's hands otherwise
        held = {(task, claim_id) for task, claim_id in self._db.read("held_by", self.membership.worker_id)}
        ours = {(claim.id, claim.claim_id) for claim in self._held()}
        for task, claim_id in held - ours:
            self._outcomes.end(Claim(task, claim_id), Released())
        self._buffer = deque(claim for claim in self._buffer if (claim.id, claim.claim_id) in held)

    def _held(self) -> list[Claim]:
        return [*self._buffer, *self._executor.busy(), *self._outcomes.claims()]

    def _takes_accused(self) -> bool:
        """Whether a task may be claimed that is suspected for the second time: one at a time."""
        return not any(claim.suspect > 1 for claim in self._held())

    # Waiting

    def _wait(self) -> None:
        timeout = self._time_to_wait()
        if timeout > 0 or not self._options.burst:
            with Selector() as selector:
                selector.register(self._wake_read, selectors.EVENT_READ)
                if not self._outcomes or timeout <= 0:  # else not woken by each outcome
                    for fileno in (*self._executor.filenos(), *self.membership.filenos()):
                        selector.register(fileno, selectors.EVENT_READ)
                ready = {key.fd for key, _ in selector.select(timeout)}
            self.membership.see(ready)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 65536)

    def _time_to_wait(self) -> float:
        until = [self._executor.deadline()]
        if self._draining_since is not None:
            until.append(self._draining_since + self._options.grace)
        if self._session is None:
            until.append(self._next_attempt)
        else:
            if self._stops or (self._outcomes and not self._gathering()):
                return 0.0
            if self._outcomes:
                until.append(min(self._outcomes.gathered_at, clock.monotonic() + GATHER / 8))
            until += [self.membership.next_beat, self._unknown.next_line, self._outcomes.again_at]
            if self._draining_since is None:
                if self._executor.prepared():
                    return 0.0
                hindrances = self._hindrances
                if self._hungry and self._room_to_claim():
                    return 0.0
                until += [max(self._next_due, hindrances.until(PROMOTE)), self._next_maintenance]
                look = 0.0 if self._parked.found and self._room() > 0 else self._parked.next_look
                if look is not None:
                    until.append(max(look, hindrances.until(CLAIM_PARKED)))
                if self._room() > 0:
                    until.append(max(self._next_poll, hindrances.until(CLAIM)))
                if self._buffer:
                    until.append(self._buffered_at + HELD_TOO_LONG)
                if self._options.burst and not self._executor.busy():
                    until.append(clock.monotonic() + POLL_FIRST)
        return max(0.0, min(moment for moment in until if moment is not None) - clock.monotonic())

    def stop_executor(self) -> None:
        """Stops the executor. What is idle has a while to end in, but not after :meth:`stop_at_once`."""
        self._stopped = self._executor.stop(lambda: self._killed)

    def close(self) -> None:
        """Stops the executor, if it was not, gives back whatever had not ended, and leaves the register."""
        try:
            if self._stopped is None:
                self.stop_executor()
            ended = self._stopped or []
            self._keep(ended)
            self._give_back(self._buffer)
            self._unknown.say(at_once=True)
            if stopped := sum(not recorded and isinstance(f.outcome, Released) for f, recorded in ended):
                logger.warning("%d running tasks were stopped and go back to their queues.", stopped)
            if self._session is not None:
                self._record()
                self._outcomes.retry(self._session, self.membership.worker_id, at_once=True)
                self._outcomes.give_up()
                self._call_hooks()
                self.membership.leave(self._session)
            elif self._outcomes and self.replaced is None:
                logger.error("The database is away; what this worker held runs again when its lease ends.")
        except DatabaseError as error:
            logger.error("The database is away; what this worker held runs again when its lease ends: %s", error)
        finally:
            self._hooks.drop()
            if self._session is not None:
                self._session.close()
                self._session = None
            self.membership.close()
            self._turn.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
