"""Writes the progress that running tasks report, and deletes that of tasks that have ended."""

from __future__ import annotations

import math
from typing import Final

from fbtasks import timing as clock
from fbtasks.feature import Duty
from fbtasks.features.progress import store
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.tasks.call import Said

WAITS: Final = 0.5
"""Seconds for which it is gathered, to be written together."""


class ProgressNotes(Duty):
    """The last that each task has said."""

    name = "writing what tasks say of their progress"
    while_draining = True

    def __init__(self, turn: HostLock) -> None:
        self._turn = turn
        self._notes: dict[int, store.Progress] = {}
        self._due = math.inf

    def told(self, said: Said) -> None:
        """Keeps the last of each task."""
        if not self._notes:
            self._due = clock.monotonic() + WAITS
        noted = store.Progress.of(said)
        self._notes[noted.id] = noted

    def due(self) -> float:
        """Returns when its time comes."""
        return self._due

    def do(self, session: Session) -> bool:
        """Does it, and sees when there is more to do."""
        with self._turn.held():
            session.run(lambda t: store.put(t, sorted(self._notes.values())), point="progress")
        self._notes.clear()
        self._due = math.inf
        return False


def prune(session: Session) -> bool:
    """Forgets what tasks said that do not run any more. Returns whether there may be more."""
    return bool(session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", store.BATCH) >= store.BATCH)
