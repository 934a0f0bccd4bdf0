"""The loop of a worker: the thread that claims and records.

Each turn it records what has ended, renews the lease when it is time, claims as much as the executor can use soon,
and then waits for whichever comes first: an outcome, an event, a signal, the next scheduled task, a poll. While the
database is away the loop goes on: what runs is held to its limits, and its outcomes are kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fbtasks import timing as clock
from fbtasks.database.migrate import check_identity
from fbtasks.database.starting import when_it_is_there
from fbtasks.errors import DatabaseError, DatabaseReplaced, SchemaError
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.queue import tasks
from fbtasks.queue.notify.listener import WatchedListener
from fbtasks.system.showing import count
from fbtasks.system.waking import Waker
from fbtasks.tasks.call import Claim, Finished, Reason, reason_of
from fbtasks.tasks.handlers import hook_name, is_hook
from fbtasks.worker.connection import Connection
from fbtasks.worker.dispatcher import Dispatcher
from fbtasks.worker.drain import LOCKED, OPENS, Burst, Drain
from fbtasks.worker.duties import Duties, Promotion, Upkeep
from fbtasks.worker.fetcher import POLL_FIRST, Fetcher, Parked
from fbtasks.worker.lease import Lease
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.outcomes import GATHER, Outcomes
from fbtasks.worker.pools.base import Executor

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")


class Loop:
    """Claims, has the executor run, and records, until it is told to stop."""

    def __init__(self, app: FBTasks, executor: Executor, options: WorkerOptions) -> None:
        app.add_hooks()
        self._app = app
        self._executor = executor
        self._options = options
        self.lease = Lease(app, options)
        self.drain = Drain(options.grace, self.lease.drain)
        self.turned_at = math.inf
        self._is_ready = self._listens = False
        self._burst = Burst()
        self.connection = Connection(app.database, self.lease)
        self._waker = Waker()
        self._listener = WatchedListener(app.database, self._events, self.wake)
        self.queues = options.queues
        self.turn = HostLock(app.settings.url)
        self._outcomes = Outcomes(self.turn, app.features)
        self.tally = self._outcomes.tally
        self._dispatcher = Dispatcher(app, options, executor, self.lease, self._outcomes)
        promotion = Promotion()
        self._fetcher = Fetcher(options, self.lease, self._outcomes, self._dispatcher, promotion, self.events_arrive)
        self._parked = Parked(options.queues, self._fetcher, self._dispatcher, self.events_arrive)
        upkeep = Upkeep(app, self.lease, self._outcomes)
        self._duties = Duties(
            [
                *(("", each) for each in (upkeep, promotion, self._parked)),
                *((feature.name, duty) for feature in app.features for duty in feature.duties(self)),
            ],
            app.database.open,
            self._waker.wake,
        )
        self._hearing: dict[str, list[Callable[[], None]]] = {"fbtasks:cancel": [self._dispatcher.request_stops]}
        """What is called when an event comes."""
        for event, hear in (
            *((f"fbtasks:queue:{queue}", self._fetcher.look) for queue in options.queues),
            *((event, duty.heard) for duty in self._duties for event in duty.events),
        ):
            self._hearing.setdefault(event, []).append(hear)

    # Its start, and what is asked of it from outside

    def start(self) -> bool:
        """Starts the executor, which becomes ready while this process opens its database.

        While the server is away, or the database is shut down for maintenance, it waits, but in a burst. Returns False
        when the worker is to end meanwhile.
        """
        self._executor.start()
        if self._options.burst:
            self.open()
            return True
        return when_it_is_there(
            self._app.database, self.open, who="This worker", say=logger.warning, wait=self._wait_to_start
        )

    def _wait_to_start(self, seconds: float) -> bool:
        self._waker.wait(seconds)
        return not self.drain.begun

    def open(self) -> None:
        """Connects, brings in what the app says and what the duties need, and registers the worker.

        Creates a queue that is missing. Raises :class:`ForeignDatabaseError` before anything is claimed when the
        database is a copy.
        """
        self._app.database.make_ready()
        session = self.connection.open()
        try:
            check_identity(session)
            for feature in self._app.features:
                for line in feature.begin(session):
                    logger.info("%s", line)
            names = [name for name in self._app.tasks if not is_hook(name)]
            tasks.set_on_failure(session, {name: hook_name(name) in self._app.tasks for name in names})
            self._duties.begin(session)
            self._register(session)
            self.lease.look_for_namesakes(session)
        except DatabaseError:
            self.connection.close()
            raise

    def _register(self, session: Session) -> None:
        self.lease.register(session)
        self._executor.serve(self.lease.worker_id, self._app.database.known.mark)

    def wake(self, events: Iterable[str]) -> None:
        """Wakes the loop for *events* of the database; from any thread."""
        for event in events:
            for hear in self._hearing.get(event, ()):
                hear()
        self._waker.wake()

    def _events(self) -> list[str]:
        return [f"fbtasks:worker:{self.lease.worker_id}", *self._hearing]

    # What features may ask of it

    @property
    def id(self) -> int:
        """Its number in the register."""
        return self.lease.worker_id

    def wanted(self) -> int:
        """How many more tasks it can use soon."""
        return self._dispatcher.wanted()

    def events_arrive(self) -> bool:
        """Whether events of the database are known to arrive."""
        return self._listener.heard_within(2.5 * self.lease.rhythm.heartbeat)

    def watch(self, name: str, ended: Callable[[], None]) -> None:
        """Calls *ended* whenever outcomes of the task *name* have been recorded."""
        self._outcomes.watched[name] = ended

    def watch_outcomes(self, recorded: Callable[[Sequence[Finished]], None]) -> None:
        """Calls *recorded* with the outcomes of each transaction that has recorded some; in the worker's thread."""
        self._outcomes.watchers.append(recorded)

    def watch_claims(self, took: Callable[[float], None]) -> None:
        """Calls *took* with the seconds of each claim; in the worker's thread."""
        self._fetcher.watchers.append(took)

    @property
    def options(self) -> WorkerOptions:
        """How it works."""
        return self._options

    def busy(self) -> list[Claim]:
        """The claims that run."""
        return self._executor.busy()

    def look(self, task: int, feature: str) -> int | None:
        """Has the process that runs *task* say its stack to *feature*."""
        return self._executor.look(task, feature)

    def is_serving(self) -> bool:
        """Whether it claims tasks."""
        return self._is_ready and self.connection.session is not None and not self.drain.begun

    # The loop

    def run(self, *, listen: bool = True) -> None:
        """Works until told to stop, with events unless *listen* is false; or, in a burst, until nothing is due."""
        self._listens = listen and not self._options.burst
        if self._listens:
            self._listener.start()
        try:
            while not self._has_drained():
                self._collect()
                try:
                    session = self.connection.session or self._reconnect()
                    if session is not None:
                        self._take_turn(session)
                        if self.connection.away_since is not None:
                            self.connection.works()
                        if self._options.burst and not self.drain.begun and self._burst_is_over(session):
                            break
                    elif self.drain.begun:
                        self.drain.say_waiting(self._executor.busy(), self._duties.under_way())
                except SchemaError:
                    raise
                except DatabaseError as error:
                    self._note_lost(error)
                self._wait()
        finally:
            self._listener.stop()

    def _take_turn(self, session: Session) -> None:
        if not self._is_ready and self._executor.free() > 0:
            self._is_ready = True
            logger.info("Worker %s is ready.", self._options.name)
        self._beat(session)
        self._dispatcher.stop_cancelled(session)
        draining = self.drain.begun
        if draining:
            self._dispatcher.give_back()
            self._outcomes.record(session, self.id)
        else:
            self._dispatcher.give_back_stale(session)
            self._fetcher.claim(session)
            self._dispatcher.submit(session)
        self._outcomes.retry(session, self.id)
        if self._duties.do(session, draining=draining):
            self._fetcher.look()
        self._collect()
        if draining:
            self.drain.say_waiting(self._executor.busy(), self._duties.under_way())

    def _collect(self) -> None:
        """Takes what has ended in the executor, and what running tasks have said."""
        self._dispatcher.collect()
        self._tell()

    def _tell(self) -> None:
        for said in self._executor.take_said():
            self._duties.tell(said)

    def _beat(self, session: Session) -> None:
        """Sends a heartbeat when it is time, and heeds what the answer says."""
        reply = self.lease.beat(session)
        if reply is None:
            return
        self._app.database.known.saw(reply.transaction)
        self._parked.beat(reply.parked)
        self._dispatcher.stops_requested = reply.stops
        if reply.alive:
            self._listener.check(self.lease.rhythm.heartbeat)
        else:
            logger.warning("This worker was taken for dead and its tasks given to others; it registers again.")
            self._register(session)
            self._dispatcher.settle(session)
            self._listener.restart()
        if reply.ends and not self.drain.begun:
            logger.info("An operator has told this worker to end: stopping.")
            self.drain.begin()
        self.drain.look_at_schema(reply.schema_version, anew=reply.generation != session.generation)
        try:
            self._app.database.known.check()
        except DatabaseReplaced as error:
            self.drain.leave_database(error)
        if not self.drain.begun:
            self.lease.rescue(session)

    def _note_lost(self, error: DatabaseError) -> None:
        if isinstance(error, DatabaseReplaced):
            self.drain.leave_database(error)
        self.connection.note_lost(error)

    def _reconnect(self) -> Session | None:
        """Connects when it is time to try, and settles what the lost connection left uncertain."""
        if clock.monotonic() < self.connection.next_attempt:
            return None
        session = self.connection.open()
        self._dispatcher.settle(session)
        self._fetcher.look()
        if self._listens:
            self._listener.pause()
        return session

    def _has_drained(self) -> bool:
        if not self.drain.begun:
            return False
        lost = self.drain.replaced is not None and self.connection.session is None  # nothing can be recorded
        return self.drain.over or not (self._executor.busy() or (self._holds_some() and not lost))

    def _holds_some(self) -> bool:
        return bool(self._dispatcher or self._outcomes or self._outcomes.kept or self._duties.under_way())

    def _burst_is_over(self, session: Session) -> bool:
        """Whether a burst has left nothing that is due. Says what it leaves: what waits for limits or other steps."""
        left = partial(tasks.left, session, self._options.queues)
        if self._holds_some() or self._executor.busy() or self._duties.pending():
            self._burst.works()
        elif self._fetcher.looks_again:
            pass
        elif self._fetcher.any_due(session):
            if self._dispatcher.wanted():  # else its children only begin
                self._burst.waits(LOCKED, left)
        elif self._fetcher.still_opens(session):
            self._burst.waits(OPENS, left)
        elif not self._fetcher.any_due(session):  # else what held something back has ended between the two looks
            self._burst.leaves(left(), self._dispatcher.parked)
            return True
        return False

    def _wait(self) -> None:
        deadline = min(self._deadlines())
        self.turned_at = clock.monotonic()
        timeout = max(0.0, deadline - self.turned_at)
        if timeout > 0 or not self._options.burst:
            filenos: list[int] = []
            if not self._outcomes or timeout <= 0:  # else not woken by each outcome
                filenos = [*self._executor.filenos(), *self.lease.filenos()]
            self.lease.see(self._waker.select(timeout, filenos))
        self._waker.clear()

    def _deadlines(self) -> list[float]:
        """The monotonic times at which there is something to do."""
        executor, outcomes = self._executor, self._outcomes
        until = [executor.deadline(), self.drain.deadline]
        if self.connection.session is None:
            return [*until, self.connection.next_attempt]
        if self._dispatcher.stops_requested:
            return [0.0]
        if outcomes:
            if self.drain.begun or not self._dispatcher.gathering:
                return [0.0]
            until.append(min(outcomes.gathered_at, clock.monotonic() + GATHER / 8))
        until += [self.lease.next_beat, self._dispatcher.deadline, outcomes.again_at]
        until.append(self._duties.due(draining=self.drain.begun))
        if not self.drain.begun:
            until.append(self._fetcher.deadline())
            if self._options.burst and not executor.busy():
                until.append(clock.monotonic() + POLL_FIRST)
        return until

    # Its end

    def stop_executor(self) -> None:
        """Stops the executor. What is idle has a while to end in, unless the worker is to end at once."""
        ended = self._executor.stop(lambda: self.drain.at_once)
        self._dispatcher.keep(ended)
        if stopped := sum(
            not each.recorded and reason_of(each.outcome) in (Reason.RELEASE, Reason.CONTINUE)
            for all_ in ended
            for each in all_.parts()
        ):
            were, go = ("was", "goes back to its queue") if stopped == 1 else ("were", "go back to their queues")
            logger.warning("%s %s stopped and %s.", count(stopped, "running task"), were, go)

    def close(self) -> None:
        """Stops the executor, if it was not, gives back whatever had not ended, and leaves the register."""
        try:
            self.stop_executor()
            self._tell()
            self._dispatcher.give_back()
            session = self.connection.session
            if session is not None:
                self._outcomes.record(session, self.lease.worker_id)
                self._outcomes.retry(session, self.lease.worker_id, at_once=True)
                self._outcomes.give_up()
                self._duties.finish(session)
                self.lease.leave(session)
            elif (self._outcomes or self._outcomes.kept) and self.drain.replaced is None:
                logger.error("The database is away; what this worker held runs again when its lease ends.")
        except DatabaseError as error:
            logger.error("The database is away; what this worker held runs again when its lease ends: %s", error)
        finally:
            self.connection.close()
            self.lease.close()
            self.turn.close()
            self._waker.close()
