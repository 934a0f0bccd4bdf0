"""Ticks the schedules that are due: every worker looks at them, and one does each tick."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.values import as_naive_utc
from fbtasks.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    EnqueueError,
    QueueFull,
    StatementRefused,
)
from fbtasks.feature import Duty
from fbtasks.features.schedules import store as schedules
from fbtasks.features.schedules.store import Active, Done
from fbtasks.features.schedules.ticking import Turn, turn
from fbtasks.firebird.session import Session, Transaction
from fbtasks.system.showing import command_line
from fbtasks.timing import Backoff

logger = logging.getLogger("fbtasks.worker")
BATCH: Final = 100
"""Missed ticks that are made up for in one transaction."""
TURN: Final = 100
"""Schedules that tick before the worker does what else there is to do."""
HELD_FIRST: Final = 0.05
HELD_LAST: Final = 5.0
"""Seconds until one is looked at again that another transaction held: twice as many each time, up to the latter."""
FULL: Final = 5.0
"""Seconds until one is looked at again whose queue is full."""
POLL: Final = 1.0
POLL_WITH_EVENTS: Final = 60.0
"""Seconds until schedules are looked at anew, whatever was said about the next tick: one may have been changed."""
CANNOT: Final = 60.0
"""Seconds until one is looked at again whose zone this machine does not know, or that this worker may not have tick."""


class Ticks(Duty):
    """The schedules of the database, as this worker has them tick."""

    name = "looking for schedules that are to tick"
    events = ("fbtasks:schedules",)

    def __init__(self, events_arrive: Callable[[], bool]) -> None:
        self._events_arrive = events_arrive
        self._next_tick = math.inf
        """The monotonic time of the next tick that this worker knows of."""
        self._next_poll = 0.0
        """When to look whether that is so still."""
        self._looked = 0.0
        """When schedules were read the last time, on the monotonic clock."""
        self._held = Backoff(HELD_FIRST, HELD_LAST)
        self._left: dict[int, float] = {}
        """Until when schedules that are due are left to others, by their ids."""
        self._full: set[int] = set()
        """Those whose queue was full when they were looked at last."""
        self._enqueued = 0
        """How many tasks were enqueued this time."""

    def heard(self) -> None:
        """Makes it look again soon."""
        self._next_poll = 0.0

    def due(self) -> float:
        """Returns when its time comes."""
        return min(self._next_tick, self._next_poll)

    def do(self, session: Session) -> bool:
        """Ticks some of those that are due. Returns whether tasks were enqueued."""
        # An event that comes while this looks has it look again.
        self._next_poll = clock.monotonic() + (POLL_WITH_EVENTS if self._events_arrive() else POLL)
        most = TURN + len(self._left)  # what is left to others is not to be all that is found
        found, now = schedules.due(session, most)
        self._looked = clock.monotonic()
        if now is None:
            self._next_tick = math.inf
            return False
        due = [each for each in found if each.next <= now]
        ids = {each.id for each in due}
        self._left = {id: until for id, until in self._left.items() if id in ids}
        random.shuffle(due)  # of several workers each begins with another one
        waits = [(each.next - now).total_seconds() for each in found if each.next > now]
        if len(due) == most:
            waits.append(0.0)  # there may be more
        self._enqueued = 0
        waits += [self._tick(session, each, now) for each in due]
        self._next_tick = self._looked + max(0.0, min(waits, default=math.inf))
        return self._enqueued > 0

    def _tick(self, session: Session, schedule: Active, now: datetime) -> float:
        """Ticks one. Returns the seconds until it is due next."""
        if (wait := self._left.pop(schedule.id, 0.0) - self._looked) > 0:
            return self._leave(schedule, wait)
        try:
            found = turn(schedule.timing, schedule.missed, schedule.next, now)
        except ConfigurationError as error:
            return self._cannot(schedule, error)
        except Exception as error:  # noqa: BLE001  # what was written into the table by hand may be no expression
            return self._fail(session, schedule, f"its next tick cannot be told: {type(error).__name__}: {error}")
        return self._do(session, schedule, found, now)

    def _do(self, session: Session, schedule: Active, found: Turn, now: datetime) -> float:
        try:
            done = session.run(lambda transaction: _enqueue(transaction, schedule, found), point="tick", attempts=1)
        except ConflictError:
            done = Done.HELD
        except AuthenticationError as error:
            return self._cannot(schedule, error)
        except (EnqueueError, StatementRefused) as error:
            if len(found.ticks) > 1:  # a queue may have room for some of them
                return self._do(session, schedule, Turn(found.ticks[:1], found.ticks[1], left_out=False), now)
            if isinstance(error, QueueFull):
                return self._is_full(schedule, error)
            return self._fail(session, schedule, str(error))
        if done is Done.HELD:
            return self._leave(schedule, self._held.next())
        self._held.reset()
        self._full.discard(schedule.id)
        if done is Done.DONE:
            self._enqueued += min(len(found.ticks), BATCH)
            if found.left_out:
                logger.warning(
                    "The schedule %s missed ticks since %s: %d %s enqueued for them, as its missed=%r says.",
                    schedule.name, schedule.next, len(found.ticks),
                    "task is" if len(found.ticks) == 1 else "tasks are", schedule.missed,
                )  # fmt: skip
        if len(found.ticks) > BATCH:
            return 0.0
        return math.inf if found.next is None else (found.next - now).total_seconds()

    def _fail(self, session: Session, schedule: Active, error: str) -> float:
        """Stops a schedule. Returns the seconds until it is due next."""
        try:
            tick = schedule.id, schedule.version, as_naive_utc(schedule.next)
            failed = session.call("FBTASKS_SCHEDULES.FAIL_TICK", *tick, error[:1000])  # 0: it was changed meanwhile
        except ConflictError:
            return HELD_LAST
        if failed:
            logger.error(
                "The schedule %s stands still: %s. When that is put right, run: %s",
                schedule.name,
                error.rstrip("."),
                command_line("fbtasks schedules resume {}", schedule.name),
            )
        return math.inf if failed else 0.0

    def _cannot(self, schedule: Active, error: Exception) -> float:
        logger.warning("The schedule %s is left to other workers: %s", schedule.name, error)
        return self._leave(schedule, CANNOT)

    def _is_full(self, schedule: Active, error: QueueFull) -> float:
        if schedule.id not in self._full:
            logger.warning("The schedule %s waits until there is room for its task: %s", schedule.name, error)
            self._full.add(schedule.id)
        return self._leave(schedule, FULL)

    def _leave(self, schedule: Active, seconds: float) -> float:
        self._left[schedule.id] = self._looked + seconds
        return seconds


def _enqueue(transaction: Transaction, schedule: Active, found: Turn) -> Done:
    """Enqueues the tasks of up to :data:`BATCH` ticks, and moves on."""
    ticks = found.ticks[:BATCH]
    following = found.ticks[BATCH] if len(found.ticks) > BATCH else found.next
    if not ticks:
        return schedules.tick(transaction, schedule, schedule.next, None, found.next)
    at = schedule.next
    for tick, next in pairwise([*ticks, following]):
        assert tick is not None  # the last alone may be
        done = schedules.tick(transaction, schedule, at, tick, next)
        if done is not Done.DONE:
            return done
        at = next if next is not None else tick
    return Done.DONE
