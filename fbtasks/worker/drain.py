"""Drains a worker: it claims nothing more, and waits for running tasks until its grace is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.migrate import latest_version
from fbtasks.errors import DatabaseReplaced
from fbtasks.states import State
from fbtasks.system.showing import count
from fbtasks.tasks.call import Claim

logger = logging.getLogger("fbtasks.worker")
BURST_SAYS: Final = 2.0
"""Seconds for which a burst waits before it says so."""
LOCKED: Final = (
    "cannot be claimed while other transactions have it locked. The worker ends when they have ended and it is done."
)
_NAMED: Final = 5
"""Running tasks that the log names while the worker waits for them, and names of parked ones."""
OPENS: Final = "waits for limits, or for tasks that others run. The worker ends when it is done."
_LEFT: Final = {
    State.READY: ("is ready, and not claimed now", "are ready, and not claimed now"),
    State.HELD: ("waits for a limit", "wait for limits"),
    State.AWAITING: ("waits for tasks that come before it", "wait for tasks that come before them"),
}


class Burst:
    """Logs for a worker with ``--burst`` why it still waits, and which tasks it leaves."""

    def __init__(self) -> None:
        self._since: float | None = None
        """Since when, on the monotonic clock; None: it works."""
        self._said = False

    def works(self) -> None:
        """Takes note that something runs or is to be recorded."""
        self._since = None
        self._said = False

    def waits(self, why: str, left: Callable[[], Iterable[tuple[str, int, int]]]) -> None:
        """Takes note that nothing runs and something is left.

        Says so, once, when it stays like that: *why*, and what is *left*, by queue and state.
        """
        now = clock.monotonic()
        self._since = now if self._since is None else self._since
        if not self._said and now - self._since >= BURST_SAYS:
            self._said = True
            logger.warning("What is left in the queues %s %s", why, " ".join(map(_left, left())))

    @staticmethod
    def leaves(left: Iterable[tuple[str, int, int]], parked: Mapping[str, int]) -> None:
        """Says what is *left*, by queue and state: nothing that this worker can wait for; and what it has *parked*."""
        for each in left:
            logger.info("%s", _left(each))
        if parked:
            named = [f"{count(many, 'task')} named {name!r}" for name, many in parked.items()]
            more = [f"those of {count(len(named) - _NAMED, 'other name')}"] if named[_NAMED:] else []
            logger.warning("Left parked: %s. See: fbtasks inspect parked", ", ".join(named[:_NAMED] + more))


def _left(left: tuple[str, int, int]) -> str:
    queue, state, many = left
    return f"Left in queue {queue}: {count(many, 'task')} {_LEFT[State(state)][many > 1]}."


class Drain:
    """Whether the worker is to end."""

    def __init__(self, grace: float, when_begun: Callable[[], None]) -> None:
        """*grace*: seconds that running tasks have to end in."""
        self._grace = grace
        self._when_begun = when_begun
        self.begun = False
        """Whether the worker is to end, and claims nothing more."""
        self.deadline = math.inf
        """The monotonic time at which the grace is over."""
        self._said_waiting = False
        self.at_once = False
        """Whether the worker is to end now, whatever runs."""
        self.outdated = False
        """Whether the schema was migrated beneath this worker, so that it is to start afresh."""
        self.replaced: DatabaseReplaced | None = None
        """Why the worker leaves, when the database was replaced or restored, or its file deleted."""

    def begin(self, *, outdated: bool = False) -> None:
        """Ends the worker when the running tasks have ended or the grace is over; from any thread."""
        self.outdated = outdated
        self._said_waiting = False
        self.deadline = clock.monotonic() + self._grace
        self.begun = True
        self._when_begun()

    @property
    def over(self) -> bool:
        """Whether what runs is not waited for any longer."""
        return self.at_once or clock.monotonic() > self.deadline

    def say_waiting(self, running: Collection[Claim], duties: Collection[str] = ()) -> None:
        """Says, once, that the worker ends when *running* and *duties* have ended, and how long it waits for that."""
        if self._said_waiting or not (running or duties):
            return
        self._said_waiting = True
        what = [*(f"task {claim.label}" for claim in list(running)[:_NAMED]), *duties]
        if len(running) > _NAMED:
            what.insert(_NAMED, f"{len(running) - _NAMED} more")
        them = "it" if len(what) == 1 else "them"
        said = " and ".join([", ".join(what[:-1]), what[-1]] if what[:-1] else what)
        logger.info("Waiting up to %g s for %s; a second signal stops %s.", self._grace, said, them)

    def look_at_schema(self, version: int, *, anew: bool) -> None:
        """Begins when the schema, of *version* now, is not the one that this worker works with, or was made *anew*."""
        ours = latest_version()
        if self.begun or (version == ours and not anew):
            return
        if version == ours:
            logger.warning("The packages of the queue were made anew: this worker drains and starts afresh.")
        else:
            logger.warning(
                "The schema has version %d now, and this worker works with %d: it drains and starts afresh.",
                version,
                ours,
            )
        self.begin(outdated=True)

    def leave_database(self, error: DatabaseReplaced) -> None:
        """Begins since the worker's connections are to a database that no new connection finds."""
        if self.replaced is not None:
            return
        self.replaced = error
        logger.critical(
            "%s This worker claims nothing more, and leaves when its running tasks have ended, in %g s at the latest. "
            "How they end is recorded in the old database alone, if that still answers.",
            error,
            self._grace,
        )
        if not self.begun:
            self.begin()
