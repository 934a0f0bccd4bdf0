"""Buffers outcomes and writes them in batches."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, DatabaseError, StatementRefused
from fbtasks.feature import Features
from fbtasks.firebird.driver.translate import connection_was_lost
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import codec
from fbtasks.queue.recording import ATTEMPTS, Recorder
from fbtasks.tasks.call import (
    RELEASED,
    Cancelled,
    Claim,
    Crashed,
    Failed,
    FeatureOutcome,
    Finished,
    Outcome,
    Reason,
    Requeue,
    Stale,
    Succeeded,
    is_last_crash,
    reason_of,
)
from fbtasks.timing import Backoff, Quiet
from fbtasks.worker.logs.task_log import log_outcome, log_stale, one_line

logger = logging.getLogger("fbtasks.worker")
T = TypeVar("T")

GATHER: Final = 0.01
"""Seconds that outcomes may wait for others, to be recorded together, while the executor has enough to do."""
GATHER_MOST: Final = 200
"""Outcomes that are enough for one transaction."""
PUT_OFF: Final = 3600.0
"""Seconds until a task is tried again of which the database takes no end."""
KEPT_FIRST: Final = 0.1
KEPT_LAST: Final = 2.0
"""Seconds until an outcome that is kept apart is tried again: twice as many each time, up to the latter."""
KEPT_SHARE: Final = 0.2
"""Seconds that those may take before the worker does something else."""
MOST_KEPT: Final = 200
"""So many kept apart, a worker claims nothing more."""
MOST_LOSSES: Final = 3
"""Times that the connection may be lost with a long result that is written by itself; then its task is failed."""
LONG: Final = 65_535
"""Bytes of a result above which the fault may be with its length."""


_WORDS: Final[dict[type | Reason, str]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Reason.RETRY: "retried",
    Reason.RELEASE: "given back",
    Reason.CONTINUE: "continued",
    Reason.SNOOZE: "snoozed",
    Cancelled: "cancelled",
    Crashed: "crashed",
    Reason.CLOSED: "put off",
    Reason.PARKED: "parked",
    Reason.HELD: "held back",
}
_ALWAYS: Final = 4
"""So many of these are said also of none."""


class Tally(Counter[str]):
    """How many claims ended in which way, in a worker's life. Each is counted once: a last crash as a failure."""

    def take(self, ended: Iterable[Finished]) -> None:
        """Counts what has ended."""
        self.update(map(word_of, ended))

    def __str__(self) -> str:
        words = enumerate(dict.fromkeys((*_WORDS.values(), *self)))
        return ", ".join(f"{self[word]} {word}" for nth, word in words if nth < _ALWAYS or self[word])


def word_of(finished: Finished) -> str:
    """How an outcome is counted: ``succeeded``, or as a feature says."""
    outcome = finished.outcome
    if isinstance(outcome, FeatureOutcome):
        return outcome.word
    if isinstance(outcome, Crashed) and is_last_crash(finished.claim, outcome):
        return _WORDS[Failed]
    return _WORDS[reason_of(outcome) or type(outcome)]


class Kept:
    """An outcome that could not be recorded with others, and is tried again by itself."""

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self.losses = 0
        """How often the connection was lost while it was written."""
        self.instead: list[Callable[[str], Outcome]] = [
            partial(Requeue, Reason.RETRY, PUT_OFF),
            partial(Failed, "fbtasks.errors.DatabaseError"),
        ]
        """What is recorded in its place when the database refuses it; first the last."""
        self.backoff = Backoff(KEPT_FIRST, KEPT_LAST)
        self.backoff.wait()
        self.quiet = Quiet()


