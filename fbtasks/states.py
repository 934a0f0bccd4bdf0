"""The states of a task, and the names that Celery has for them."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a task is. The values are those of the STATE column.

    Live tasks (below 10) are rows of QUEUE_TASK, finished ones (from 10) rows of QUEUE_HISTORY.
    """

    READY = 0
    """May be claimed now."""
    SCHEDULED = 1
    """Waits for its START_TIME: a countdown, an eta, or the back-off before a retry."""
    RUNNING = 2
    """Claimed by a worker."""
    PARKED = 3
    """A worker met its name and did not know it; waits for one that does."""
    HELD = 4
    """Waits to be let in by a gate: another task has its lane."""
    AWAITING = 5
    """A step of a workflow: waits for the end of those that it follows."""
    SUCCEEDED = 10
    """Returned; the result is kept for a while."""
    FAILED = 11
    """Raised, and no retry is left: what other systems call the dead letters."""
    CANCELLED = 12
    """Revoked before it ended, or expired before it began."""

    @property
    def live(self) -> bool:
        """Whether the task still waits or runs."""
        return self < State.SUCCEEDED


def celery_name(state: State, try_count: int) -> str:
    """The state as Celery names it: PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED.

    *try_count* is the number of tries that have ended: a waiting task that was tried before is in RETRY.
    """
    match state:
        case State.RUNNING:
            return "STARTED"
        case State.SUCCEEDED:
            return "SUCCESS"
        case State.FAILED:
            return "FAILURE"
        case State.CANCELLED:
            return "REVOKED"
        case _:
            return "RETRY" if try_count else "PENDING"
