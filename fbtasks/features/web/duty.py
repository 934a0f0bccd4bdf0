"""Writes down what becomes of tasks, for dashboards; joins and forgets what is old."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from fbtasks import timing as clock
from fbtasks.errors import ConflictError
from fbtasks.feature import Duty, Worker
from fbtasks.features.web import store
from fbtasks.features.web.store import BOUNDS, BUCKETS, Tried
from fbtasks.firebird.session import Session
from fbtasks.system.showing import CUT, kind_of, shorten
from fbtasks.tasks.call import (
    Cancelled,
    Claim,
    Crashed,
    Failed,
    Finished,
    Outcome,
    Reason,
    Requeue,
    Succeeded,
    is_last_crash,
)

BEAT: Final = 10.0
"""Seconds for which outcomes are gathered."""
TRIES: Final = 200
"""Tries that are noted of those; of more the counters tell."""
LONGEST: Final = 4_000
"""Characters of an error, and of a traceback."""
SUCCEEDED, FAILED, CANCELLED, RETRIED, ELAPSED, WAITED, RUN = range(7)
"""Places in the counters of a name."""
WAIT: Final = RUN + BUCKETS
LOOK: Final = 50.0
"""Seconds from one look at the depths of queues to the next: so there is one in each minute."""
SHARE: Final = 50.0
"""A look is not taken before so many times as long have gone by as the last one took."""
UPKEEP: Final = 300.0
"""Seconds from one turn of upkeep to the next."""
SELDOM: Final = 3600.0
"""The same where nothing is written down."""
BATCHES: Final = 5
"""Spans of time whose rows one turn joins, of each length."""
MOST: Final = 200
"""Rows that one turn deletes."""
READS: Final = 2_000
"""Tries that one turn looks at."""


class Statistics(Duty):
    """Counts what has ended in this worker, and writes it every ten seconds, and at the worker's end."""

    name = "writing down what has ended"
    while_draining = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker.options.name
        self._counts: dict[tuple[str, str], list[float]] = {}
        """By queue and name of the tasks."""
        self._tries: list[Tried] = []
        self._due = math.inf
        self._ahead = 0.0
        """Seconds by which the database's clock is ahead of this machine's."""
        worker.watch_outcomes(self.take)

    def take(self, ended: Sequence[Finished]) -> None:
        """Counts what has ended. It takes about a microsecond for each."""
        if self._due == math.inf:
            self._due = clock.monotonic() + BEAT
        counts, now = self._counts, clock.wall() + self._ahead
        for claim, outcome, elapsed, _ in ended:
            column = SUCCEEDED if type(outcome) is Succeeded else self._column(claim, outcome, elapsed)
            if column is None:
                continue
            key = claim.queue, claim.name
            try:
                row = counts[key]
            except KeyError:
                row = counts[key] = [0] * (WAIT + BUCKETS)
            waited = now - elapsed - claim.start / 10_000
            row[column] += 1
            row[ELAPSED] += elapsed
            row[WAITED] += waited
            row[RUN + bisect_left(BOUNDS, elapsed)] += 1
            row[WAIT + bisect_left(BOUNDS, waited)] += 1

    def _column(self, claim: Claim, outcome: Outcome, elapsed: float) -> int | None:
        """Where an outcome is counted; None: it is not. Notes a try that has not ended its task."""
        match outcome:
            case Failed():
                return FAILED
            case Cancelled():
                return CANCELLED
            case Crashed(message):
                if is_last_crash(claim, outcome):
                    return FAILED
                self._note(claim, "crash", elapsed, error=message)
                return RETRIED
            case Requeue(Reason.RETRY, _, message, error_type):
                error = message.removeprefix(f"{kind_of(error_type)}: ")
                self._note(claim, "retry", elapsed, error_type, error, outcome.traceback)
                return RETRIED
            case Requeue(Reason.RELEASE) if elapsed:
                self._note(claim, "release", elapsed)
        return None

    def _note(
        self, claim: Claim, kind: str, elapsed: float, error_type: str = "", error: str = "", trace: str = ""
    ) -> None:
        if len(self._tries) < TRIES:
            said = error_type, shorten(error, LONGEST, CUT), shorten(trace, LONGEST, CUT)
            self._tries.append(
                Tried(claim.id, claim.try_count + 1, kind, self._worker, clock.monotonic(), elapsed, *said)
            )

    def begin(self, session: Session) -> None:
        """Compares the clocks."""
        self._ahead = store.ahead(session)

    def due(self) -> float:
        """When its time comes."""
        return self._due

    def do(self, session: Session) -> bool:
        """Writes what it has gathered."""
        self._ahead = session.run(lambda t: store.put(t, self._counts, self._tries), point="statistics")
        self._counts.clear()
        self._tries.clear()
        self._due = math.inf
        return False

    def finish(self, session: Session) -> None:
        """Writes the rest."""
        if self._due < math.inf:
            self.do(session)


class Depths:
    """Notes once a minute how many tasks queues hold: one worker does so for all."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, session: Session) -> bool:
        """Does it, unless that was done in this minute."""
        began = clock.monotonic()
        if began >= self._next and not store.depth_is_noted(session):
            rows = store.depths(session)
            self._next = began + SHARE * (clock.monotonic() - began)
            session.run(lambda t: store.put_depths(t, rows))
        return False


class Upkeep:
    """Joins and forgets what is old, a little at a time."""

    def __init__(self) -> None:
        self._after = 0
        """The number of the try up to which the last turn has looked."""

    def __call__(self, session: Session) -> bool:
        """Does some of it. Returns whether there may be more."""
        try:
            return self._some(session)
        except ConflictError:  # another worker is at the same rows
            return False

    def _some(self, session: Session) -> bool:
        more = False
        for span in store.SPANS:
            more = all(session.call("FBTASKS_WEB.FOLD", *span, attempts=1) for _ in range(BATCHES))
            if more:  # what is joined to them comes first
                break
        forgotten: int = session.call("FBTASKS_WEB.FORGET", MOST, attempts=1)
        self._after = session.call("FBTASKS_WEB.FORGET_TRIES", self._after, READS, attempts=1) or 0
        return more or forgotten >= MOST
