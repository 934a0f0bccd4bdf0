"""Changes of a table that become work: what is measured of each system that handles them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import processes
from benchmarks.apps.changes_app import NOTE, NOTES
from benchmarks.article import tables
from benchmarks.article.drain import SEVERAL, Drained, at_random, in_order
from benchmarks.bench import Bench
from benchmarks.database import PATIENCE, NotMeasured, wait_for
from benchmarks.figures import Sample
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database
from benchmarks.stopping import held
from benchmarks.trial import ROOT

HANDLED: Final = "handled"
"""The key of the sample that all have: changes a second, all of which were committed in one transaction before any was
handled. The clock stops when the last of them is handled and no longer in the log."""
_MODULE: Final = "benchmarks.apps.changes_app"
_STOP: Final = 30.0
"""Seconds for a worker to end."""
_SHOWN: Final = 500
"""Characters of what a process said that are shown when it has failed."""
_LEFT: Final = """
    SELECT CASE WHEN EXISTS (SELECT 1 FROM QUEUE_TASK) THEN 1
        WHEN EXISTS (SELECT 1 FROM QUEUE_CHANGE C JOIN QUEUE_SUBSCRIPTION S ON S.ID = C.SUBSCRIPTION_ID
            WHERE S.NAME = ?) THEN 1 ELSE 0 END FROM RDB$DATABASE
    """


@dataclass(frozen=True, kw_only=True)
class Article:
    """One of the article's two ways."""

    key: str
    label: str
    drain: Callable[[str, int], Drained]
    processes: int
    """Those that handle changes."""
    ordered: bool = False
    """Whether the changes are to be handled in their order."""

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One drain in a database of its own."""
        found = self.drain(bench.database.url, bench.scale.changes)
        if found.wrong:
            raise NotMeasured(f"of {len(found.written)} changes {found.wrong} were handled twice or never")
        if self.ordered and not found.ordered:
            raise NotMeasured("the changes were not handled in their order")
        if len(found.workers) != self.processes:
            raise NotMeasured(f"{len(found.workers)} processes handled changes instead of {self.processes}")
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
    workers: int = 1
    children: int = 1
    """The processes of each worker that call it."""
    ordered: bool = False

    @property
    def processes(self) -> int:
        """Those that handle changes."""
        return self.workers * self.children

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One drain in a database of its own, whose workers wait for the commit of the changes."""
        folder = bench.new_folder()
        with scratch_database(bench.database.url) as url:
            written, seconds = self._drain(url, folder, bench.scale.changes)
        handled = _handled(folder)
        if Counter(handled) != Counter(written):
            raise NotMeasured("changes were handled twice or never")
        if self.ordered and handled != written:
            raise NotMeasured("the changes were not handled in their order")
        yield Sample(HANDLED, "changes handled", len(written) / seconds, "changes/s")

    def _drain(self, url: str, folder: Path, changes: int) -> tuple[list[int], float]:
        """Returns the keys of the changed rows in their order, and the seconds until all of them were handled."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FBTASKS_URL": url, NOTES: str(folder)}
        with ExitStack() as stack:
            _prepare(url, environment)
            with held():
                connection = stack.enter_context(closing(connect(url)))
                left = stack.enter_context(closing(_Left(connection, self.task)))
            command = (
                sys.executable, "-m", "fbtasks", "worker", "-A", _MODULE, "-Q", self.task, "-c", str(self.children)
            )  # fmt: skip
            fleet = [
                stack.enter_context(
                    closing(_Worker((*command, "-n", str(number)), environment, folder / f"log{number}"))
                )
                for number in range(self.workers)
            ]
            for worker in fleet:
                worker.wait_ready(self.children)
            with held():
                written = tables.write(connection, changes)
                begun = time.monotonic()
                connection.commit()
            wait_for(
                lambda: all(worker.running() for worker in fleet)
                and _noted(folder) >= changes
                and not left.any(),
                "all changes are handled", pause=0.002,
            )  # fmt: skip
            return written, left.seen_at - begun


class _Left:
    """Looks whether changes or tasks are left, and is in the way of the worker as little as it can.

    The statement is prepared before the clock starts, and reads no further than to the first that is left.
    """

    def __init__(self, connection: Any, task: str) -> None:
        self._connection = connection
        self._task = task
        self._cursor = connection.cursor()
        self._statement = self._cursor.prepare(_LEFT)
        self.seen_at = 0.0
        """The monotonic time of the snapshot that was looked at last."""

    def any(self) -> bool:
        """Returns whether there are any."""
        with held():
            self._connection.begin()
            self.seen_at = time.monotonic()
            (left,) = self._cursor.execute(self._statement, (self._task,)).fetchone()
            self._connection.rollback()
        return bool(left)

    def close(self) -> None:
        """Frees the statement."""
        with held():
            self._statement.free()
            self._cursor.close()


def _prepare(url: str, environment: dict[str, str]) -> None:
    """Creates the table, the queue, and the subscriptions of the app."""
    with held(), closing(connect(url)) as connection:
        tables.create_languages(connection)
    migrate = (sys.executable, "-m", "fbtasks", "migrate", "-A", _MODULE)
    done = subprocess.run(migrate, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise NotMeasured(f"its subscriptions were not made: {done.stderr.strip()[-_SHOWN:]}")


class _Worker:
    """A worker's process, until it is closed."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as opened, held():
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened,
                preexec_fn=processes.die_with_parent(signal.SIGTERM),
            )  # fmt: skip

    def close(self) -> None:
        """Has it end, and kills it when it does not."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP)
        self._process.kill()
        self._process.wait()

    def wait_ready(self, children: int) -> None:
        """Waits until the worker waits for work, and has as many *children*, which have come to rest."""
        wait_for(lambda: self.running() and "is ready" in self._log.read_text(), "the worker is ready")
        wait_for(lambda: self.running() and len(self._family()) == 1 + children, f"{children} processes of the worker")
        processes.rest(self._family, 30.0)

    def _family(self) -> list[int]:
        return processes.family(self._process.pid)

    def running(self) -> bool:
        """True. Raises :class:`NotMeasured` when the worker has ended."""
        if self._process.poll() is not None:
            raise NotMeasured(f"its worker ended: {self._log.read_text(errors='replace').strip()[-_SHOWN:]}")
        return True


def _notes(folder: Path) -> list[Path]:
    """The files of the processes that have handled changes."""
    return [path for path in folder.iterdir() if path.name.isdigit()]


def _noted(folder: Path) -> int:
    """How many calls there were."""
    return sum(path.stat().st_size for path in _notes(folder)) // NOTE.size


def _handled(folder: Path) -> list[int]:
    """The keys of the rows in the order of the calls."""
    notes = [note for path in _notes(folder) for note in NOTE.iter_unpack(path.read_bytes())]
    return [key for key, _ in sorted(notes, key=lambda note: note[1])]


ONE_WORKER = Article(
    key="article/total", label="log table, one worker in order", drain=in_order, processes=1, ordered=True
)
FIVE_PROCESSES = Article(key="article/parallel", label="log table, five processes", drain=at_random, processes=SEVERAL)
FIVE_PROCESSES_AGAIN = replace(FIVE_PROCESSES, key="article/workers", label="log table, five processes (again)")
"""What is measured beside five workers: a ratio is of what was measured one after the other."""
IN_ORDER = OnChange(key="changes/total", label="fbtasks, on_change in total order", task="total", ordered=True)
PARALLEL = OnChange(
    key="changes/parallel", label="fbtasks, on_change, one worker with five processes", task="parallel",
    children=SEVERAL,
)  # fmt: skip
FIVE_WORKERS = OnChange(
    key="changes/workers", label="fbtasks, on_change, five workers", task="parallel", workers=SEVERAL
)
