"""Where the benchmark runs: one database, a queue name of its own in it, and a folder for what its tasks say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from fbtasks.app import FBTasks
from fbtasks.bench import processes
from fbtasks.bench.tasks import OUT_VARIABLE, QUEUE_VARIABLE, make_app
from fbtasks.bench.worker import OBSERVE_VARIABLE, PARENT_VARIABLE
from fbtasks.errors import FBTasksError
from fbtasks.firebird.session import Session
from fbtasks.liveness import hosts
from fbtasks.store import processes as register
from fbtasks.store import tasks
from fbtasks.store.bench import Bench, statements
from fbtasks.url import URL_VARIABLE, DatabaseURL

PATIENCE = 600.0
"""Seconds after which something that does not happen is given up."""


def wait_for(condition: Callable[[], object], what: str, *, pause: float = 0.002, seconds: float = PATIENCE) -> None:
    """Waits until *condition* is true. Raises :class:`FBTasksError` when that takes too long."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise FBTasksError(f"the benchmark waited {seconds:g} seconds in vain for {what}.")
        time.sleep(pause)


class Place:
    """A database to measure in. Its own queue name keeps it apart from everybody's tasks."""

    def __init__(self, url: DatabaseURL) -> None:
        self.url = url
        self.queue = f"fbtasks-bench-{uuid.uuid4().hex[:12]}"
        self.app: FBTasks = make_app(url.reveal(), self.queue)
        self.session: Session = self.app.database.open()
        self._folder = tempfile.TemporaryDirectory(prefix="fbtasks-bench-")
        self.folder = Path(self._folder.name)
        self.bench = Bench(self.session, self.queue)
        self.since = self.session.run(tasks.database_time)
        self._files = 0

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.bench.clear(self.since)
        finally:
            self.bench.close()
            self.session.close()
            self.app.close()
            self._folder.cleanup()

    def clear(self) -> None:
        """Takes away whatever the benchmark has written so far."""
        self.bench.clear(self.since)

    def file(self) -> Path:
        """A new file name."""
        self._files += 1
        return self.folder / f"out{self._files}"

    @contextmanager
    def registered(self) -> Iterator[int]:
        """The id of a registered worker that this process plays, so that nobody takes its claims for orphans."""
        worker_id = self.session.run(
            lambda t: register.register(
                t, "worker", name="benchmark", host=hosts.host_name(), pid=os.getpid(),
                pid_start=hosts.start_ticks(os.getpid()), lease=3600.0, queues=[self.queue], pool="solo", concurrency=1,
                version="",
            )
        )  # fmt: skip
        try:
            yield worker_id
        finally:
            self.session.run(lambda t: register.unregister(t, worker_id))

    def backlog(self, name: str, count: int, *, numbered: bool = False) -> None:
        """Enqueues *count* calls of the task *name* between two marks, seen by the workers all at once."""
        mark = self.app.tasks["mark"]
        with self.session.transaction() as transaction:
            mark.using(transaction.driver).delay("first")
            self.bench.insert(name, count, numbered=numbered, within=transaction)
            mark.using(transaction.driver).delay("last")

    def drained(self) -> bool:
        """Whether nothing of the benchmark is ready or runs."""
        return not self.bench.left()


class Worker:
    """A worker of the benchmark, as a process of its own; ended with the block."""

    def __init__(self, place: Place, pool: str, concurrency: int, *, out: Path | None = None) -> None:
        self.place = place
        self.out = out or place.file()
        self._observed = place.file()
        self._log = place.file()
        self._command = [
            sys.executable, "-m", "fbtasks.bench.worker", "worker", "-A", "fbtasks.bench.app", "-Q", place.queue,
            "--pool", pool, "-c", str(concurrency), "-l", "WARNING",
        ]  # fmt: skip
        self._warm_up = max(20, 4 * concurrency)
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """What the worker is told through its environment."""
        return {
            **os.environ, URL_VARIABLE: self.place.url.reveal(), QUEUE_VARIABLE: self.place.queue,
            OUT_VARIABLE: str(self.out), OBSERVE_VARIABLE: str(self._observed), PARENT_VARIABLE: str(os.getpid()),
        }  # fmt: skip

    def __enter__(self) -> Worker:
        self.out.touch()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self._command, env=self.environment(), stderr=log, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the worker. Raises :class:`FBTasksError` with its log when it ended by itself or did not obey."""
        process, self.process = self.process, None
        if process is None:
            return
        failed = process.poll() is not None
        if not failed:
            process.send_signal(signal.SIGTERM)
            try:
                failed = process.wait(60) != 0
            except subprocess.TimeoutExpired:
                failed = True
                process.kill()
                process.wait()
        if failed:
            raise FBTasksError(f"a worker of the benchmark ended with {process.returncode}: {self.log()[-2000:]}")

    def log(self) -> str:
        """What the worker printed."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The worker's process."""
        assert self.process is not None
        return self.process.pid

    def check(self) -> None:
        """Raises :class:`FBTasksError` when the worker has ended."""
        if self.process is None or self.process.poll() is not None:
            raise FBTasksError(f"a worker of the benchmark ended by itself: {self.log()[-2000:]}")

    def settle(self) -> None:
        """Waits until the worker and its children have run some tasks and have come to rest."""
        self.place.bench.insert("noop", self._warm_up)
        self.place.app.tasks["mark"].delay("warm")
        wait_for(lambda: self.said("warm"), "a worker's first task", pause=0.02)
        wait_for(self.place.drained, "a worker's first tasks", pause=0.02)
        self.rest()

    def rest(self) -> None:
        """Waits until the worker uses hardly any processor time."""
        if not processes.known():
            time.sleep(1.0)
            return

        def resting() -> bool:
            self.check()
            before = processes.cpu_seconds(processes.family(self.pid))
            time.sleep(0.25)
            return processes.cpu_seconds(processes.family(self.pid)) - before < 0.03

        wait_for(resting, "a worker to come to rest", seconds=60.0)

    def forget(self) -> None:
        """Forgets what its tasks have said so far."""
        os.truncate(self.out, 0)

    def marks(self) -> dict[str, float]:
        """The marks so far and when they were made."""
        lines = (line.split() for line in self.out.read_text().splitlines())
        return {words[0]: float(words[1]) for words in lines if len(words) == 2}

    def said(self, mark: str) -> bool:
        """Whether a task has made *mark*. Raises :class:`FBTasksError` when the worker has ended."""
        self.check()
        return mark in self.marks()

    def lines(self) -> list[str]:
        """All that its tasks said."""
        return self.out.read_text().splitlines()

    def statements(self) -> int:
        """The statements that the worker itself has executed so far."""
        return statements(self._observed)

    def seen(self) -> Path:
        """The file with what the worker asked of the database; there when it has ended."""
        return Path(f"{self._observed}.json")
