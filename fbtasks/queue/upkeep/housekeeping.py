"""Maintenance: a worker does it once a minute for all.

It cancels what expired, deletes what was kept long enough, and folds counters.
Each part works in small transactions and stops after a few of them. Where more is left, the next turn comes soon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.database import generations
from fbtasks.errors import ConflictError
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.queue.upkeep.collecting import Room
from fbtasks.states import State
from fbtasks.system.showing import count

logger = logging.getLogger(__name__)

BATCHES: Final = 5
"""Transactions that one part may use in one turn."""
PAUSE: Final = 60.0
"""Seconds from one turn to the next."""
PAUSE_WITH_MORE: Final = 1.0
"""The same, where more is left to do."""
HOUR: Final = 3600.0
"""Seconds after which it is looked whether there are counters to fold, and packages that are not in use any more."""


def release_orphans(session: Session, worker_id: int) -> int:
    """Gives back rows that say they run and whose worker is not registered. Returns how many.

    Those of *worker_id*, which calls this, stay its own: before its next heartbeat it does not know that it was taken
    for dead.
    """
    try:
        released: int = session.call("FBTASKS_WORKER.ORPHANS", worker_id, tasks.BATCH)
    except ConflictError as error:
        logger.warning("Tasks that no known worker holds are looked for again in a minute: %s", error)
        return 0
    if released:
        held, run = ("was", "it runs") if released == 1 else ("were", "they run")
        logger.warning("%s %s held by no worker that is known; %s again.", count(released, "task"), held, run)
    return released


def prune(session: Session, settings: Settings, batches: int = BATCHES) -> Iterator[int]:
    """Deletes results and failures older than the settings keep them.

    Returns after each transaction how many rows went in it, of which there are up to *batches* for each state.
    """
    kept = {
        State.SUCCEEDED: settings.result_expires,
        State.CANCELLED: settings.result_expires,
        State.FAILED: settings.failed_expires,
    }
    for state, age in kept.items():
        for _ in range(batches):
            yield (gone := session.run(partial(tasks.prune, state=state, age=age)))
            if gone < tasks.BATCH:
                break


def _unless_blocked(part: Callable[[Session], bool], session: Session) -> bool:
    """Does one part, unless another transaction holds a row that it would change. Whether there is more to do."""
    try:
        return part(session)
    except ConflictError as error:
        logger.warning("What is kept is looked through again in a minute: another transaction is in the way: %s", error)
        return False


class Housekeeping:
    """The turns of one worker."""

    def __init__(self, settings: Settings, hook: str | None = None) -> None:
        """*hook*: the task that calls the on_failure hooks of the app, where it has any."""
        self._settings = settings
        self._hook = hook
        self.room = Room()
        """Has the room of what is deleted used again."""
        self._looked_up_to = 0
        """The id of the task up to which the last turn looked for expired ones."""
        self.next_hour = clock.within(HOUR)
        """The monotonic time of what is done once an hour: first at a random moment, so that no start waits for it."""

    def turn(self, session: Session) -> float:
        """Does all of it. Returns the seconds after which the next turn is to come."""
        parts = self._expire, self._prune, self._give_up, self._hourly
        more = [_unless_blocked(part, session) for part in parts]
        return PAUSE_WITH_MORE if any(more) else PAUSE

    def _prune(self, session: Session) -> bool:
        pruned = sum(prune(session, self._settings))
        self.room.want(pruned)
        return pruned >= BATCHES * tasks.BATCH

    def _give_up(self, session: Session) -> bool:
        given_up = session.run(lambda t: tasks.fail_parked(t, self._settings.unknown_task_timeout, self._hook))
        return len(given_up) >= tasks.BATCH

    def _expire(self, session: Session) -> bool:
        """Cancels expired tasks among the next few thousand. Whether it found so many that more are to be expected."""
        total, full = 0, False
        for _ in range(BATCHES):
            after = self._looked_up_to
            expired, last = session.run(lambda t: tasks.expire(t, after))  # noqa: B023
            total, full = total + expired, expired >= tasks.BATCH
            self._looked_up_to = last or 0
            if last is None:
                break
        if total:
            what = "had expired and is cancelled" if total == 1 else "had expired and are cancelled"
            logger.info("%s %s.", count(total, "task"), what)
        return full

    def _hourly(self, session: Session) -> bool:
        """Folds old counters and drops the packages of a former release, once an hour. Whether there may be more."""
        if clock.monotonic() < self.next_hour:
            return False
        if _fold(session):
            return True
        generations.drop_former(session)
        self.next_hour = clock.monotonic() + HOUR
        return False


def _fold(session: Session) -> bool:
    """Folds old counters. Whether there may be more."""
    for _ in range(BATCHES):
        try:
            folded = session.call("FBTASKS_WORKER.FOLD_STATS", results.STAT_DAYS, tasks.BATCH, attempts=1)
        except ConflictError:  # another worker folds the same rows
            return False
        if folded < tasks.BATCH:
            return False
    return True
