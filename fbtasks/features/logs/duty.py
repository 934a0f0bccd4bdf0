"""Writes what running tasks log, and deletes it when its time is over."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Final

from fbtasks import timing as clock
from fbtasks.feature import Duty
from fbtasks.features.logs import store
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.tasks.call import Said

logger = logging.getLogger(__name__)
WAITS: Final = 0.5
"""Seconds for which lines are gathered, to be written together."""
KEPT: Final = timedelta(days=7)
"""How long lines are kept at most."""
MOST: Final = 8 << 20
"""Bytes that wait to be written at most, while the database is away."""
_AT_ONCE: Final = 500
"""Claims whose lines are written in one transaction."""


class LogWriter(Duty):
    """The lines that tasks have logged since the last turn."""

    name = "writing what tasks log"
    while_draining = True

    def __init__(self, turn: HostLock) -> None:
        self._turn = turn
        self._lines: dict[tuple[int, int], store.Lines] = {}
        self._size = self._lost = 0
        self._due = math.inf

    def told(self, said: Said) -> None:
        """Keeps the lines of a claim until they are written."""
        self._due = min(self._due, clock.monotonic() + WAITS)
        if self._size + len(said.data) > MOST:
            self._lost += 1
            return
        self._size += len(said.data)
        key = said.id, said.claim_id
        with suppress(ValueError):
            lines, before = store.Lines.of(said), self._lines.get(key)
            self._lines[key] = lines if before is None else before.with_more(lines)

    def due(self) -> float:
        """Returns when its time comes."""
        return self._due

    def do(self, session: Session) -> bool:
        """Writes some of them, in one transaction."""
        some = dict(islice(self._lines.items(), _AT_ONCE))
        with self._turn.held():
            session.run(lambda t: store.put(t, some.values()), point="logs")
        for key in some:
            del self._lines[key]
        if not self._lines:
            self._due, self._size = math.inf, 0
            if self._lost:
                logger.warning("Lines of tasks were lost, since they could not be written for a while.")
                self._lost = 0
        return False

    def finish(self, session: Session) -> None:
        """Writes the rest."""
        while self._lines:
            self.do(session)


class Forgetting:
    """Goes through all lines again and again, a part in each turn."""

    def __init__(self, unknown: timedelta) -> None:
        """*unknown*: how long the lines of a task are kept of which the database knows nothing else."""
        self._old, self._unknown = (age // timedelta(milliseconds=1) for age in (KEPT, min(KEPT, unknown)))
        self._after = 0

    def turn(self, session: Session) -> bool:
        """Deletes what is not kept any longer. Returns whether there may be more."""
        last, forgotten = session.call("FBTASKS_LOGS.FORGET_LINES", self._after, self._old, self._unknown, store.BATCH)
        self._after = last or 0
        return bool(forgotten)
