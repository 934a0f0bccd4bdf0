"""The metrics of a database, read when they are asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseUnavailable, FBTasksError
from fbtasks.queue import results
from fbtasks.queue.operations.metrics import STATES, Family, families
from fbtasks.queue.operations.overview import Looks, Overview
from fbtasks.queue.results import QueueRow
from fbtasks.sheet import MOST
from fbtasks.system.threads import Background

PATIENCE: Final = 3.0
"""Seconds that a scrape waits for the database."""
_SHARE: Final = 20
"""Exact counts are read again after so many times what they took, so that they take a twentieth of the time at most."""


class DatabaseMetrics(Collector):
    """Reads the database in a thread of its own, once for all who ask at a time; any thread may ask.

    Where more than :data:`MOST` tasks are in a state of a queue, they are counted when a scrape was answered, for the
    next one; and again when :data:`_SHARE` times what that took have passed. The first scrape waits for the count.
    """

    def __init__(self, database: Database, tell: Callable[[str], None]) -> None:
        """*tell* is called with one line when the database is away, and when it is back."""
        self._database = database
        self._tell = tell
        self._looks = Looks(database, None)
        self._lock = threading.Lock()
        self._reading: Future[Overview] | None = None
        self._exact: dict[str, QueueRow] = {}
        self._next_count = 0.0
        self._has_counted = threading.Event()
        self.error: FBTasksError | None = None
        """Why the last scrape found no database."""

    def collect(self) -> Iterator[Metric]:
        """Returns the metrics. Of a database that is away there is one, which says so."""
        found: Overview | None = None
        error: FBTasksError | None = None
        try:
            found = self._read().result(PATIENCE)
        except TimeoutError:
            error = DatabaseUnavailable(f"{self._database.url} has not answered for {PATIENCE:g} s.")
        except FBTasksError as caught:
            error = caught
        if (error is None) != (self.error is None):
            self._tell("The database is back." if error is None else str(error))
        self.error = error
        yield _metric(Family("fbtasks_up", "Whether the database has answered.", (), {(): error is None}))
        if found is None:
            return
        if any(map(_full, found.queues)):
            self._has_counted.wait(PATIENCE)
        yield from map(_metric, families(replace(found, queues=list(map(self._exactly, found.queues)))))

    def _read(self) -> Future[Overview]:
        """Returns the look that is under way, or begins one."""
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                Background(target=self._look, args=(self._reading,), name="fbtasks-metrics-look").start()
            return self._reading

    def _look(self, reading: Future[Overview]) -> None:
        try:
            found = self._looks.get()
        except BaseException as error:  # noqa: BLE001  # it is raised by those who wait
            reading.set_exception(error)
            return
        reading.set_result(found)
        if any(map(_full, found.queues)) and clock.monotonic() >= self._next_count:
            with suppress(FBTasksError):  # the next look says what is wrong
                self._count()

    def _count(self) -> None:
        self._next_count = math.inf  # nobody else counts meanwhile
        began = clock.monotonic()
        try:
            self._exact = {row.queue: row for row in self._database.use(results.queues)}
        finally:
            self._next_count = clock.monotonic() + _SHARE * (clock.monotonic() - began)
            self._has_counted.set()

    def _exactly(self, row: QueueRow) -> QueueRow:
        """Returns *row* with exact counts where it has bounded ones."""
        exact = self._exact.get(row.queue, row)
        return replace(row, **{state: max(getattr(row, state), getattr(exact, state)) for state in _full(row)})


def _full(row: QueueRow) -> list[str]:
    """Returns the states of which there are more tasks than were counted."""
    return [state for state in STATES if getattr(row, state) > MOST]


def _metric(family: Family) -> Metric:
    name = family.name.removesuffix("_total")
    metric = Metric(name, family.help, "gauge" if name == family.name else "counter")
    for labels, value in family.values.items():
        metric.add_sample(family.name, dict(zip(family.labels, labels, strict=True)), float(value))
    return metric
