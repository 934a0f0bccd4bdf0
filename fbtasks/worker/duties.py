"""Runs periodic duties beside the tasks: one a turn. A duty that fails or takes long holds up nothing else."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, DatabaseError, StatementRefused
from fbtasks.feature import Duty
from fbtasks.firebird.session import Session
from fbtasks.queue import tasks
from fbtasks.queue.upkeep.housekeeping import Housekeeping, release_orphans
from fbtasks.system.showing import brief, sentence
from fbtasks.system.threads import Background
from fbtasks.tasks.call import Said
from fbtasks.tasks.handlers import APP_HOOK
from fbtasks.timing import Backoff, Quiet
from fbtasks.worker.lease import Lease
from fbtasks.worker.outcomes import Outcomes

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")
T = TypeVar("T")
FIRST: Final = 0.2
LAST: Final = 5.0
"""Seconds until what could not be done is tried again: twice as many each time, up to the latter."""
DUE_FIRST: Final = 0.05
DUE_LAST: Final = 30.0
"""Seconds after which scheduled tasks are looked at anew, whatever was said about the next."""


class Attempts:
    """Attempts at one thing that another transaction may be in the way of.

    The rows are the application's to lock as well. So a conflict that stays is no reason to give the connection up, nor
    to leave off what has nothing to do with that row.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._backoff = Backoff(FIRST, LAST)
        self._quiet = Quiet()
        self.until = 0.0
        """The monotonic time before which there is none; 0.0 when nothing is in its way."""

    def attempt(self, act: Callable[[], T]) -> T | None:
        """Returns what *act* returns; None when it met another transaction."""
        try:
            done = act()
        except ConflictError as error:
            self.failed(f"Another transaction is in the way of {self._what}: {sentence(str(error))}")
            return None
        self._backoff.reset()
        self.until = 0.0
        return done

    def failed(self, said: str, *, traceback: bool = False) -> None:
        """Waits for a while, which is twice as long each time, and has the log say so once a minute."""
        self.until = clock.monotonic() + self._backoff.next()
        if self._quiet.over():
            logger.warning("%s It is tried again; all else goes on.", said, exc_info=traceback)


class _Kept(Attempts):
    """A duty, and what has become of it."""

    turn: Future[bool] | None = None
    """A turn in a thread of its own that was begun and whose end was not seen."""

    def __init__(self, feature: str, duty: Duty) -> None:
        super().__init__(duty.name)
        self.feature = feature
        self.duty = duty

    def due(self, *, draining: bool) -> float:
        if draining and not self.duty.while_draining:
            return math.inf
        return max(self.duty.due(), self.until)

    def do(self, session: Session) -> bool:
        return bool(self.attempt(lambda: self.duty.do(session)))

    def finish(self, session: Session) -> None:
        self.attempt(lambda: self.duty.finish(session))

    def attempt(self, act: Callable[[], T]) -> T | None:
        try:
            return super().attempt(act)
        except StatementRefused as error:
            self.failed(f"The database refuses {self.duty.name}: {sentence(str(error))}")
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001  # a feature may be anybody's
            name = type(error).__name__
            self.failed(f"{self.duty.name} raised {name}: {brief(error)}.", traceback=True)
        return None


class _Apart(_Kept):
    """A duty that runs in a thread of its own, with a session of its own.

    It is due when a turn is to begin, and when one has ended: what became of that is seen by the worker's thread.
    """

    def __init__(self, feature: str, duty: Duty, connect: Callable[[], Session], wake: Callable[[], None]) -> None:
        super().__init__(feature, duty)
        self._connect = connect
        self._wake = wake

    def due(self, *, draining: bool) -> float:
        if self.turn is None:
            return super().due(draining=draining)
        return 0.0 if self.turn.done() else math.inf

    def do(self, session: Session) -> bool:  # noqa: ARG002  # it has its own
        turn, self.turn = self.turn, None
        if turn is None:
            self._begin()
            return False
        try:
            return bool(self.attempt(turn.result))
        except DatabaseError as error:  # of its own connection; the next turn makes another one
            self.failed(f"The database is away from {self.duty.name}: {error}")
            return False

    def finish(self, session: Session) -> None:
        if self.turn is not None and self.turn.done():
            self.do(session)
        if self.turn is None:
            super().finish(session)
        else:
            logger.warning("%s has not ended; the worker ends without it.", self.duty.name)

    def _begin(self) -> None:
        self.turn = turn = Future[bool]()
        turn.add_done_callback(lambda _: self._wake())
        try:
            Background(target=self._run, args=(turn,), name=f"fbtasks-{self.feature}").start()
        except RuntimeError as error:  # there are too many threads
            turn.set_exception(error)

    def _run(self, turn: Future[bool]) -> None:
        try:
            with closing(self._connect()) as session:
                more = self.duty.do(session)
        except BaseException as error:  # noqa: BLE001  # it is raised where the end is seen
            turn.set_exception(error)
        else:
            turn.set_result(more)