class Outcomes:
    """Kept until the database has them, whatever happens to it meanwhile. Used by one thread.

    What cannot be recorded with others, since another transaction holds a row that is to be changed, or since the
    connection is lost with it, is kept apart and tried again by itself: all others are recorded meanwhile.
    """

    def __init__(self, turn: HostLock, features: Features) -> None:
        """*features*: the app's."""
        self.recorder = Recorder(turn, features)
        self._waiting: list[Finished] = []
        self._kept: list[Kept] = []
        self.tally = Tally()
        """All that has been recorded, but what came too late."""
        self.gathered_at = 0.0
        """When those that wait have waited for long enough, on the monotonic clock."""
        self.watched: dict[str, Callable[[], None]] = {}
        """What is to be called when ends of a task have been recorded, by its name."""
        self.watchers: list[Callable[[Sequence[Finished]], None]] = []
        """What is to be called with outcomes that have been recorded, but for those that came too late."""
        self.large = 0
        """How many with a large payload or a large result have been, until this is set to 0."""

    def __bool__(self) -> bool:
        """Whether there are any but those that are kept apart."""
        return bool(self._waiting)

    @property
    def kept(self) -> int:
        """How many are kept apart."""
        return len(self._kept)

    @property
    def again_at(self) -> float:
        """The monotonic time at which one of those is to be tried again."""
        return min((each.backoff.until for each in self._kept), default=math.inf)

    def add(self, finished: Finished) -> None:
        """Buffers an outcome, or those of a batch. One that is recorded already is counted and logged."""
        if finished.claim.members:
            for part in finished.parts():
                self.add(part)
            return
        if not finished.recorded:
            if not self._waiting:
                self.gathered_at = clock.monotonic() + GATHER
            self._waiting.append(finished)
        elif finished.outcome != RELEASED:  # its claim was stale, which was logged where it ran
            self._count([finished])
            log_outcome(finished)
            self._watch([finished])

    def _watch(self, batch: list[Finished]) -> None:
        self.large += sum(map(codec.is_large, batch))
        if self.watched:
            for name in self.watched.keys() & {item.claim.name for item in batch}:
                self.watched[name]()

    def _count(self, recorded: Sequence[Finished]) -> None:
        self.tally.take(recorded)
        for watch in self.watchers:
            watch(recorded)

    def end(self, claim: Claim, outcome: Outcome) -> None:
        """Buffers the outcome of a claim that did not run to its end."""
        self.add(Finished(claim, outcome))

    def claims(self) -> list[Claim]:
        """The claims that they belong to."""
        return [item.claim for item in (*self._waiting, *(each.finished for each in self._kept))]

    @property
    def gathered(self) -> bool:
        """Whether there are enough of them, or have been for long enough, to be recorded."""
        return len(self._waiting) >= GATHER_MOST or clock.monotonic() >= self.gathered_at

    def exchange(self, session: Session, worker_id: int, claim: Callable[[Transaction], T]) -> T | None:
        """Records what waits and claims, in one transaction. Returns what *claim* returned.

        None when one of the outcomes cannot be recorded so: then all are recorded alone, and nothing is claimed.
        """
        batch = self._take()
        try:
            stale, claimed = self.recorder.exchange(session, worker_id, batch, claim)
        except BaseException as error:
            self._not_written(batch, error)
            if not batch or not isinstance(error, ConflictError | StatementRefused):
                raise
            self.record(session, worker_id)
            return None
        self._written(batch, stale)
        return claimed

    def _take(self) -> list[Finished]:
        """Takes the buffered outcomes, in the order in which they are written."""
        batch, self._waiting = self._waiting, []
        return sorted(batch, key=lambda item: (item.claim.queue, item.claim.id))

    def _not_written(self, batch: list[Finished], error: BaseException) -> None:
        """Buffers a batch again; each outcome by itself when the connection was lost with one of them."""
        if connection_was_lost(error):
            for finished in batch:
                self._kept.append(Kept(finished))
        else:
            self._waiting = batch + self._waiting

    def _written(self, batch: list[Finished], stale: list[Stale]) -> None:
        """Says what has been written."""
        self._watch(batch)
        standing = {item.task: item.stands for item in stale}

        def late(item: Finished) -> bool:
            return standing.get(item.claim.id, item.claim.claim_id) != item.claim.claim_id

        self._count([item for item in batch if not late(item)] if standing else batch)
        if not standing and not logger.isEnabledFor(logging.INFO):
            batch = [item for item in batch if not isinstance(item.outcome, Succeeded)]
        for finished in batch:
            if late(finished):
                log_stale(finished, standing[finished.claim.id])
            else:
                log_outcome(finished)

    def record(self, session: Session, worker_id: int) -> None:
        """Writes all but those that are kept apart: together, or else, when that cannot be, half by half."""
        parts = [self._take()] if self._waiting else []
        while parts:
            part = parts.pop()
            try:
                stale = self.recorder.record(session, worker_id, part, ATTEMPTS)
            except (ConflictError, StatementRefused):
                if half := len(part) // 2:
                    parts += part[half:], part[:half]
                else:
                    self._kept.append(Kept(part[0]))
            except BaseException as error:
                self._not_written(part, error)
                self._waiting += [finished for each in parts for finished in each]
                raise
            else:
                self._written(part, stale)

    def retry(self, session: Session, worker_id: int, *, at_once: bool = False) -> None:
        """Tries again to write those that are kept apart and whose time has come, or all *at_once*."""
        now = clock.monotonic()
        for kept in [each for each in self._kept if at_once or each.backoff.until <= now]:
            if not at_once and clock.monotonic() > now + KEPT_SHARE:
                return
            self._kept.remove(kept)
            self._write_alone(session, worker_id, kept)

    def _write_alone(self, session: Session, worker_id: int, kept: Kept) -> None:
        """Writes one by itself.

        What the database does not take is recorded as a failure that says so. When it does not take that either, the
        task is put off: it waits where it is seen. A long result with which the connection is lost is given up at last.
        """
        finished = kept.finished
        try:
            stale = self.recorder.record(session, worker_id, [finished], 1)
        except StatementRefused as error:
            said = f"its outcome could not be recorded: {error}"
            if not kept.instead:
                logger.error("Task %s is left as it is: %s", finished.claim.label, one_line(said))
                return
            kept.finished = finished._replace(outcome=kept.instead.pop()(said))
            self._write_alone(session, worker_id, kept)
        except DatabaseError as error:
            kept.losses += connection_was_lost(error)
            match finished.outcome:
                case Succeeded(_, result, True) if len(result) > LONG and kept.losses >= MOST_LOSSES:
                    said = (
                        f"its result of {len(result):,} bytes could not be recorded: the connection was lost with it. "
                        f"Return less, such as where the data is. ({error})"
                    )
                    kept.finished = finished._replace(outcome=Failed("fbtasks.errors.DatabaseUnavailable", said))
            kept.backoff.wait()
            self._kept.append(kept)
            if not isinstance(error, ConflictError):
                raise
            if kept.quiet.over():
                logger.warning(
                    "The outcome of task %s cannot be recorded while another transaction holds what is to be changed: "
                    "%s. It is kept and tried again; all else goes on.",
                    finished.claim.label,
                    one_line(str(error)),
                )
        else:
            self._written([finished], stale)

    def give_up(self) -> None:
        """Says which ones are not recorded when the worker ends."""
        for each in self._kept:
            logger.error(
                "The outcome of task %s is lost: another transaction still holds what is to be changed. The task "
                "runs again when that one has ended.",
                each.finished.claim.label,
            )
