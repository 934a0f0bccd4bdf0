"""One system: its enqueue, its drain of a backlog, and its latency. The same steps for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.database import NotMeasured
from benchmarks.figures import Sample, drain_rate, percentile
from benchmarks.systems import System
from benchmarks.trial import Trial

RATE = 100
"""Tasks a second for the latency."""


@dataclass(frozen=True)
class Drain:
    """The measurement of one system."""

    system: System
    latency: bool = False

    @property
    def key(self) -> str:
        """The system's."""
        return self.system.key

    @property
    def label(self) -> str:
        """The system's."""
        return self.system.label

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """Its backlog is enqueued, then its worker started: the first half of the tasks warms it up."""
        count, singles = bench.scale.share_of(self.system.backlog), bench.scale.singles
        with Trial(bench, self.system) as trial:
            seconds = trial.produce("backlog", singles, count)
            if not self.system.kept:
                yield Sample("enqueue", "enqueue, one at a time", singles / seconds, "tasks/s")
            trial.start_worker()
            stamps = trial.stamps(count)
            yield Sample("drain", "drain", drain_rate(stamps), "tasks/s")
            if self.system.broker is None:
                end = trial.wait_settled()
                yield Sample("settled", "drain until all outcomes are written", drain_rate(stamps, end), "tasks/s")
            ran = len(trial.stamps(count))
            if ran != count:
                raise NotMeasured(f"{ran} tasks ran, and {count} were enqueued")
            if not self.system.kept:
                yield Sample("memory", "memory after the drain", trial.memory() / 2**20, "MiB")
            if self.latency:
                trial.rest()
                yield from _latency(trial, bench.scale.stamps)


def _latency(trial: Trial, count: int) -> Iterator[Sample]:
    """From the call that enqueues to the start of the task, at a rate that leaves the worker idle between."""
    trial.produce("stamps", count, RATE)
    times = [1000 * (ran - sent) for sent, ran in trial.pairs(count + 1)[1:]]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        yield Sample(f"latency {name}", f"latency at {RATE} tasks/s, {name}", percentile(times, share), "ms")
