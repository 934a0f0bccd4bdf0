"""Parked tasks, whose name a worker did not know: when to look for names that this one knows, and what its log says."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from fbtasks import timing as clock

logger = logging.getLogger("fbtasks.worker")
LOOK: Final = 60.0
"""Seconds between two looks while something is parked and events are known to arrive."""
LOOK_WITHOUT_EVENTS: Final = 10.0
REST: Final = 1.0
"""Seconds between two looks at least, whatever events come."""
SHARE: Final = 50
"""A look reads all that is parked: the next comes no sooner than after so many times as long as it took."""
SAY: Final = 60.0
"""Seconds between two lines of the log about one name."""


class ParkedNames:
    """The queues and names of parked tasks that this worker is to take, and when to look for more."""

    def __init__(self) -> None:
        self.found: deque[tuple[str, str]] = deque()
        """Queue and name of what is to be claimed, as soon as there is room."""
        self._some = False
        self._hinted = True
        self._rest_until = self._next = 0.0

    def hint(self) -> None:
        """Something was parked a moment ago; from any thread."""
        self._hinted = True

    def beat(self, some: bool) -> None:
        """A heartbeat has told whether *some* tasks are parked."""
        self._some = some

    @property
    def next_look(self) -> float | None:
        """The monotonic time at which to look, while an event asks for it."""
        return self._rest_until if self._hinted else None

    def due(self) -> bool:
        """Whether it is time to look."""
        now = clock.monotonic()
        return now >= self._rest_until and (self._hinted or (self._some and now >= self._next))

    def begin(self) -> float:
        """The worker looks now: an event that comes meanwhile has it look again. Returns the monotonic time."""
        self._hinted = False
        return clock.monotonic()

    def looked(self, since: float, found: Iterable[tuple[str, str]], *, events: bool) -> None:
        """It has found *found* since the monotonic time *since*. *events* tells whether events are known to arrive."""
        self.found = deque(found)
        now = clock.monotonic()
        self._rest_until = now + max(REST, SHARE * (now - since))
        self._next = now + (LOOK if events else LOOK_WITHOUT_EVENTS)


class UnknownNames:
    """Says in the log which names this worker met and does not know: one line for each name and minute.

    The same of features that tasks need and the worker lacks.
    """

    def __init__(self) -> None:
        self._met: Counter[tuple[str, str]] = Counter()
        self._quiet_until: dict[tuple[str, str], float] = {}

    def meet(self, name: str, feature: str = "") -> None:
        """A task of that name is parked, because of the *feature* that is lacking, or else of its name."""
        self._met[name, feature] += 1

    @property
    def next_line(self) -> float | None:
        """The monotonic time at which something is to be said."""
        return min((self._quiet_until.get(met, 0.0) for met in self._met), default=None)

    def say(self, *, at_once: bool = False) -> None:
        """Says what is due, or *at_once* all that has not been said."""
        if not self._met:
            return
        now = clock.monotonic()
        self._quiet_until = {met: until for met, until in self._quiet_until.items() if until > now}
        for met in [met for met in self._met if at_once or met not in self._quiet_until]:
            count = self._met.pop(met)
            self._quiet_until[met] = now + SAY
            logger.error(
                "%d %s named %r %s parked: this worker %s.",
                count,
                "task" if count == 1 else "tasks",
                met[0],
                "is" if count == 1 else "are",
                f"has no feature {met[1]}, which it needs. Start a worker of an app that has it"
                if met[1]
                else "knows no task of that name. Start a worker that imports it",
            )
