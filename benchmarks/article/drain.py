"""Changes that wait, handled by the article's workers: in a database of its own, with the workers in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from benchmarks import processes
from benchmarks.article import tables
from benchmarks.article.workers import URL, Handled
from benchmarks.database import PATIENCE, NotMeasured
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database
from benchmarks.stopping import held
from benchmarks.trial import ROOT

EVENTS: Final = 500
"""As many as in the article."""
SEVERAL: Final = 5


@dataclass(frozen=True, slots=True)
class Drained:
    """What the workers did with the changes, all of which were committed before."""

    written: list[int]
    """The keys of the changed rows, in the order of the changes."""
    workers: list[Handled]
    left: dict[str, int]
    """The events in the log of each subscriber at the end."""

    @property
    def seconds(self) -> float:
        """From the word to start until the last worker found nothing: connections count, starts of processes do not."""
        return max(worker.ended for worker in self.workers) - min(worker.begun for worker in self.workers)

    @property
    def rate(self) -> float:
        """Events a second."""
        return len(self.written) / self.seconds

    @property
    def conflicts(self) -> int:
        """Claims that failed because of another process."""
        return sum(worker.conflicts for worker in self.workers)

    @property
    def kept(self) -> int:
        """Events that were handled and could not be deleted because of a conflict."""
        return sum(worker.kept for worker in self.workers)

    @property
    def ordered(self) -> bool:
        """Whether the changes were handled in their order, by one worker after the other."""
        return [key for worker in self.workers for key in worker.keys] == self.written

    @property
    def wrong(self) -> int:
        """Changes that were not handled exactly once, and events that were neither deleted nor counted as kept."""
        times = Counter(key for worker in self.workers for key in worker.keys)
        stray = times.keys() - set(self.written)
        return sum(times[key] != 1 for key in self.written) + len(stray) + abs(self.left[tables.SUBSCRIBER] - self.kept)


def in_order(url: str, events: int = EVENTS) -> Drained:
    """One worker handles *events* changes one after the other."""
    return _drain(url, "in_order", 1, events)


def at_random(url: str, events: int = EVENTS) -> Drained:
    """Five processes handle *events* changes side by side."""
    return _drain(url, "at_random", SEVERAL, events)


def _drain(url: str, name: str, number: int, events: int) -> Drained:
    """Makes the changes in a new database beside that of *url*, then starts *number* workers of the kind *name*."""
    with scratch_database(url) as own:
        with held(), closing(connect(own)) as connection:
            tables.create(connection)
            written = tables.insert(connection, events)
        with ExitStack() as stack:
            workers = [stack.enter_context(closing(_Process(own, name))) for _ in range(number)]
            for worker in workers:
                worker.wait_ready()
            for worker in workers:
                worker.start()
            handled = [worker.finish() for worker in workers]
        with held(), closing(connect(own)) as connection:
            return Drained(written, handled, tables.left(connection))


class _Process:
    """One worker's process, until it is closed."""

    def __init__(self, url: str, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.article.workers", name], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), URL: url},
            preexec_fn=processes.die_with_parent(),
        )  # fmt: skip

    def close(self) -> None:
        """Ends it, whatever it is at."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait_ready(self) -> None:
        """Waits until the engine is loaded. Raises :class:`NotMeasured` when the process has ended."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise self._failed(self._process.communicate()[1])

    def start(self) -> None:
        """Has it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("start\n")
        self._process.stdin.flush()

    def finish(self) -> Handled:
        """What it did, when it has ended. Raises :class:`NotMeasured` when it failed."""
        said, errors = self._process.communicate(timeout=PATIENCE)
        if self._process.returncode:
            raise self._failed(errors)
        return Handled(**json.loads(said))

    def _failed(self, errors: str) -> NotMeasured:
        return NotMeasured(f"a worker of the article ended: {errors.strip()[-500:]}")
