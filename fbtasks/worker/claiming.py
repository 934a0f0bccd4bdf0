"""Chooses the queues of the next claim, and remembers how far each was read."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.firebird.session import Transaction
from fbtasks.queue import tasks
from fbtasks.queue.codec import Ends
from fbtasks.queue.shares import Share
from fbtasks.tasks.call import Claim, Claims, batch_of

LOOK_BACK: Final = 1.0
"""Seconds after which a claim looks for tasks that have come to be before those that were claimed last."""


PRIORITIES: Final = 16
"""Of so many priorities of a queue it is known how far they were read."""


class Marks(NamedTuple):
    """How far a queue was read since it was read from its beginning."""

    ends: Ends = MappingProxyType({})
    until: float = 0.0
    """Until when to go on from there."""
    known: frozenset[int] = frozenset()
    """The priorities that tasks were claimed of. Another one has no mark, though it may have been read to its end."""

    def moved(self, claims: Claims, most: int) -> Marks:
        """Returns the marks after a claim of up to *most* tasks, which has read all before its last one."""
        if claims.let_in:  # it has read nothing of the queue, or no more than other transactions hold
            return self
        known = self.known
        found = {claim.priority for claim in claims}
        if not found <= known:
            known = frozenset(found | known if len(found | known) <= PRIORITIES else sorted(found)[-PRIORITIES:])
        if len(claims) < most:
            return Marks({}, self.until, known)
        last = claims[-1]
        ends: dict[int, tuple[int, int] | None] = {last.priority: (last.start, last.id)}
        if len(known) > 1:
            ends |= {each: None for each in known if each > last.priority}
            ends |= {each: end for each, end in self.ends.items() if each < last.priority}
        return Marks(ends, self.until, known)


NO_MARKS: Final = Marks()


@dataclass(slots=True)
class Taken:
    """The claims of one transaction that is not committed yet."""

    claims: Claims = field(default_factory=Claims)
    idle: list[str] = field(default_factory=list)
    """The queues in which nothing is left but idle work."""
    asked: dict[str, int] = field(default_factory=dict)
    """The queues that were asked, each with the number of tasks that is counted as its turn."""
    hungry: set[str] = field(default_factory=set)
    """Those of them that may have more than their share."""
    without_room: set[str] = field(default_factory=set)
    """The queues of which this worker holds as many tasks as it may."""
    limited: set[str] = field(default_factory=set)
    """The queues whose limit had no room for more."""
    marks: dict[str, Marks] = field(default_factory=dict)

    def take(self, claims: Claims) -> None:
        """Adds those of one queue."""
        self.claims += claims
        self.claims.unseen |= claims.unseen
        self.claims.missed |= claims.missed


class Turns:
    """Deals the room of a worker to its queues, in proportion to their weights. Used by one thread at a time.

    Stride scheduling (Waldspurger and Weihl, 1995): each queue has a pass, which grows by 1 / weight with each task
    that it is dealt, and the next is for the queue whose pass would be the lowest. So after any number of claims no
    queue that always has ready tasks is further from its proportion than one task of each queue.
    """

    def __init__(self, queues: Sequence[str], shares: Mapping[str, Share]) -> None:
        weights = {queue: shares.get(queue, Share()).weight for queue in queues}
        whole = math.lcm(*weights.values())
        self._strides = {queue: whole // weight for queue, weight in weights.items()}
        self._passes = dict.fromkeys(queues, 0)
        self._sated: frozenset[str] = frozenset()
        """The queues that have left some of what they were dealt last."""

    def deal(self, queues: Sequence[str], room: int, rooms: Mapping[str, int]) -> list[tuple[str, int]]:
        """Deals *room* tasks to *queues*, to none more than *rooms* says for it. Returns those that got any.

        First come those that had less than that the last time: what they leave can be dealt to the others.
        """
        if len(queues) == 1:
            most = min(room, rooms.get(queues[0], room))
            return [(queues[0], most)] if most > 0 else []
        dealt = dict.fromkeys(queues, 0)
        nexts = [
            (self._passes[queue] + self._strides[queue], nth, queue)
            for nth, queue in enumerate(queues)
            if rooms.get(queue, room) > 0
        ]
        heapify(nexts)
        for _ in range(room):
            if not nexts:
                break
            its_pass, nth, queue = nexts[0]
            dealt[queue] += 1
            if dealt[queue] < rooms.get(queue, room):
                heapreplace(nexts, (its_pass + self._strides[queue], nth, queue))
            else:
                heappop(nexts)
        return sorted(((queue, most) for queue, most in dealt.items() if most), key=lambda x: x[0] not in self._sated)

    def used(self, dealt: Mapping[str, int], hungry: Collection[str], without_room: Collection[str]) -> None:
        """Charges the queues for their *dealt* tasks. *hungry* ones may have more; those *without_room* got none.

        A queue that does not use its turn keeps no claim to it: else it would be the only one to be asked when it has
        much to do again.
        """
        if len(self._passes) == 1:
            return
        for queue, most in dealt.items():
            self._passes[queue] += most * self._strides[queue]
        sated = {*dealt, *without_room}.difference(hungry)
        if hungry:
            floor = min(self._passes[queue] for queue in hungry)
            self._passes.update({queue: max(self._passes[queue], floor) for queue in sated})
        least = min(self._passes.values())
        self._passes = {queue: its_pass - least for queue, its_pass in self._passes.items()}
        self._sated = frozenset(sated)


class Claiming:
    """Claims from a worker's queues in turn. Used by one thread at a time."""

    def __init__(self, queues: Sequence[str], shares: Mapping[str, Share] = MappingProxyType({})) -> None:
        self._queues = queues
        self._turns = Turns(queues, shares)
        self._marks: dict[str, Marks] = {}

    def claim(
        self,
        transaction: Transaction,
        worker_id: int,
        room: int,
        *,
        anew: bool = False,
        rooms: Mapping[str, int] = MappingProxyType({}),
    ) -> Taken:
        """Up to *room* tasks, and of a queue no more than *rooms* says; each queue has its share of what room is left.

        With *anew* not only behind what was claimed last. Idle work is claimed when nothing else is left in any of the
        queues, as far as there is room then. Changes nothing here: a transaction that meets a conflict is
        rolled back and run again. When it is committed, :meth:`committed` is told.
        """
        taken = Taken(without_room={queue for queue, own in rooms.items() if own <= 0})
        now, to_ask = clock.monotonic(), list(self._queues)
        dealt = self._turns.deal(to_ask, room, rooms)
        while dealt:
            queue, most = dealt.pop(0)
            to_ask.remove(queue)
            marks = self._marks.get(queue, NO_MARKS)
            begins = anew or now > marks.until
            if begins:
                marks = Marks(until=now + LOOK_BACK, known=marks.known)
            claims = tasks.claim(transaction, worker_id, queue, most, ends=marks.ends, from_start=begins, idle=False)
            taken.take(claims)
            taken.asked[queue] = len(claims) if claims.unseen else most
            taken.marks[queue] = marks.moved(claims, most)
            taken.idle += [queue] if claims.idles else []
            taken.limited |= {queue} if claims.limited else set()
            is_full = len(claims) >= most  # a batch is more than one
            if most == rooms.get(queue):
                taken.without_room |= {queue} if is_full else set()
            elif is_full or claims.unseen:
                taken.hungry.add(queue)
            if len(claims) < most and to_ask:
                dealt = self._turns.deal(to_ask, room - len(taken.claims), rooms)
        for queue in [] if taken.hungry else taken.idle:
            own = rooms.get(queue, room) - sum(claim.queue == queue for claim in taken.claims)
            if (most := min(own, room - len(taken.claims))) > 0:
                taken.take(tasks.claim(transaction, worker_id, queue, most, from_start=False))
        return taken

    def committed(self, taken: Taken) -> None:
        """Goes on behind what was *taken*, with the queues whose turn is next."""
        self._turns.used(taken.asked, taken.hungry, taken.without_room)
        self._marks.update(taken.marks)


def in_batches(claims: Sequence[Claim], sizes: Mapping[str, int]) -> list[Claim]:
    """*claims*, those of the tasks of *sizes* put together into batches of up to so many.

    A suspect is in one by itself. What was not held back, as the calls of such a task are to be, is left as it is.
    """
    found: list[Claim | list[Claim]] = []
    filling: dict[str, list[Claim]] = {}
    for claim in claims:
        size = sizes.get(claim.name)
        if size is None or not claim.gated:
            found.append(claim)
            continue
        batch = filling.get(claim.name)
        if batch is None or claim.suspect or len(batch) >= size:
            batch = filling[claim.name] = []
            found.append(batch)
        batch.append(claim)
        if claim.suspect:
            del filling[claim.name]
    return [batch_of(each) if isinstance(each, list) else each for each in found]
