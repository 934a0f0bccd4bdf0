"""Parked tasks, whose name a worker did not know: when to look for names that this one knows, and what its log says."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from typing import Final

from fbtasks import timing as clock
from fbtasks.feature import Duty
from fbtasks.firebird.session import Session
from fbtasks.tasks.call import Claims
from fbtasks.worker.dispatcher import Dispatcher
from fbtasks.worker.fetcher import Fetcher

logger = logging.getLogger("fbtasks.worker")
LOOK: Final = 60.0
"""Seconds between two looks while something is parked and events are known to arrive."""
LOOK_WITHOUT_EVENTS: Final = 10.0
REST: Final = 1.0
"""Seconds between two looks at least, whatever events come."""
SHARE: Final = 50
"""A look reads all that is parked: the next comes no sooner than after so many times as long as it took."""


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
        self._rest_until = now + max(REST, SHARE * (now - began))
        self._look_at = now + (LOOK if self._events_arrive() else LOOK_WITHOUT_EVENTS)

    def _with_room(self) -> list[tuple[str, str]]:
        """What was found in queues of which this worker may take more."""
        rooms = self._dispatcher.rooms() if self._found else {}
        return [each for each in self._found if rooms.get(each[0], 1) > 0]
