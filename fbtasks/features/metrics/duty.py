"""The metrics and the probes of one worker, served while its process lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

from fbtasks import timing as clock
from fbtasks.feature import Every, Worker
from fbtasks.features.metrics.server import Server, logger
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.system.threads import Background
from fbtasks.tasks.call import Finished
from fbtasks.version import VERSION
from fbtasks.worker.outcomes import word_of

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Upper bounds in seconds: from tasks that only note something to those that run for half an hour."""
CLAIM_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""The same of claims, which take some milliseconds unless something is in their way."""
STALLED: Final = 30.0
"""Seconds without a turn of a worker's loop after which it does not live, or as long as its lease, if that is more."""


class WorkerMetrics(Every):
    """Counts what a worker records, and serves it. Reads the database's clock now and then."""

    def __init__(self, app: FBTasks, worker: Worker, host: str, port: int) -> None:
        """Raises :class:`ConfigurationError` when nobody can listen at *port*."""
        super().__init__("reading the database's clock", 60.0, self._read_clock)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else each series has a second one: its beginning
        self._names = {name: task.name for name, task in app.tasks.items()}
        self._worker = worker
        self._ahead = 0.0
        """Seconds by which the database's clock is ahead of this machine's."""
        registry, of_task = CollectorRegistry(), ("task", "queue")
        self._tasks = Counter(
            "fbtasks_worker_tasks_total",
            "Outcomes that this worker has recorded.",
            (*of_task, "outcome"),
            registry=registry,
        )
        self._run = Histogram(
            "fbtasks_worker_run_seconds", "For how long tries ran.", of_task, registry=registry, buckets=BUCKETS
        )
        self._wait = Histogram(
            "fbtasks_worker_wait_seconds",
            "How long after a try was due it began.",
            of_task,
            registry=registry,
            buckets=BUCKETS,
        )
        told = {"name": worker.options.name, "version": app.settings.version or VERSION}
        Info("fbtasks_worker", "The worker, and the version of its program.", registry=registry).info(told)
        slots = Gauge("fbtasks_worker_slots", "Tasks that may run at once.", registry=registry)
        slots.set(worker.options.concurrency)
        if worker.options.pool != "solo":  # which has no count of it while a task runs
            running = Gauge("fbtasks_worker_running", "Tasks in child processes.", registry=registry)
            running.set_function(lambda: len(worker.busy()))
        claims = Histogram(
            "fbtasks_worker_claim_seconds",
            "How long claims took, with what was recorded in the same transaction.",
            registry=registry,
            buckets=CLAIM_BUCKETS,
        )
        worker.watch_claims(claims.observe)
        worker.watch_outcomes(self._take)
        probes = {"/livez": self._lives, "/readyz": self._is_ready}
        self.server = Server("--metrics-port", host, port, registry, probes)
        """Answers as long as the process lives."""
        Background(target=self.server.serve_forever, name="fbtasks-metrics").start()
        logger.info("Metrics at %s", self.server.url)

    def begin(self, session: Session) -> None:
        """Reads the clock before the first task is claimed."""
        self.do(session)

    def _read_clock(self, session: Session) -> bool:
        self._ahead = results.now(session).timestamp() - clock.wall()
        return False

    def _take(self, recorded: Sequence[Finished]) -> None:
        now = clock.wall() + self._ahead
        for finished in recorded:
            claim, elapsed = finished.claim, finished.elapsed
            of_task = self._names.get(claim.name, "other"), claim.queue
            self._tasks.labels(*of_task, word_of(finished).replace(" ", "_")).inc()
            if elapsed:  # it has run
                self._run.labels(*of_task).observe(elapsed)
                self._wait.labels(*of_task).observe(max(0.0, now - elapsed - claim.start / 10_000))

    def _lives(self) -> str:
        """Returns what is wrong with a worker whose loop takes no turns. A solo worker takes none while a task runs."""
        silence = clock.monotonic() - self._worker.turned_at
        if self._worker.options.pool == "solo" or silence <= max(STALLED, self._worker.options.lease):
            return ""
        return f"the worker's loop has not turned for {silence:.0f} s"

    def _is_ready(self) -> str:
        return "" if self._worker.is_serving() else "the worker claims nothing: it starts, ends, or lacks its database"
