"""When a worker claims what is ready in its queues, or parked, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from fbtasks import timing as clock
from fbtasks.feature import Duty
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import tasks
from fbtasks.tasks.call import Claims
from fbtasks.timing import Backoff
from fbtasks.worker.claiming import Claiming, Taken
from fbtasks.worker.dispatcher import Dispatcher
from fbtasks.worker.duties import Attempts, Promotion
from fbtasks.worker.lease import Lease
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.outcomes import Outcomes

POLL_FIRST: Final = 0.05
POLL_LAST: Final = 1.0
POLL_WITH_EVENTS: Final = 15.0
"""Seconds between polls while events are known to arrive."""
OPENS: Final = 0.01
"""Seconds between two claims at least while it is known when something opens: a rate has its next token, say."""
MISSED: Final = 0.02
"""Seconds until a worker looks again at sources that another one was giving out; longer while it finds nothing."""

PARKED_LOOK: Final = 60.0
"""Seconds between two looks while something is parked and events are known to arrive."""
PARKED_WITHOUT_EVENTS: Final = 10.0
PARKED_REST: Final = 1.0
"""Seconds between two of them at least, whatever events come."""
PARKED_SHARE: Final = 50
"""Such a look reads all that is parked: the next comes no sooner than after so many times as long as it took."""


class Fetcher:
    """Claims tasks for the hand-out."""

    def __init__(
        self,
        options: WorkerOptions,
        lease: Lease,
        outcomes: Outcomes,
        dispatcher: Dispatcher,
        promotion: Promotion,
        events_arrive: Callable[[], bool],
    ) -> None:
        self._queues = options.queues
        self._lease = lease
        self._outcomes = outcomes
        self._dispatcher = dispatcher
        self._promotion = promotion
        self._events_arrive = events_arrive
        self._claiming = Claiming(options.queues, options.shares)
        self._attempts = Attempts("claiming tasks")
        self.watchers: list[Callable[[float], None]] = []
        """What is to be called with the seconds that each claim has taken."""
        self._maybe_ready = True
        """Whether tasks may be ready, as an event or the last claim has told; else they are looked for by polls."""
        self._poll = Backoff(POLL_FIRST, POLL_LAST)
        self._next_poll = 0.0
        self._missed = Backoff(MISSED, POLL_LAST, 1.2)
        self._look_at = math.inf
        """When a source is due next, or a gate or a queue opens, as the last look has told; 0: that is asked soon."""

    def look(self) -> None:
        """Tasks may be ready, or scheduled anew; from any thread."""
        self._maybe_ready = True
        self._promotion.heard()

    def claim(self, session: Session) -> None:
        """Records what has ended and claims what there is room for, in one transaction where both are to be done."""
        if self._dispatcher.lets_next_in:
            self._maybe_ready, self._dispatcher.lets_next_in = True, False
        wanted = self._wanted(session)
        if not wanted and self._outcomes and not self._dispatcher.gathering:
            self._outcomes.record(session, self._lease.worker_id)
            wanted = self._wanted(session)
        if wanted:
            self._attempts.attempt(lambda: self._claim(session, wanted))

    def _wanted(self, session: Session) -> int:
        """Returns how many tasks to claim now: 0 while there is no reason to look, or enough to do."""
        wanted = self._wanted_soon()
        if wanted and not self._maybe_ready and not self._any_ready(session):
            self._poll_later()
            return 0
        return wanted

    def _wanted_soon(self) -> int:
        """Returns how many tasks to claim if any are ready. Does not ask the database."""
        now = clock.monotonic()
        if (not self._maybe_ready and now < self._next_poll) or now < self._attempts.until:
            return 0
        return self._allowed(self._dispatcher.wanted())

    def _allowed(self, room: int) -> int:
        """*room*, or what is left of it when each queue has a limit of its own here."""
        rooms = self._dispatcher.rooms()
        return room if len(rooms) < len(self._queues) else min(room, sum(max(0, own) for own in rooms.values()))

    def _any_ready(self, session: Session) -> bool:
        """Whether there is something to claim; looks as well when the next task or source is due."""
        rooms = self._dispatcher.rooms()
        look = tasks.any_ready(session, [each for each in self._queues if rooms.get(each, 1) > 0] or self._queues)
        self._promotion.expect(look.due)
        self._look_at = math.inf if look.again is None else clock.monotonic() + look.again
        return look.ready

    def _claim(self, session: Session, wanted: int) -> None:
        worker_id, rooms = self._lease.worker_id, self._dispatcher.rooms()
        anew = not self._maybe_ready  # a look from the beginning has found something: the claim begins there, too

        def claim(transaction: Transaction) -> Taken:
            return self._claiming.claim(transaction, worker_id, wanted, anew=anew, rooms=rooms)

        began = clock.monotonic()
        self._maybe_ready = False  # an event that comes while this claim looks has it look again
        taken = None
        try:
            taken = self._outcomes.exchange(session, worker_id, claim)
        finally:
            if taken is None:
                self._maybe_ready = True
        if taken is None:
            return
        claims, now = taken.claims, clock.monotonic()
        for watch in self.watchers:
            watch(now - began)
        self._claiming.committed(taken)
        self._dispatcher.limited = self._dispatcher.limited.difference(taken.asked) | taken.limited
        if claims.unseen or taken.hungry or (taken.idle and len(claims) >= wanted):
            self._maybe_ready = True
        if self._look_at <= now or any(claim.gated for claim in claims):
            self._look_at = 0.0  # they have taken tokens
        if claims or not claims.missed:
            self._missed.reset()
        if claims.missed:
            self._poll.reset()
            self._next_poll = now + self._missed.next()
        elif claims:
            self._poll.reset()
            self._next_poll = self._next_look(POLL_FIRST)
        elif self._dispatcher.has_limits and not anew:  # what has come may wait at a gate: a look tells how long
            self._poll.reset()
            self._next_poll = now
        else:
            self._poll_later()
        self._dispatcher.take(session, claims)

    def _poll_later(self) -> None:
        self._poll.last = POLL_WITH_EVENTS if self._events_arrive() else POLL_LAST
        self._next_poll = self._next_look(self._poll.next())

    def _next_look(self, pause: float) -> float:
        """The monotonic time of the next poll, after *pause*: sooner when something opens before."""
        now = clock.monotonic()
        return min(now + pause, max(now + OPENS, self._look_at))

    def claim_parked(self, session: Session, queue: str, name: str, most: int) -> Claims:
        """Claims up to *most* parked tasks of that name."""
        worker_id = self._lease.worker_id
        return self._outcomes.recorder.claim(session, lambda t: tasks.claim(t, worker_id, queue, most, name))

    def any_due(self, session: Session) -> bool:
        """Whether anything is left to claim now."""
        self._maybe_ready = self._any_ready(session)
        return self._maybe_ready

    def still_opens(self, session: Session) -> bool:
        """Whether what cannot be claimed now may become ready soon, so that a burst waits for it."""
        return tasks.still_opens(session, self._queues)

    @property
    def looks_again(self) -> bool:
        """Whether it is known that there may be something to claim."""
        return self._maybe_ready

    def deadline(self) -> float:
        """The monotonic time at which there is something to look for or to claim."""
        if self._maybe_ready and self._wanted_soon():
            return 0.0
        room = self._allowed(self._dispatcher.room()) > 0
        return max(self._next_poll, self._attempts.until) if room else math.inf


class Parked(Duty):
    """Claims what is parked and of a name that this worker knows, as far as there is room."""

    name = "claiming parked tasks"
    events = ("fbtasks:parked",)

    def __init__(
        self, queues: Collection[str], fetcher: Fetcher, dispatcher: Dispatcher, events_arrive: Callable[[], bool]
    ) -> None:
        self._queues = queues
        self._fetcher = fetcher
        self._dispatcher = dispatcher
        self._events_arrive = events_arrive
        self._found: list[tuple[str, str]] = []
        """Queue and name of what is to be claimed, as soon as there is room."""
        self._next = self._look_at = self._rest_until = 0.0

    def heard(self) -> None:
        """Something was parked a moment ago."""
        self._next = 0.0

    def beat(self, some: bool) -> None:
        """A heartbeat has told whether *some* tasks are parked."""
        if some:
            self._next = min(self._next, self._look_at)

    def due(self) -> float:
        """When its time comes."""
        if self._found and self._dispatcher.room() > 0 and self._with_room():
            return 0.0
        return max(self._next, self._rest_until)

    def pending(self) -> bool:
        """Whether some is left."""
        return bool(self._found)

    def do(self, session: Session) -> bool:
        """Does it, and sees when there is more to do."""
        dispatcher = self._dispatcher
        if max(self._next, self._rest_until) <= clock.monotonic():
            self._look(session)
        while (room := dispatcher.room()) > 0 and (found := self._with_room()):
            queue, name = found[0]
            room = min(room, dispatcher.rooms().get(queue, room))
            claims = self._fetcher.claim_parked(session, queue, name, room) if name in dispatcher.known else Claims()
            if not claims and not claims.unseen:
                self._found.remove((queue, name))
            dispatcher.take(session, claims)
            dispatcher.submit(session)
        return False

    def _look(self, session: Session) -> None:
        began, known = clock.monotonic(), self._dispatcher.known
        self._next = math.inf  # an event that comes meanwhile has it look again
        names = session.read("parked_names", self._dispatcher.features)
        self._found = [(queue, name) for queue, name in names if name in known and queue in self._queues]
        now = clock.monotonic()
        self._rest_until = now + max(PARKED_REST, PARKED_SHARE * (now - began))
        self._look_at = now + (PARKED_LOOK if self._events_arrive() else PARKED_WITHOUT_EVENTS)

    def _with_room(self) -> list[tuple[str, str]]:
        """Returns what was found in queues of which this worker may take more."""
        rooms = self._dispatcher.rooms() if self._found else {}
        return [each for each in self._found if rooms.get(each[0], 1) > 0]
