"""The database that is measured, under a queue name of the benchmark's own."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from firebird.driver import DatabaseError

from benchmarks.apps.fbtasks_app import make_app
from benchmarks.internals import INSERT, READ, SNAPSHOT, check_queue, is_embedded, registered_worker
from benchmarks.stopping import held
from fbtasks import FBTasks

CLEAR: Final = 20_000
"""Rows that are deleted in one transaction."""
PATIENCE: Final = 120.0
_CONFLICTS: Final = {335544336, 335544345, 335544451, 335544878}
"""Deadlock, lock conflict, update conflict, concurrent transaction: the transaction is run again."""


class NotMeasured(Exception):
    """Something cannot be measured here; the message says why."""


def wait_for(condition: Callable[[], object], what: str, *, pause: float = 0.005, seconds: float = PATIENCE) -> None:
    """Waits until *condition* is true. Raises :class:`NotMeasured` when that takes too long."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise NotMeasured(f"{what}: not after {seconds:g} seconds")
        time.sleep(pause)


@cache
def _queries() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Claimed(NamedTuple):
    """Tasks that were claimed: all of the benchmark that run and have these ids."""

    number: int
    first_id: int | None
    last_id: int | None


class BenchDatabase:
    """A database with a queue, and the benchmark's statements on one connection, prepared once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.embedded = is_embedded(url)
        self.queue = f"fbtasks-bench-{uuid.uuid4().hex[:12]}"
        self.app: FBTasks = make_app(url, self.queue)
        check_queue(self.app)
        self._connection = self.app.connect()
        self._prepared: dict[str, Any] = {}
        self._since = self.row("now")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.clear()
        finally:
            for statement in self._prepared.values():
                statement.free()
            self._connection.close()
            self.app.close()

    def row(self, name: str, *params: object, kind: bytes = INSERT) -> tuple[Any, ...]:
        """The first row of the query *name* in a transaction of its own, run again after a conflict."""
        while True:
            with held():
                self._connection.begin(kind)
                try:
                    with closing(self._connection.cursor()) as cursor:
                        if name not in self._prepared:
                            self._prepared[name] = cursor.prepare(_queries()[name])
                        cursor.execute(self._prepared[name], params)
                        found = cursor.fetchone() if cursor.description else None
                    self._connection.commit()
                except DatabaseError as error:
                    self._connection.rollback()
                    if not _CONFLICTS.intersection(error.gds_codes):
                        raise
                else:
                    return found or ()

    def insert(self, name: str, most: int, *, numbered: bool = False, after: int = 0) -> None:
        """Enqueues *most* calls of the task *name* at once, due in *after* seconds; *numbered*: from 0."""
        self.row("insert", self.queue, name, most, int(numbered), after)

    def insert_bare(self, name: str, now: object) -> None:
        """Writes the row of one call as an application would by hand: all values bound, its event posted, committed."""
        self.row("bare", name, self.queue, 0, 0, now, now, None, 1, "application/json", b"[[],{}]")

    def now(self) -> object:
        """The database's time, in UTC."""
        return self.row("now")[0]

    def claim(self, worker_id: int, most: int) -> Claimed:
        """Claims up to *most*."""
        return Claimed(*self.row("claim", self.queue, worker_id, most))

    def delete(self, claimed: Claimed) -> None:
        """Finishes claimed tasks by deleting them."""
        self.row("delete", self.queue, claimed.first_id, claimed.last_id)

    def move(self, claimed: Claimed) -> None:
        """Finishes claimed tasks by moving them to the history."""
        self.row("move", self.queue, claimed.first_id, claimed.last_id)

    def fill_history(self, name: str, most: int) -> None:
        """Writes *most* finished tasks."""
        for begun in range(0, most, CLEAR):
            self.row("history", self.queue, name, min(most - begun, CLEAR))

    def drained(self) -> bool:
        """Whether no task of the benchmark is ready or runs."""
        return not any(self.row("left", state, self.queue, kind=READ) for state in (2, 0))

    def conflicts(self) -> int:
        """The conflicts that all workers have counted so far."""
        return int(self.row("conflicts", kind=READ)[0])

    def facts(self) -> tuple[str, int, int, bool]:
        """The engine's version, the page size in bytes, the pages of its cache, and whether writes are forced."""
        version, page_size, buffers, forced = self.row("facts", kind=READ)
        return version, page_size, buffers, bool(forced)

    def registered(self) -> AbstractContextManager[int]:
        """For a block: the id of a worker that this process plays, so that no worker takes its claims for orphans."""
        return registered_worker(self.app, self.queue)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Holds a snapshot transaction open for the block."""
        with closing(self.app.connect()) as connection:
            with held(), closing(connection.cursor()) as cursor:
                connection.begin(SNAPSHOT)
                cursor.execute("SELECT 1 FROM RDB$DATABASE").fetchall()
            yield
            connection.rollback()

    def clear(self) -> None:
        """Deletes the benchmark's tasks, what it has finished, and its counters."""
        while self.row("clear_tasks", self.queue, CLEAR)[0]:
            pass
        while self.row("clear_history", self.queue, self._since, CLEAR)[0]:
            pass
        self.row("clear_stats", self.queue)
