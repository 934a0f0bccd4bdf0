"""Whose turn it is: how the room of a worker is dealt to its queues, in proportion to their weights.

Stride scheduling (Waldspurger and Weihl, 1995): each queue has a pass, which grows by 1 / weight with each task that it
is dealt, and the next is for the queue whose pass would be the lowest. So after any number of claims no queue that
always has ready tasks is further from its proportion than one task of each queue.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from fbtasks.queue.shares import Share


class Turns:
    """Deals room to queues. Used by one thread at a time."""

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
        """To be told what was *dealt*, which queues of it may have more, and which could not be dealt any.

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
