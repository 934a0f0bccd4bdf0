"""What has ended and is to be recorded: gathered for a moment, and written together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, DatabaseUnavailable, StatementRefused
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
BLOCKED_FIRST: Final = 0.1
BLOCKED_LAST: Final = 2.0
"""Seconds until a blocked outcome is tried again: twice as many each time, up to the latter."""
BLOCKED_SHARE: Final = 0.2
"""Seconds that blocked outcomes may take before the worker does something else."""
MOST_BLOCKED: Final = 200
"""Blocked outcomes with which a worker claims nothing more."""
LOSSES: Final = 2
"""Times that the connection may be lost while an outcome is written with others; then it is written by itself."""
MOST_LOSSES: Final = 3
"""The same for a long result that is written by itself; then its task is failed."""
LOST_FIRST: Final = 0.5
"""Seconds until it is written by itself, so that all others are written first; twice as many each time."""
LONG: Final = 65_535
"""Bytes of a result above which the fault may be with its length."""


class Tally(Counter[type | Reason]):
    """How many claims ended in which way, in a worker's life. Each is counted once: a last crash as a failure."""

    _ALWAYS: Final[dict[type | Reason, str]] = {
        Succeeded: "succeeded",
        Failed: "failed",
        Reason.RETRY: "retried",
        Reason.RELEASE: "given back",
    }
    _SELDOM: Final[dict[type | Reason, str]] = {
        Reason.CONTINUE: "continued",
        Reason.SNOOZE: "snoozed",
        Cancelled: "cancelled",
        Crashed: "crashed",
        Reason.CLOSED: "put off",
        Reason.PARKED: "parked",
    }

    def take(self, ended: Iterable[Finished]) -> None:
        """Counts what has ended."""
        ended = list(ended)
        kinds = Counter[type | Reason](reason_of(item.outcome) or type(item.outcome) for item in ended)
        if Crashed in kinds:
            last = sum(isinstance(o, Crashed) and is_last_crash(claim, o) for claim, o, *_ in ended)
            kinds[Crashed] -= last
            kinds[Failed] += last
        self.update(kinds)

    def __str__(self) -> str:
        own = {kind: kind.word for kind in self if isinstance(kind, type) and issubclass(kind, FeatureOutcome)}
        seldom = {kind: word for kind, word in (self._SELDOM | own).items() if self[kind]}
        return ", ".join(f"{self[kind]} {word}" for kind, word in (self._ALWAYS | seldom).items())


class Blocked:
    """An outcome that is kept by itself: another transaction is in its way, or the connection was lost with it."""

    def __init__(self, finished: Finished, first: float = BLOCKED_FIRST) -> None:
        self.finished = finished
        self.losses = 0
        """How often the connection was lost while it was written by itself."""
        self.backoff = Backoff(first, BLOCKED_LAST)
        self.backoff.wait()
        self.quiet = Quiet()