class Duties:
    """The duties of one worker."""

    def __init__(
        self, duties: Iterable[tuple[str, Duty]], connect: Callable[[], Session], wake: Callable[[], None]
    ) -> None:
        """*duties*, each with the name of its feature, or an empty one.

        Those that are apart *connect* for each turn, and *wake* the worker when it has ended.
        """
        self._kept = deque(
            _Apart(name, duty, connect, wake) if duty.apart else _Kept(name, duty) for name, duty in duties
        )

    def __iter__(self) -> Iterator[Duty]:
        return (each.duty for each in self._kept)

    def due(self, *, draining: bool) -> float:
        """The monotonic time at which there is something to do."""
        return min(each.due(draining=draining) for each in self._kept)

    def do(self, session: Session, *, draining: bool) -> bool:
        """Does one that is due, each in its turn. Whether there may be something to claim now."""
        now = clock.monotonic()
        for nth, each in enumerate(self._kept):
            if each.due(draining=draining) <= now:
                self._kept.rotate(-nth - 1)
                return each.do(session)
        return False

    def under_way(self) -> list[str]:
        """Returns the names of duties in threads of their own that have not ended."""
        return [each.duty.name for each in self._kept if each.turn is not None]

    def pending(self) -> bool:
        """Whether a worker that is to leave when nothing is left has something to do still."""
        return self.due(draining=False) <= clock.monotonic() or any(duty.pending() for duty in self)

    def tell(self, said: Said) -> None:
        """A task has *said* something to a feature."""
        for each in self._kept:
            if each.feature == said.feature:
                each.duty.told(said)

    def begin(self, session: Session) -> None:
        """The worker starts. Raises what these raise."""
        for duty in self:
            duty.begin(session)

    def finish(self, session: Session) -> None:
        """The worker ends."""
        for each in self._kept:
            each.finish(session)


class Promotion(Duty):
    """Makes scheduled tasks ready that are due."""

    name = "looking for scheduled tasks that are due"

    def __init__(self) -> None:
        self._next = 0.0

    def due(self) -> float:
        """When its time comes."""
        return self._next

    def heard(self) -> None:
        """Looks again in the next turn."""
        self._next = 0.0

    def expect(self, seconds: float | None) -> None:
        """The next scheduled task is due in so many seconds; None: nothing was said of it."""
        if seconds is not None:
            self._next = min(self._next, clock.monotonic() + seconds)

    def do(self, session: Session) -> bool:
        """Does it, and sees when there is more to do."""
        self._next = clock.monotonic() + DUE_LAST  # an event that comes while this looks has it look again
        try:
            promoted, due = session.run(tasks.promote, point="promote")
        except ConflictError:
            self._next = 0.0
            raise
        # Another worker may hold what is due.
        self.expect(due if due is None or promoted else max(due, DUE_FIRST))
        return bool(promoted)


class Upkeep(Duty):
    """Housekeeping, and rows without a worker."""

    name = "housekeeping"

    def __init__(self, app: FBTasks, lease: Lease, outcomes: Outcomes) -> None:
        self._housekeeping = Housekeeping(app.settings, APP_HOOK if APP_HOOK in app.tasks else None)
        self._lease = lease
        self._outcomes = outcomes
        self._ended = 0
        """How many claims had ended at the last turn."""
        self.next_turn = 0.0
        """The monotonic time of the next turn."""

    def due(self) -> float:
        """When its time comes."""
        large, self._outcomes.large = self._outcomes.large, 0
        self._housekeeping.room.want(large)
        return min(self.next_turn, self._housekeeping.room.next_turn)

    def do(self, session: Session) -> bool:
        """Does it, and sees when there is more to do."""
        now, room = clock.monotonic(), self._housekeeping.room
        if now >= self.next_turn:
            ended, self._ended = self._ended, self._outcomes.tally.total()
            room.want(self._ended - ended)
            # Before others read in the order of an index what has been deleted: see FBTASKS_CORE.VISIT.
            room.turn(session)
            release_orphans(session, self._lease.worker_id)
            self.next_turn = now + self._housekeeping.turn(session)
        room.turn(session)
        return False
