"""Looks at the database while everything runs.

In a thread of its own: a database that hangs must not stop the faults, least of all the end of one.
"""

import threading
import time
from contextlib import suppress
from itertools import chain

from support.rules import Violation, broken

from soak.source_accounting import too_long

LONG_QUEUE = 300
"""Live tasks, changes in the log and polled rows at which producers wait."""
PATIENCE = 30.0
"""Seconds that the database may take to answer, once no fault is on."""


class Monitor(threading.Thread):
    """Takes a snapshot every second, checks the invariants in it, and holds producers back when the queue is long."""

    def __init__(self, database, run, ledger):
        super().__init__(daemon=True)
        self.deepest = 0
        self._database = database
        self._run = run
        self._locks = "row lock" in run.kinds
        self._ledger = ledger
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._over = threading.Event()
        self._rows = None
        self._live = -1
        self._seen = time.monotonic()

    def run(self):
        while not self._over.is_set():
            try:
                if self._asked.is_set():
                    self._rows = self._database.snapshot()
                    self._answered.set()
                    return
                self._look()
            except Exception as error:
                self._ledger.write("note", text=f"monitor: {type(error).__name__}: {error}"[:300])
                with suppress(Exception):
                    self._database.disconnect()
            pause = 1.0 if self._run.going_on() else 0.2
            self._asked.wait(pause)

    def _look(self):
        began = time.monotonic()
        rows = self._database.snapshot(effects=False)
        self._live, self._seen = len(rows.live) + rows.sources.waiting, began
        violations = [str(v) for v in chain(broken(rows, at_rest=False, orphans=self._locks), too_long(rows))]
        self._ledger.write(
            "sample", live=len(rows.live), violations=violations, took=round(time.monotonic() - began, 3)
        )
        self.deepest = max(self.deepest, self._live)
        if self._live > LONG_QUEUE:
            self._run.pause.touch()
        elif self._live < LONG_QUEUE / 2:
            self._run.pause.unlink(missing_ok=True)

    def empty_since(self, moment):
        """Whether the queue was seen to be empty after *moment*."""
        return self._live == 0 and self._seen > moment

    def last(self):
        """The whole database at the end, or None when it does not answer."""
        self._asked.set()
        self._answered.wait(PATIENCE)
        return self._rows

    def hung(self, records):
        """What is known when the database does not answer."""
        since = round(time.monotonic() - self._seen, 1)
        last = [r for r in records if r["event"] in ("fault", "worker", "continued")][-12:]
        return Violation("the database does not answer", f"not for {since} seconds", tuple(last))

    def stop(self):
        """Ends the thread; False when it cannot be ended."""
        self._over.set()
        self._asked.set()
        self.join(5)
        return not self.is_alive()
