"""Changes of a table that become work: what is measured of each system that handles them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.apps.changes_app import NOTES
from benchmarks.article import tables
from benchmarks.article.drain import SEVERAL, Drained, at_random, in_order
from benchmarks.bench import Bench
from benchmarks.database import NotMeasured, wait_for
from benchmarks.figures import Sample
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database
from benchmarks.stopping import held
from benchmarks.trial import ROOT
from fbtasks import FBTasks
from fbtasks.services import subscriptions

HANDLED = "handled"
"""The key of the sample that all of them have: changes a second, all of which were committed before the start."""


@dataclass(frozen=True, kw_only=True)
class Article:
    """One of the article's two ways."""

    key: str
    label: str
    drain: Callable[[str, int], Drained]
    ordered: bool = False
    """Whether the changes are to be handled in their order."""

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One drain in a database of its own."""
        found = self.drain(bench.database.url, bench.scale.changes)
        if found.wrong:
            raise NotMeasured(f"of {len(found.written)} changes {found.wrong} were handled twice or never")
        if self.ordered and not found.ordered:
            raise NotMeasured("the changes were not handled in their order")
        yield Sample(HANDLED, "changes handled", found.rate, "changes/s")
        if not self.ordered:
            yield Sample("conflicts", "conflicts", found.conflicts, "conflicts")


@dataclass(frozen=True, kw_only=True)
class OnChange:
    """A task of fbtasks that is called for each change."""

    key: str
    label: str
    task: str
    """Its name, which is that of its queue as well."""
    workers: int
    processes: int = 1
    """Those of each worker that call it."""
    ordered: bool = False

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One drain in a database of its own: from when the task may be called until it was called for all."""
        folder = bench.new_folder()
        with scratch_database(bench.database.url) as url:
            written, begun = self._drain(url, folder, bench.scale.changes)
        noted = _noted(folder)
        keys = [key for key, _ in noted]
        if Counter(keys) != Counter(written):
            raise NotMeasured("changes were handled twice or never")
        if self.ordered and keys != written:
            raise NotMeasured("the changes were not handled in their order")
        seconds = (max(moment for _, moment in noted) - begun) / 1e9
        yield Sample(HANDLED, "changes handled", len(written) / seconds, "changes/s")

    def _drain(self, url: str, folder: Path, changes: int) -> tuple[list[int], int]:
        """Returns the keys of the changed rows in their order, and when the workers were let at them."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FBTASKS_URL": url, NOTES: str(folder)}
        command = (sys.executable, "-m", "fbtasks")
        with held(), closing(connect(url)) as connection:
            tables.create_languages(connection)
        for action in (("migrate", "-A", "benchmarks.apps.changes_app"), ("subscriptions", "pause", self.task)):
            subprocess.run([*command, *action], env=environment, check=True, capture_output=True)
        with held(), closing(connect(url)) as connection:
            written = tables.insert(connection, changes)
        with ExitStack() as stack:
            for number in range(self.workers):
                log = stack.enter_context((folder / f"log{number}").open("w"))
                arguments = (
                    "worker",
                    "-A",
                    "benchmarks.apps.changes_app",
                    "-Q",
                    self.task,
                    "-c",
                    f"{self.processes}",
                    "-n",
                    f"{number}",
                )
                worker = subprocess.Popen(
                    [*command, *arguments],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=processes.die_with_parent(),
                )
                stack.callback(worker.wait)
                stack.callback(worker.terminate)
            wait_for(lambda: _logged(folder).count("is ready") == self.workers, "the workers are ready")
            with closing(FBTasks("fbtasks-bench-changes", url)) as app:
                subscriptions.list_sources(app.database)  # connects
                begun = time.time_ns()
                subscriptions.resume(app.database, [self.task])
                wait_for(lambda: len(_noted(folder)) >= changes, "all changes are handled", pause=0.01)
        return written, begun


def _noted(folder: Path) -> list[tuple[int, int]]:
    """The keys of the rows that were handled, and when, by file."""
    return [
        (int(key), int(moment))
        for path in sorted(folder.iterdir())
        if path.name.isdigit()
        for key, moment in (line.split() for line in path.read_text().splitlines())
    ]


def _logged(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("log*"))


ONE_WORKER = Article(key="article/total", label="log table, one worker in order", drain=in_order, ordered=True)
FIVE_PROCESSES = Article(key="article/parallel", label="log table, five processes", drain=at_random)
IN_ORDER = OnChange(
    key="fbtasks/changes/total", label="fbtasks, on_change in total order", task="total", workers=1, ordered=True
)
PARALLEL = OnChange(
    key="fbtasks/changes/parallel",
    label="fbtasks, on_change, five processes",
    task="parallel",
    workers=1,
    processes=SEVERAL,
)
