"""Hands claims to the executor, and gives back those that would wait too long."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.firebird.session import Session
from fbtasks.queue import tasks as queue
from fbtasks.queue.register import processes
from fbtasks.queue.results import now
from fbtasks.queue.shares import own_limits
from fbtasks.system.checks import did_you_mean
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, Finished, Outcome, Reason, Requeue, Several, reason_of
from fbtasks.timing import Quiet
from fbtasks.worker.claiming import in_batches
from fbtasks.worker.lease import Lease
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.outcomes import MOST_KEPT, Outcomes
from fbtasks.worker.pools.base import Executor

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")

HELD_TOO_LONG: Final = 0.1
"""Seconds after which claims that no executor takes are given back for other workers."""


class Dispatcher:
    """Claims between the database and the executor, and how many more there is room for."""

    def __init__(
        self,
        app: FBTasks,
        options: WorkerOptions,
        executor: Executor,
        lease: Lease,
        outcomes: Outcomes,
    ) -> None:
        tasks = app.tasks
        self.features = app.features.names
        self._receiving = app.features.which("received")[::-1]
        self._shown = frozenset(
            name for name, task in tasks.items() if any(each.receives(task) for each in self._receiving)
        )
        """Tasks whose claims features are to see that were not held back."""
        self._executor = executor
        self._lease = lease
        self._outcomes = outcomes
        self._claims: deque[Claim] = deque()
        self._since = 0.0
        self.known = frozenset(tasks)
        self._in_order = frozenset(name for name, task in tasks.items() if task.in_order)
        windows = {name: task.window for name, task in tasks.items()}
        self._windows = {name: window for name, window in windows.items() if window is not None}
        self._batches = {
            name: task.options.batching[0] for name, task in tasks.items() if task.options.batching is not None
        }
        """Of tasks whose calls are run in batches: how many at most."""
        self._own_limits = own_limits(options.shares)
        """How many of a queue may be here at a time."""
        self.lets_next_in = False
        """Whether a task has ended whose end lets another one in: then there may be something to claim at once."""
        self.limited: frozenset[str] = frozenset()
        """Queues whose limits had no room for more when they were claimed from last."""
        self.parked: dict[str, int] = {}
        """How many tasks it has parked, by their names: those that it has logged, since nobody runs them."""
        self._quiet = Quiet()
        self.stops_requested = False
        """Whether an event or a heartbeat has told that something is to be stopped here."""

    def __bool__(self) -> bool:
        return bool(self._claims)

    @property
    def deadline(self) -> float:
        """The monotonic time at which what waits for the executor is to be given back."""
        return self._since + HELD_TOO_LONG if self._claims else math.inf

    def room(self) -> int:
        """How many more claims can be handed out soon."""
        if self._outcomes.kept >= MOST_KEPT:
            return 0
        return self._executor.free() - len(self._claims)

    def wanted(self) -> int:
        """Returns how many tasks to claim now; 0 while the executor has enough to do."""
        room, executor = self.room(), self._executor
        return 0 if room <= 0 or (executor.idle() == 0 and room < executor.capacity() // 2) else room

    def rooms(self) -> dict[str, int]:
        """How many more claims there may be here of each queue for which this worker has a limit of its own."""
        if not self._own_limits:
            return {}
        here = Counter(claim.queue for claim in (*self._claims, *self._executor.busy()))
        return {queue: most - here[queue] for queue, most in self._own_limits.items()}

    @property
    def has_limits(self) -> bool:
        """Whether this worker knows tasks that features hold back."""
        return bool(self._shown)

    @property
    def gathering(self) -> bool:
        """Whether it is better to wait for more outcomes before they are recorded: the executor has enough to do."""
        return not self._outcomes.gathered and self._executor.idle() == 0

    def held(self) -> list[Claim]:
        """Returns all claims of this worker."""
        here = [*self._claims, *self._executor.busy(), *self._outcomes.claims()]
        return [part for claim in here for part in claim.parts]

    def collect(self) -> None:
        """Takes what has ended in the executor, and what that has given back."""
        if ended := self._executor.collect():
            self.keep(ended)
        if returned := self._executor.take_back():
            self._claims.extendleft(reversed(returned))
            self._since = clock.monotonic()

    def keep(self, ended: Iterable[Finished]) -> None:
        """Passes outcomes on, to be recorded."""
        for finished in ended:
            claim = finished.claim
            if reason_of(finished.outcome) is Reason.PARKED:  # by a child that began after the task had been removed
                self.known -= {claim.name}
                self._say_parked(claim.name)
                self.parked[claim.name] += 1
            self.lets_next_in |= claim.gated or claim.name in self._in_order
            self.lets_next_in |= claim.queue in self.limited or claim.queue in self._own_limits
            self._outcomes.add(finished)

    def take(self, session: Session, claims: list[Claim]) -> None:
        """Keeps what was claimed until it is handed out, but for what does not begin here."""
        if not claims:
            return
        self._since = clock.monotonic()
        has_window = self._windows and any(claim.name in self._windows for claim in claims)
        moment = now(session) if has_window else None
        kept = self._admitted(claims, lambda claim: self._checked(session, claim, moment))
        self._claims += in_batches(kept, self._batches) if self._batches else kept

    def _admitted(self, claims: Iterable[Claim], check: Callable[[Claim], Claim | Outcome]) -> list[Claim]:
        """Returns the claims that pass *check*. The others end with the outcome that it returns.

        When *check* raises, all go back to their queue.
        """
        admitted: list[Claim] = []
        left = deque(claims)
        try:
            while left:
                found = check(left[0])
                claim = left.popleft()
                if isinstance(found, Claim):
                    admitted.append(found)
                else:
                    self._outcomes.end(claim, found)
        except BaseException:
            for claim in (*admitted, *left):
                self._outcomes.end(claim, RELEASED)
            raise
        return admitted

    def _checked(self, session: Session, claim: Claim, moment: datetime | None) -> Claim | Outcome:
        name = claim.name
        if name not in self.known:
            return self._parked(session, claim)
        if claim.has_extras and (lacks := self._lacks(session, claim)):
            return self._parked(session, claim, lacks)
        found: Claim | Outcome = claim
        if name in self._shown and not claim.gated:
            found = self._received(session, claim)
        if moment is not None and name in self._windows and isinstance(found, Claim):
            opening = self._windows[name].next_opening(moment)
            if opening is not None and opening > moment:
                return Requeue(Reason.CLOSED, (opening - moment).total_seconds())
        return found

    def _parked(self, session: Session, claim: Claim, lacks: str = "") -> Outcome:
        """Returns the outcome of a task that this worker cannot run: it lacks the name, or a feature.

        That another worker runs it, as where two apps share a queue, is no error.
        """
        name = claim.name
        if self._quiet.over((name, lacks)):
            others = processes.features(session) if lacks else processes.task_names(session)
            if (lacks or name) in others:
                logger.debug("Tasks named %r are left to other workers, which know them.", name)
            else:
                self._say_parked(name, lacks)
        if name in self.parked:
            self.parked[name] += 1
        return Requeue(Reason.PARKED, message=f"it needs the feature {lacks}" if lacks else "")

    def _say_parked(self, name: str, lacks: str = "") -> None:
        self.parked.setdefault(name, 0)
        logger.error(
            "Tasks named %r are parked: this worker %s.",
            name,
            f"has no feature {lacks}, which they need. Start a worker of an app that has it"
            if lacks
            else f"knows no task of that name.{did_you_mean(name, self.known)} Start a worker that imports it, or give "
            "the renamed task aliases=",
        )

    def submit(self, session: Session) -> None:
        """Hands out what was claimed, as far as the executor takes it."""
        while self._claims and (room := self._executor.free()) > 0 and not self._is_overdue():
            if self._claims[0].fed and not self._feed_first(session):
                continue
            group = self._next(session, room)
            refused = self._executor.submit(group) if group else []
            for _ in group:
                self._claims.popleft()
            self._claims.extendleft(reversed(refused))
            if refused or not group:
                return
            self._since = clock.monotonic()

    def _lacks(self, session: Session, claim: Claim) -> str:
        """Returns a feature that *claim* needs and this worker lacks; empty when there is none."""
        needed = session.read("needs", claim.id)
        return next((name for (name,) in needed if f" {name} " not in self.features), "")

    def _received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Returns *claim* as features have completed it, or the outcome with which one of them ends it."""
        for feature in self._receiving:
            found: Claim | Outcome = feature.received(session, claim)
            if not isinstance(found, Claim):
                return found
            claim = found
        return self._parked(session, claim, self._lacks(session, claim)) if claim.fed else claim

    def _feed_first(self, session: Session) -> bool:
        """Reads the inputs of the first claim. Returns False when the claim has ended by that."""
        first = self._claims.popleft()
        fed = self._admitted(first.parts, lambda part: self._received(session, part) if part.fed else part)
        if fed:
            self._claims.appendleft(first.of(fed))
        return bool(fed)

    def _next(self, session: Session, most: int) -> list[Claim]:
        """Returns up to *most* claims for the executor, whose payloads are here; or one suspect."""
        self._claims[0] = first = queue.with_payload(session, self._claims[0])
        if first.suspect:
            return [first] if self._executor.idle() else []
        here = takewhile(lambda claim: claim.payload is not None and not (claim.suspect or claim.fed), self._claims)
        group = list(islice(here, most))
        if logger.isEnabledFor(logging.DEBUG):
            for claim in group:
                logger.debug("Task %d (%s) is handed out.", claim.id, claim.name)
        return group

    def request_stops(self) -> None:
        """Something is to be stopped here, as an event has told; from any thread."""
        self.stops_requested = True

    def stop_cancelled(self, session: Session) -> None:
        """Stops what is to be stopped on request."""
        if self.stops_requested:
            self.stops_requested = False
            for (task,) in session.read("stops", self._lease.worker_id):
                self._executor.interrupt(*self._stopping(task))

    def _stopping(self, task: int) -> tuple[int, Outcome]:
        """Returns the run to stop for *task*, and its outcome: other calls of the batch go back to their queue."""
        cancelled = Cancelled("cancelled on request")
        for claim in self._executor.busy() if self._batches else ():
            if any(each.id == task for each in claim.members):
                return claim.id, Several(tuple(cancelled if each.id == task else RELEASED for each in claim.members))
        return task, cancelled

    def _is_overdue(self) -> bool:
        """Whether the worker was stopped for a while, so that what it holds may be another worker's by now."""
        if self._lease.monitor.overdue:
            self._lease.beat_soon()
            return True
        return False

    def give_back(self) -> None:
        """Gives back all that has not begun."""
        for claim in (*self._claims, *self._executor.take_all_back()):
            self._outcomes.end(claim, RELEASED)
        self._claims.clear()

    def give_back_stale(self, session: Session) -> None:
        """Gives back what no executor took in a while, at once: another worker may have room for it."""
        if self._claims and clock.monotonic() - self._since > HELD_TOO_LONG:
            for claim in self._claims:
                self._outcomes.end(claim, RELEASED)
            self._claims.clear()
            self._outcomes.record(session, self._lease.worker_id)

    def settle(self, session: Session) -> None:
        """Compares, by their tokens, what the database says this worker holds with what it does.

        A claim whose answer was lost is given back, and what was taken away does not begin. An outcome whose answer was
        lost is simply written again: with its claim gone it changes nothing.
        """
        self.collect()  # what the executor has given up is in no list otherwise
        held = {(task, claim_id) for task, claim_id in session.read("held_by", self._lease.worker_id)}
        for task, claim_id in held - {(claim.id, claim.claim_id) for claim in self.held()}:
            self._outcomes.end(Claim(task, claim_id), RELEASED)
        standing: deque[Claim] = deque()
        for claim in self._claims:
            parts = [each for each in claim.parts if (each.id, each.claim_id) in held]
            if parts:
                standing.append(claim.of(parts))
        self._claims = standing
