"""When a worker claims what is ready in its queues, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fbtasks import timing as clock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import tasks
from fbtasks.queue.shares import Share
from fbtasks.tasks.call import Claims
from fbtasks.timing import Backoff
from fbtasks.worker.claiming import Claiming, Taken
from fbtasks.worker.dispatcher import Dispatcher
from fbtasks.worker.duties import Attempts, Promotion
from fbtasks.worker.lease import Lease
from fbtasks.worker.outcomes import Outcomes

POLL_FIRST: Final = 0.05
POLL_LAST: Final = 1.0
POLL_WITH_EVENTS: Final = 15.0
"""Seconds between polls while events are known to arrive."""
OPENS: Final = 0.01
"""Seconds between two claims at least while it is known when something opens: a rate has its next token, say."""
MISSED: Final = 0.02
"""Seconds until a worker looks again at sources that another one was giving out."""
MISSES: Final = 10
"""After so many of these looks in a row, which found nothing, each pause is twice as long, up to that between polls."""


class Fetcher:
    """Claims tasks for the hand-out."""

    def __init__(
        self,
        queues: tuple[str, ...],
        shares: Mapping[str, Share],
        lease: Lease,
        outcomes: Outcomes,
        dispatcher: Dispatcher,
        promotion: Promotion,
        events_arrive: Callable[[], bool],
    ) -> None:
        self._queues = queues
        self._lease = lease
        self._outcomes = outcomes
        self._dispatcher = dispatcher
        self._promotion = promotion
        self._events_arrive = events_arrive
        self._claiming = Claiming(queues, shares)
        self._full: frozenset[str] = frozenset()
        """The queues of which this worker held as many tasks as it may when it claimed, or looked, last."""
        self._attempts = Attempts("claiming tasks")
        self._maybe_ready = True
        """Whether tasks may be ready, as an event or the last claim has told; else they are looked for by polls."""
        self._anew = False
        """Whether a look from the beginning has found something: then the claim begins there, too."""
        self._poll = Backoff(POLL_FIRST, POLL_LAST)
        self._next_poll = 0.0
        self._misses = 0
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
        if self._full and any(self._dispatcher.rooms()[queue] > 0 for queue in self._full):
            self._maybe_ready, self._full = True, frozenset()
        wanted = self._wanted(session)
        if not wanted and self._outcomes and not self._dispatcher.gathering:
            self._outcomes.record(session, self._lease.worker_id)
            wanted = self._wanted(session)
        if wanted:
            self._attempts.attempt(lambda: self._claim(session, wanted))

    def _wanted(self, session: Session) -> int:
        """How many tasks to claim now: 0 while there is no reason to look, or enough to do."""
        wanted = self._wanted_soon()
        if wanted and not self._maybe_ready and not self._any_ready(session):
            self._poll_later()
            return 0
        self._anew = bool(wanted) and not self._maybe_ready
        return wanted

    def _wanted_soon(self) -> int:
        """The same, without a look whether there are any."""
        now = clock.monotonic()
        if (not self._maybe_ready and now < self._next_poll) or now < self._attempts.until:
            return 0
        return self._allowed(self._dispatcher.wanted())

    def _allowed(self, room: int) -> int:
        """*room*, or what is left of it when each queue has a limit of its own here."""
        rooms = self._dispatcher.rooms()
        return room if len(rooms) < len(self._queues) else min(room, sum(max(0, own) for own in rooms.values()))

    def _open_queues(self) -> Sequence[str]:
        """The queues of which this worker may take more; all of them when there is none."""
        self._note_full()
        return [queue for queue in self._queues if queue not in self._full] or self._queues

    def _note_full(self) -> None:
        self._full = frozenset(queue for queue, room in self._dispatcher.rooms().items() if room <= 0)

    def _any_ready(self, session: Session) -> bool:
        """Whether there is something to claim; looks as well when the next task or source is due."""
        look = tasks.any_ready(session, self._open_queues())
        self._promotion.expect(look.due)
        self._look_at = math.inf if look.again is None else clock.monotonic() + look.again
        return look.ready

    def _claim(self, session: Session, wanted: int) -> None:
        worker_id = self._lease.worker_id
        rooms = self._dispatcher.rooms()

        def claim(transaction: Transaction) -> Taken:
            return self._claiming.claim(transaction, worker_id, wanted, anew=self._anew, rooms=rooms)

        self._maybe_ready = False  # an event that comes while this claim looks has it look again
        taken = None
        try:
            taken = self._outcomes.exchange(session, worker_id, claim)
        finally:
            if taken is None:
                self._maybe_ready = True
        if taken is not None:
            self._claimed(taken, wanted)

    def _claimed(self, taken: Taken, wanted: int) -> None:
        self._claiming.committed(taken)
        self._dispatcher.limited = self._dispatcher.limited.difference(taken.marks).union(taken.limited)
        claims = taken.claims
        full_of_idle_work = bool(taken.idle) and len(claims) >= wanted
        if full_of_idle_work or claims.unseen or taken.hungry:
            self._maybe_ready = True
        if self._look_at <= clock.monotonic() or any(claim.gated for claim in claims):
            self._look_at = 0.0  # they have taken tokens
        if claims or claims.missed:
            self._poll.reset()
            self._next_poll = self._next_look(POLL_FIRST)
        elif self._dispatcher.has_limits and not self._anew:  # what has come may wait at a gate: a look tells how long
            self._poll.reset()
            self._next_poll = clock.monotonic()
        else:
            self._poll_later()
        if claims.missed:
            self._next_poll = clock.monotonic() + self._missed
        self._misses = self._misses + 1 if claims.missed and not claims else 0
        self._dispatcher.take(claims)
        self._note_full()

    @property
    def _missed(self) -> float:
        """Seconds until sources are looked at again that another transaction was at."""
        doublings = min(max(0, self._misses - MISSES), 10)
        return float(min(MISSED * 2**doublings, POLL_LAST))

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
        """Whether something that cannot be claimed now may become ready by itself."""
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
