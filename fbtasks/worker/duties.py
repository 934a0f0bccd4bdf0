"""What a worker does for all beside its tasks, when its time has come: housekeeping, and rows without a worker."""

from __future__ import annotations

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.features.sources.undeployed import Sources
from fbtasks.firebird.session import Session
from fbtasks.queue.tasks import BATCH
from fbtasks.queue.upkeep.housekeeping import Housekeeping, release_orphans
from fbtasks.worker.hooks import FailureHooks
from fbtasks.worker.outcomes import Outcomes


class Upkeep:
    """The worker's turns of it."""

    def __init__(self, settings: Settings, hooks: FailureHooks, sources: Sources, outcomes: Outcomes) -> None:
        self._housekeeping = Housekeeping(settings)
        self._sources = sources
        self._hooks = hooks
        self._outcomes = outcomes
        self._ended = 0
        """How many claims had ended at the last turn."""
        self.next_turn = 0.0
        """The monotonic time of the next turn."""

    @property
    def deadline(self) -> float:
        """The monotonic time at which there is something to do."""
        return min(self.next_turn, self._housekeeping.room.next_turn)

    @property
    def hands_on(self) -> bool:
        """Whether the next turn has kept events to give to their handlers, or may have."""
        return self._housekeeping.hands_on

    def do(self, session: Session, worker_id: int) -> None:
        """Takes a turn when it is time, for the worker of this id."""
        now, room = clock.monotonic(), self._housekeeping.room
        large, self._outcomes.large = self._outcomes.large, 0
        room.want(large)
        if now >= self.next_turn:
            ended, self._ended = self._ended, self._outcomes.tally.total()
            room.want(self._ended - ended)
            room.turn(
                session
            )  # before others read in the order of an index what has been deleted: see FBTASKS_CORE.VISIT
            release_orphans(session, worker_id)
            # Else the hooks of parked tasks that are failed could take longer than they need to come.
            self.next_turn = now + self._housekeeping.turn(session, give_up=len(self._hooks) < BATCH)
            self._sources.look(session, worker_id)
            self._hooks.look_up(self._housekeeping.take_given_up())
        room.turn(session)
