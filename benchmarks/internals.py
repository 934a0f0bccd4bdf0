"""The parts of fbtasks that are not public and that the benchmark needs, and a worker whose statements are counted.

``python -m benchmarks.internals FILE worker ...`` is an ordinary worker. Its statements are counted in FILE, for other
processes to read at any time, and FILE.json says at its end how long those of each name took.
"""

from __future__ import annotations

import json
import mmap
import os
import runpy
import struct
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fbtasks import FBTasks
from fbtasks.firebird import connections
from fbtasks.firebird.session import INSERT, READ, SNAPSHOT, Transaction
from fbtasks.queue.register import hosts, processes
from fbtasks.url import DatabaseURL

__all__ = [
    "INSERT",
    "READ",
    "SNAPSHOT",
    "check_queue",
    "connect",
    "is_embedded",
    "query_seconds",
    "registered_worker",
    "statements",
    "url_beside",
]


def is_embedded(url: str) -> bool:
    """Whether *url* names a file of the embedded engine."""
    return DatabaseURL.parse(url).embedded


def check_queue(app: FBTasks) -> None:
    """Raises :class:`FBTasksError` when the app's database is missing or has no queue; creates nothing."""
    app.database.open().close()


def connect(url: str, *, create: bool = False) -> Any:
    """A connection of the driver's to *url*, which needs no queue, with the engine that fbtasks uses.

    With *create* the database is created.
    """
    return connections.connect(DatabaseURL.parse(url), create=create)


def url_beside(url: str) -> str:
    """The URL, with its password, of a database beside that of *url* that does not exist."""
    parsed = DatabaseURL.parse(url)
    return replace(parsed, database=f"{parsed.database}.{uuid.uuid4().hex[:12]}").reveal()


@contextmanager
def registered_worker(app: FBTasks, queue: str) -> Iterator[int]:
    """The id of a registered worker that this process plays."""
    with closing(app.database.open()) as session:
        worker_id = session.run(
            lambda t: processes.register(
                t, "worker", name="benchmark", host=hosts.host_name(), pid=os.getpid(),
                pid_start=hosts.start_ticks(os.getpid()), lease=3600.0, queues=[queue], pool="solo",
                concurrency=1, version="", tasks=[],
            )
        )  # fmt: skip
        try:
            yield worker_id
        finally:
            session.call("FBTASKS_WORKER.UNREGISTER", worker_id)


class _Observer:
    """Counts the statements of this process, and the seconds that those of each name take."""

    def __init__(self, file: Path) -> None:
        self.seconds: dict[str, float] = {}
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 8)
        self._count = 0

    def install(self) -> None:
        """Begins to count. For good: it is meant for a process that is started to be observed."""
        from firebird.driver import interfaces

        for kind, name in (
            (interfaces.iStatement, "execute"), (interfaces.iStatement, "open_cursor"),
            (interfaces.iAttachment, "execute"), (interfaces.iBatch, "execute"),
        ):  # fmt: skip
            self._count_calls(kind, name)
        self._time_queries()

    def _count_calls(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count += 1
            struct.pack_into("=q", self._shared, 0, self._count)
            return original(*args, **kwargs)

        setattr(kind, name, counted)

    def _time_queries(self) -> None:
        original = Transaction.rows

        def timed(transaction: Transaction, name: str, *args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return original(transaction, name, *args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

        Transaction.rows = timed  # type: ignore[method-assign, assignment]


def statements(file: Path) -> int:
    """The statements that the process observed into *file* has executed so far."""
    return int(struct.unpack("=q", file.read_bytes())[0])


def query_seconds(file: Path, prefix: str) -> float:
    """The seconds that a process, which has ended, spent in queries and procedures whose names begin with *prefix*."""
    found: dict[str, float] = json.loads(Path(f"{file}.json").read_text())
    return sum(seconds for name, seconds in found.items() if name.startswith(prefix))


def main() -> None:
    """Runs the command line of fbtasks, observed."""
    file = Path(sys.argv.pop(1))
    observer = _Observer(file)
    observer.install()
    sys.argv[0] = "fbtasks"
    try:
        runpy.run_module("fbtasks", run_name="__main__")
    finally:
        Path(f"{file}.json").write_text(json.dumps(observer.seconds))


if __name__ == "__main__":
    main()
