"""Forgetting what has been kept long enough, in small batches."""

from __future__ import annotations

from fbtasks.config import Settings
from fbtasks.firebird.session import Session
from fbtasks.states import State
from fbtasks.store import tasks


def prune(session: Session, settings: Settings, batches: int = 5) -> int:
    """Deletes results and failures older than the settings keep them. Returns how many rows went."""
    kept = {
        State.SUCCEEDED: settings.result_expires,
        State.CANCELLED: settings.result_expires,
        State.FAILED: settings.failed_expires,
    }
    total = 0
    for state, age in kept.items():
        for _ in range(batches):
            gone = session.run(lambda t, s=state, a=age: tasks.prune(t, s, a))  # type: ignore[misc]
            total += gone
            if gone < tasks.BATCH:
                break
    return total


def give_up_parked(session: Session, settings: Settings) -> list[int]:
    """Fails tasks whose name no worker has known for too long. Returns their ids."""
    return session.run(lambda t: tasks.fail_parked(t, settings.unknown_task_timeout))