class Outcomes:
    """Kept until the database has them, whatever happens to it meanwhile. Used by one thread.

    What cannot be recorded, since another transaction holds a row that is to be changed, is kept by itself, and tried
    again alone: all others are recorded meanwhile.
    """

    def __init__(self, turn: HostLock, features: Features) -> None:
        """*features*: the app's."""
        self.recorder = Recorder(turn, features)
        self._waiting: list[Finished] = []
        self._writing: list[Finished] = []
        self._blocked: list[Blocked] = []
        self._losses = Counter[tuple[int, int]]()
        """How often the connection was lost while a claim's outcome was written with others."""
        self.tally = Tally()
        """All that has been recorded, but what came too late."""
        self.gathered_at = 0.0
        """When those that wait have waited for long enough, on the monotonic clock."""
        self._settled: list[Finished] = []
        """What became of outcomes other than successes."""
        self.watched: dict[str, Callable[[], None]] = {}
        """What is to be called when ends of a task have been recorded, by its name."""
        self.large = 0
        """How many with a large payload or a large result have been, until this is set to 0."""

    def __bool__(self) -> bool:
        """Whether there are any but the blocked ones."""
        return bool(self._waiting or self._writing)

    @property
    def blocked(self) -> int:
        """How many are kept by themselves, since another transaction is in their way."""
        return len(self._blocked)

    @property
    def again_at(self) -> float | None:
        """The monotonic time at which blocked ones are to be tried again."""
        return min((each.backoff.until for each in self._blocked), default=None)

    def add(self, finished: Finished) -> None:
        """Keeps one, or each of a batch, until it is recorded; or counts and logs it when it is recorded already."""
        if finished.claim.members:
            for part in finished.parts():
                self.add(part)
            return
        if not finished.recorded:
            if not self._waiting:
                self.gathered_at = clock.monotonic() + GATHER
            self._waiting.append(finished)
        elif finished.outcome != RELEASED:  # its claim was stale, which was logged where it ran
            self.tally.take([finished])
            log_outcome(finished)
            self._settle(finished, recorded=True)
            self._watch([finished])

    def _watch(self, batch: list[Finished]) -> None:
        self.large += sum(map(codec.is_large, batch))
        if self.watched:
            for name in self.watched.keys() & {item.claim.name for item in batch}:
                self.watched[name]()

    def end(self, claim: Claim, outcome: Outcome) -> None:
        """Keeps one of a claim that did not run to its end."""
        self.add(Finished(claim, outcome))

    def claims(self) -> list[Claim]:
        """The claims that they belong to."""
        return [item.claim for item in (*self._writing, *self._waiting, *(each.finished for each in self._blocked))]

    @property
    def gathered(self) -> bool:
        """Whether there are enough of them, or have been for long enough, to be recorded."""
        return len(self._waiting) >= GATHER_MOST or clock.monotonic() >= self.gathered_at

    def exchange(self, session: Session, worker_id: int, claim: Callable[[Transaction], T]) -> T | None:
        """Records what waits and claims, in one transaction. Returns what *claim* returned.

        None when one of the outcomes cannot be recorded so: then all are recorded alone, and nothing is claimed.
        """
        batch = self._begin()
        try:
            stale, claimed = self.recorder.exchange(session, worker_id, batch, claim)
        except BaseException as error:
            self._failed(error)
            if not batch or not isinstance(error, ConflictError | StatementRefused):
                raise
            self.record(session, worker_id)
            return None
        self._written(stale)
        return claimed

    def _begin(self) -> list[Finished]:
        """What is to be written now; then comes :meth:`_written` or :meth:`_failed`."""
        self._writing = sorted(self._waiting, key=lambda item: (item.claim.queue, item.claim.id))
        self._waiting = []
        return self._writing

    def _failed(self, error: BaseException | None = None) -> None:
        """What was to be written has to be written again; alone, if the connection was lost by *error* once more."""
        if connection_was_lost(error):
            self._note_loss()
        self._waiting = self._writing + self._waiting
        self._writing = []

    def _written(self, stale: list[Stale], most: int | None = None) -> None:
        """Forgets what has been written, which is all or the first *most*, and says so."""
        batch = self._writing[:most]
        del self._writing[: len(batch)]
        self._watch(batch)
        if self._losses:
            for item in batch:
                self._losses.pop((item.claim.id, item.claim.claim_id), None)
        standing = {item.task: item.stands for item in stale}

        def late(item: Finished) -> bool:
            return standing.get(item.claim.id, item.claim.claim_id) != item.claim.claim_id

        self.tally.take(item for item in batch if not late(item))
        if not standing and not logger.isEnabledFor(logging.INFO):
            batch = [item for item in batch if not isinstance(item.outcome, Succeeded)]
        for finished in batch:
            self._settle(finished, recorded=not late(finished))
            if late(finished):
                log_stale(finished.claim, standing[finished.claim.id])
            else:
                log_outcome(finished)

    def _settle(self, finished: Finished, *, recorded: bool) -> None:
        if not isinstance(finished.outcome, Succeeded):
            self._settled.append(finished._replace(recorded=recorded))

    def take_settled(self) -> list[Finished]:
        """What has become of outcomes since the last call; not recorded is what was stale or refused."""
        settled, self._settled = self._settled, []
        return settled

    def record(self, session: Session, worker_id: int) -> None:
        """Writes all but the blocked ones; those that another transaction blocks now are kept by themselves.

        What the database does not take is recorded as a failure that says so. When it does not take that either, the
        task is put off: it waits where it is seen, and nothing else waits for it.
        """
        if self._waiting:
            try:
                self._record(session, worker_id, list(self._begin()))
            except DatabaseUnavailable as error:
                self._failed(error)
                raise
            finally:
                self._failed()

    def _note_loss(self) -> None:
        """Counts that the connection was lost, and keeps by itself what it was lost with too often."""
        for finished in self._writing:
            key = finished.claim.id, finished.claim.claim_id
            self._losses[key] += 1
            if self._losses[key] >= LOSSES:
                del self._losses[key]
                self._blocked.append(Blocked(finished, LOST_FIRST))
                self._settle(finished, recorded=False)
        self._writing = [f for f in self._writing if (f.claim.id, f.claim.claim_id) in self._losses]

    def retry(self, session: Session, worker_id: int, *, at_once: bool = False) -> None:
        """Tries again to write the blocked ones whose time has come, or all *at_once*."""
        if not self._blocked:
            return
        now = clock.monotonic()
        for each in [each for each in self._blocked if at_once or each.backoff.until <= now]:
            if not at_once and clock.monotonic() > now + BLOCKED_SHARE:
                return
            self._blocked.remove(each)
            self._writing = [each.finished]
            try:
                self._record(session, worker_id, [each.finished], each)
            except DatabaseUnavailable as error:
                self._keep_lost(each, error)
                raise
            finally:
                self._failed()

    def _keep_lost(self, each: Blocked, error: DatabaseUnavailable) -> None:
        """Keeps by itself what the connection was lost with again; a long result is given up at last."""
        self._writing = []
        self._blocked.append(each)
        each.losses += connection_was_lost(error)
        each.backoff.wait()
        match each.finished.outcome:
            case Succeeded(_, result, True) if len(result) > LONG and each.losses >= MOST_LOSSES:
                said = (
                    f"its result of {len(result):,} bytes could not be recorded: the connection was lost with it. "
                    f"Return less, such as where the data is. ({error})"
                )
                each.finished = each.finished._replace(outcome=Failed("fbtasks.errors.DatabaseUnavailable", said))

    def give_up(self) -> None:
        """Says which ones are not recorded when the worker ends."""
        for each in self._blocked:
            logger.error(
                "The outcome of task %s is lost: another transaction still holds what is to be changed. The task "
                "runs again when that one has ended.",
                each.finished.claim.label,
            )

    def _record(self, session: Session, worker_id: int, part: list[Finished], before: Blocked | None = None) -> None:
        """Writes *part*, the first of what is to be written: together, or else, when it cannot be, half by half.

        *before*: the only one in it was blocked before.
        """
        try:
            stale = self.recorder.record(session, worker_id, part, ATTEMPTS if before is None else 1)
        except (ConflictError, StatementRefused) as error:
            half = len(part) // 2
            if half:
                self._record(session, worker_id, part[:half])
                self._record(session, worker_id, part[half:])
            elif isinstance(error, ConflictError):
                self._block(part[0], error, before)
            else:
                self._write_somehow(session, worker_id, part[0], error, before)
        else:
            self._written(stale, len(part))

    def _block(self, finished: Finished, error: ConflictError, before: Blocked | None) -> None:
        """Keeps the first of what is to be written by itself, since another transaction is in its way."""
        del self._writing[0]
        each = before or Blocked(finished)
        self._blocked.append(each)
        if before is not None:
            before.backoff.wait()
        else:  # what waits to hear of it, such as a child with hooks, does not wait for so long
            self._settle(finished, recorded=False)
        if each.quiet.over():
            logger.warning(
                "The outcome of task %s cannot be recorded while another transaction holds what is to be changed: "
                "%s. It is kept and tried again; all else goes on.",
                finished.claim.label,
                one_line(str(error)),
            )

    def _write_somehow(
        self, session: Session, worker_id: int, finished: Finished, error: StatementRefused, before: Blocked | None
    ) -> None:
        """Writes what can be said of the first, which the database does not take as it is."""
        for fails in (True, False):
            said = f"its outcome could not be recorded: {error}"
            outcome = Failed("fbtasks.errors.DatabaseError", said) if fails else Requeue(Reason.RETRY, PUT_OFF, said)
            self._writing[0] = finished._replace(outcome=outcome)
            try:
                stale = self.recorder.record(session, worker_id, self._writing[:1], ATTEMPTS)
            except ConflictError as conflict:
                self._block(finished, conflict, before)
                return
            except StatementRefused as another:
                error = another
            else:
                self._written(stale, 1)
                return
        said = f"its outcome could not be recorded: {error}"
        logger.error("Task %s is left as it is: %s", finished.claim.label, one_line(said))
        self._settle(finished, recorded=False)
        del self._writing[0]
