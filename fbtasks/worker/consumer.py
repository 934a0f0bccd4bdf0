"""The consumer: the one loop of a worker that speaks to the database.

Each turn it records what has ended, renews the lease when it is time, claims as much as the executor can use soon,
and then waits for whichever comes first: an outcome, an event, a signal, the next scheduled task, a poll. While the
database is away the loop goes on: what runs is held to its limits, and its outcomes are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fbtasks import timing as clock
from fbtasks.app import FBTasks
from fbtasks.database.database import SHUT_DOWN_LOOK
from fbtasks.errors import DatabaseError, DatabaseReplaced, DatabaseShutDown, SchemaError
from fbtasks.features.limits import duty as task_limits
from fbtasks.features.limits.gating import Gating
from fbtasks.features.queues import duty as queue_limits
from fbtasks.features.schedules import upkeep as schedules
from fbtasks.features.schedules.duty import Ticks
from fbtasks.features.sources.duty import Polling
from fbtasks.features.sources.undeployed import Sources
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.queue import tasks
from fbtasks.queue.notify.listener import WatchedListener
from fbtasks.queue.shares import own_limits
from fbtasks.system.showing import count
from fbtasks.system.waking import Waker
from fbtasks.tasks.call import Advanced, Released
from fbtasks.worker.connection import Connection
from fbtasks.worker.draining import LOCKED, OPENS, Burst, Draining
from fbtasks.worker.handing_out import HandOut
from fbtasks.worker.hooks import FailureHooks
from fbtasks.worker.intake import POLL_FIRST, Intake
from fbtasks.worker.membership import Membership
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.outcomes import GATHER, Outcomes
from fbtasks.worker.pools.base import Executor
from fbtasks.worker.upkeep import Upkeep

logger = logging.getLogger("fbtasks.worker")


class Consumer:
    """Claims, has the executor run, and records, until it is told to stop."""

    def __init__(self, app: FBTasks, executor: Executor, options: WorkerOptions) -> None:
        self._app = app
        self._executor = executor
        self._options = options
        self.membership = Membership(options, app.tasks, app.settings, app.features.names)
        self.draining = Draining(options.grace, self.membership.beat_soon)
        self._burst = Burst()
        self.connection = Connection(app.database, self.membership)
        self._waker = Waker()
        self._listener = WatchedListener(app.database, self._events, self.wake)
        self._turn = HostLock(app.settings.url)
        self._outcomes = Outcomes(self._turn, app.features["workflows"].prepare_plan)
        self.tally = self._outcomes.tally
        self._hooks = FailureHooks(app, executor)
        self._hand_out = HandOut(
            app.tasks,
            executor,
            self.membership,
            self._outcomes,
            self._hooks,
            Gating(app),
            own_limits(options.shares),
            app.features.names,
        )
        self._ticks = Ticks()
        self._intake = Intake(
            options.queues,
            options.shares,
            self.membership,
            self._outcomes,
            self._hand_out,
            self._ticks,
            self._events_arrive,
        )
        self.sources = Sources(app, options.queues)
        self._upkeep = Upkeep(app.settings, self._hooks, self.sources, self._outcomes)
        self._polling = Polling(app, options.queues, self._turn)
        self._outcomes.watched = self._polling.names
        self._is_ready = self._listens = False

    # Its start, and what is asked of it from outside

    def start(self) -> bool:
        """Starts the executor, which becomes ready while this process connects, and creates a queue that is missing.

        While the database is shut down for maintenance it waits until that is online. Returns False when the worker is
        to end meanwhile.
        """
        self._executor.start()
        while True:
            try:
                self._app.database.make_ready()
            except DatabaseShutDown as error:
                self.connection.say_shut_down(error)
            else:
                return True
            if self.draining.begun:
                return False
            self._waker.wait(SHUT_DOWN_LOOK)

    def open(self) -> None:
        """Connects, brings in what the app says of its queues, limits and schedules, and registers the worker."""
        session = self.connection.open()
        queues = self._app.queues.values()
        for said in task_limits.sync_limits(session, self._app.name, self._app.limits.values()):
            logger.info("Limit %s.", said)
        for queue in queue_limits.sync_queues(session, self._app.name, queues):
            logger.info("The limit and the window of the queue %s are those of this app now.", queue)
        for said in schedules.sync_schedules(session, self._app, self._app.schedules):
            logger.info("Schedule %s.", said)
        self._register(session)
        self.membership.look_for_namesakes(session)

    def _register(self, session: Session) -> None:
        self.membership.register(session)
        self._executor.serve(self.membership.worker_id, self._app.database.known.mark)

    def wake(self, events: Iterable[str]) -> None:
        """Wakes the loop for *events* of the database; from any thread."""
        for event in events:
            match event.split(":")[1]:
                case "queue":
                    self._intake.look()
                case "parked":
                    self._intake.parked.hint()
                case "cancel":
                    self._hand_out.stops_requested = True
        self._waker.wake()

    def _events(self) -> list[str]:
        own = f"fbtasks:worker:{self.membership.worker_id}"
        return [own, "fbtasks:parked", "fbtasks:cancel", *(f"fbtasks:queue:{queue}" for queue in self._options.queues)]

    def _events_arrive(self) -> bool:
        return self._listener.heard_within(2.5 * self.membership.rhythm.heartbeat)

    # The loop

    def run(self, *, listen: bool = True) -> None:
        """Works until told to stop, with events unless *listen* is false; or, in a burst, until nothing is due."""
        self._listens = listen and not self._options.burst
        if self._listens:
            self._listener.start()
        try:
            while not self._finished():
                self._hand_out.collect()
                try:
                    session = self.connection.session or self._reconnect()
                    if session is not None:
                        self._take_turn(session)
                        if self.connection.away_since is not None:
                            self.connection.works()
                    elif self.draining.begun:
                        self.draining.say_waiting(self._executor.busy())
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
        self._hand_out.stop_cancelled(session)
        draining = self.draining.begun
        if draining:
            self._hand_out.give_back()
            self._outcomes.record(session, self.membership.worker_id)
            self._outcomes.retry(session, self.membership.worker_id)
        else:
            self._hand_out.give_back_stale(session)
            self._outcomes.retry(session, self.membership.worker_id)
            self._intake.claim(session)
            self._hand_out.submit(session)
            self._hand_out.begin_suspects(session)
            self._intake.promote(session)
            if self._ticks.look(session):
                self._intake.look()
            self._intake.claim_parked(session)
            self._poll(session)
            self._upkeep.do(session, self.membership.worker_id)
        self._outcomes.recorder.record_notes(session)
        self._call_hooks(session)
        self._hand_out.unknown.say()
        self._hand_out.collect()
        if draining:
            self.draining.say_waiting(self._executor.busy())

    def _poll(self, session: Session) -> None:
        """Looks at the tables that are polled, when it is time."""
        if self._polling:
            self._polling.ended(self._outcomes.watched_ended)
            if self._polling.look(session, self._hand_out.wanted()):
                self._intake.look()

    def _call_hooks(self, session: Session) -> None:
        self._hooks.settle(self._outcomes.take_settled())
        self._hooks.look_up(self.membership.take_failed())
        self._hooks.call(session)

    def _beat(self, session: Session) -> None:
        """Sends a heartbeat when it is time, and heeds what the answer says."""
        draining = self.draining.begun
        reply = self.membership.beat(session, draining=draining)
        if reply is None:
            return
        self._app.database.known.saw(reply.transaction)
        self._intake.parked.beat(reply.parked)
        self._hand_out.stops_requested = reply.stops
        if reply.alive:
            self._listener.check(self.membership.rhythm.heartbeat)
        else:
            logger.warning("This worker was taken for dead and its tasks given to others; it registers again.")
            self._register(session)
            self._hand_out.settle(session)
            self._listener.restart()
        self.draining.look_at_schema(reply.schema_version, anew=reply.generation != session.generation)
        try:
            self._app.database.known.check()
        except DatabaseReplaced as error:
            self.draining.leave_database(error)
        if not draining:
            self.membership.rescue(session)

    def _note_lost(self, error: DatabaseError) -> None:
        if isinstance(error, DatabaseReplaced):
            self.draining.leave_database(error)
        self.connection.note_lost(error)

    def _reconnect(self) -> Session | None:
        """Connects when it is time to try, and settles what the lost connection left uncertain."""
        if clock.monotonic() < self.connection.next_attempt:
            return None
        session = self.connection.open()
        self._hand_out.settle(session)
        self._intake.look()
        if self._listens:
            self._listener.pause()
        return session

    def _finished(self) -> bool:
        executor = self._executor
        if self.draining.begun:
            if self.draining.over:
                return True
            lost = self.draining.replaced is not None and self.connection.session is None  # nothing can be recorded
            return not executor.busy() and (lost or not self._holds_some()) and not executor.hooks()
        return self._options.burst and self._burst_is_over()

    def _burst_is_over(self) -> bool:
        """Whether a burst has left nothing that is due."""
        if self._holds_some() or self._executor.busy() or self._executor.hooks() or not self._polling.is_empty:
            self._burst.works()
            return False
        if self._intake.looks_again or self._upkeep.hands_on:
            return False
        if self._anything_due():
            if self.connection.session is not None and self._hand_out.wanted():  # else its children only begin
                self._burst.waits(LOCKED)
            return False
        return self._nothing_opens()

    def _holds_some(self) -> bool:
        return bool(self._hand_out or self._outcomes or self._outcomes.blocked or self._hooks)

    def _anything_due(self) -> bool:
        if self.connection.session is None:
            return True
        try:
            return self._intake.any_due(self.connection.session) or self._ticks.are_due
        except DatabaseError as error:
            self._note_lost(error)
            return True

    def _nothing_opens(self) -> bool:
        """Whether a burst leaves what waits for limits or other steps. Says what that is."""
        session = self.connection.session
        try:
            if session is None or self._intake.still_opens(session):
                self._burst.waits(OPENS)
                return False
            if self._anything_due():  # what held something back has ended between the two looks
                return False
            self._burst.leaves(tasks.left(session, self._options.queues))
        except DatabaseError as error:
            self._note_lost(error)
            return False
        return True

    def _wait(self) -> None:
        deadlines = [moment for moment in self._deadlines() if moment is not None]
        timeout = max(0.0, min(deadlines) - clock.monotonic())
        if timeout > 0 or not self._options.burst:
            filenos: list[int] = []
            if not self._outcomes or timeout <= 0:  # else not woken by each outcome
                filenos = [*self._executor.filenos(), *self.membership.filenos()]
            self.membership.see(self._waker.select(timeout, filenos))
        self._waker.clear()

    def _deadlines(self) -> list[float | None]:
        """The monotonic times at which there is something to do."""
        executor, outcomes = self._executor, self._outcomes
        until = [executor.deadline(), self.draining.deadline]
        if self.connection.session is None:
            return [*until, self.connection.next_attempt]
        if self._hand_out.stops_requested:
            return [0.0]
        if outcomes:
            if self.draining.begun or not self._hand_out.gathering:
                return [0.0]
            until.append(min(outcomes.gathered_at, clock.monotonic() + GATHER / 8))
        until += [self.membership.next_beat, self._hand_out.unknown.next_line]
        until += [outcomes.again_at, outcomes.recorder.notes.due, self._hooks.next_look]
        if not self.draining.begun:
            if executor.prepared():
                return [0.0]
            until += [self._intake.deadline(), self._hand_out.deadline, self._upkeep.deadline, self._ticks.next_look]
            if self._polling:
                self._polling.ended(self._outcomes.watched_ended)
                until.append(self._polling.deadline(self._hand_out.wanted()))
            if self._options.burst and not executor.busy():
                until.append(clock.monotonic() + POLL_FIRST)
        return until

    # Its end

    def stop_executor(self) -> None:
        """Stops the executor. What is idle has a while to end in, unless the worker is to end at once."""
        ended = self._executor.stop(lambda: self.draining.at_once)
        self._hand_out.keep(ended)
        if stopped := sum(
            not each.recorded and isinstance(each.outcome, Released | Advanced)
            for all_ in ended
            for each in all_.parts()
        ):
            were, go = ("was", "goes back to its queue") if stopped == 1 else ("were", "go back to their queues")
            logger.warning("%s %s stopped and %s.", count(stopped, "running task"), were, go)

    def close(self) -> None:
        """Stops the executor, if it was not, gives back whatever had not ended, and leaves the register."""
        try:
            self.stop_executor()
            self._hand_out.give_back()
            self._hand_out.unknown.say(at_once=True)
            session = self.connection.session
            if session is not None:
                self._outcomes.record(session, self.membership.worker_id)
                self._outcomes.retry(session, self.membership.worker_id, at_once=True)
                self._outcomes.give_up()
                self._hooks.look_again()
                self._call_hooks(session)
                self._polling.ended(self._outcomes.watched_ended)
                self._polling.finish(session)
                self.membership.leave(session)
            elif self._outcomes and self.draining.replaced is None:
                logger.error("The database is away; what this worker held runs again when its lease ends.")
        except DatabaseError as error:
            logger.error("The database is away; what this worker held runs again when its lease ends: %s", error)
        finally:
            self._hooks.drop()
            self.connection.close()
            self.membership.close()
            self._turn.close()
            self._waker.close()
