"""Lets the engine collect the garbage of deleted rows.

A deleted row, and its BLOB, stays in the file until somebody reads it after the last transaction that may still see
it has ended. What is deleted by its key is read by nobody: a payload, a result, an id that a caller gave. So the tables
are read through when rows were deleted from them, in rounds of small transactions.

A round does not begin before all transactions have ended that ran when the last one began: so no row is read in vain
again and again while a long transaction keeps it, such as that of a backup. A few rows are read for each that was
deleted, so that this costs in proportion, and what is not collected yet is a part of what lives.
"""

from __future__ import annotations

import math
from typing import Final

from fbtasks import timing as clock
from fbtasks.firebird.session import Session, database_info
from fbtasks.timing import Backoff

READS: Final = 2_000
"""Rows of each table that are read in one transaction at the most."""
EACH: Final = 4
"""Rows of each table that are read for one that was deleted."""
FEWEST: Final = 50
"""Rows of each table that are read in one step at the least: it costs as much to begin a transaction."""
REST: Final = 0.02
"""Seconds between two steps."""
LAST: Final = 60.0
"""Seconds until it is looked again whether a round may begin: twice as many each time, up to these."""


class Room:
    """The rounds of one process. Used by one thread."""

    def __init__(self) -> None:
        self.next_turn = math.inf
        """The monotonic time at which there is something to do."""
        self._deleted = 0
        """Rows for which nothing has been read yet."""
        self._positions: bytes | None = None
        """How far the round under way has come; None: there is none."""
        self._begun_at = 0
        """The number of the transaction at which the last round began."""
        self._rested_at = 0.0
        """The monotonic time from which on the next step may be taken."""
        self._rests = Backoff(2 * REST, LAST)

    def want(self, deleted: int) -> None:
        """So many rows were deleted."""
        if deleted and not self._deleted:
            self.next_turn = self._rested_at
        self._deleted += deleted

    def turn(self, session: Session) -> None:
        """Takes the next step when it is time."""
        now = clock.monotonic()
        if now < self.next_turn:
            return
        self.next_turn = now + LAST  # unless this turn comes to its end
        begins = self._positions is None
        if begins and not self._begin(session):
            self.next_turn = now + self._rests.next()
            return
        reads = min(READS, max(FEWEST, EACH * self._deleted))
        self._positions = session.call("FBTASKS_WORKER.COLLECT", self._positions, reads)
        whole = begins and self._positions is None
        self._deleted = 0 if whole else max(0, self._deleted - reads // EACH)
        self._rested_at = clock.monotonic() + REST
        self.next_turn = self._rested_at if self._deleted else math.inf

    def _begin(self, session: Session) -> bool:
        """Whether a round may begin: not while transactions live that did so when the last one began."""
        oldest, following = database_info(session.connection, "OLDEST_SNAPSHOT", "NEXT_TRANSACTION")
        if oldest <= self._begun_at:
            return False
        self._begun_at = following
        self._rests.reset()
        return True
