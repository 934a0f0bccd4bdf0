"""What the benchmark asks of the database: a task's life in pure PSQL, and a count of what a worker asks.

All rows bear a queue name of the benchmark's own, so nobody's tasks are in its way, and it can take its own away again.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from fbtasks.call import Call
from fbtasks.firebird.session import INSERT, READ, SNAPSHOT, Session, Transaction
from fbtasks.firebird.translate import translate
from fbtasks.sql import bench_queries

CLEAR: Final = 20_000
"""Rows that are taken away in one transaction."""


class Claimed(NamedTuple):
    """A claim of the ceiling: all tasks of the benchmark that run and have these ids."""

    number: int
    first_id: int | None
    last_id: int | None


class Bench:
    """The benchmark's statements on one session, prepared once."""

    def __init__(self, session: Session, queue: str) -> None:
        self.session = session
        self.queue = queue
        self._prepared: dict[str, Any] = {}

    def rows(self, transaction: Transaction, name: str, *params: object) -> list[tuple[Any, ...]]:
        """All rows of the query *name* of ``bench.sql``."""
        try:
            cursor = transaction.driver.cursor()
            try:
                statement = self._prepared.get(name)
                if statement is None:
                    statement = self._prepared[name] = cursor.prepare(bench_queries()[name])
                cursor.execute(statement, params)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()
        except Exception as error:
            raise translate(error, self.session.url) from error

    def run(self, name: str, *params: object) -> Any:
        """The query in a transaction of its own, tried again on a conflict. Gives its first value, or None."""
        rows = self.session.run(lambda t: self.rows(t, name, *params), INSERT)
        return rows[0][0] if rows else None

    def insert(
        self, name: str, most: int, *, numbered: bool = False, after: int = 0, within: Transaction | None = None
    ) -> None:
        """Enqueues *most* calls of the task *name*, with no arguments or *numbered* from 0, due *after* seconds."""
        params = (self.queue, name, most, int(numbered), after)
        if within is None:
            self.run("bench_insert", *params)
        else:
            self.rows(within, "bench_insert", *params)

    def claim(self, worker_id: int, most: int) -> Claimed:
        """Claims up to *most*, and commits."""
        found = self.session.run(lambda t: self.rows(t, "bench_claim", self.queue, worker_id, most), INSERT)
        return Claimed(*found[0])

    def delete(self, claimed: Claimed) -> int:
        """Finishes claimed tasks by deleting them, and commits. Gives how many."""
        return int(self.run("bench_delete", self.queue, claimed.first_id, claimed.last_id))

    def move(self, claimed: Claimed) -> int:
        """Finishes claimed tasks by moving them to the history, and commits. Gives how many."""
        return int(self.run("bench_move", self.queue, claimed.first_id, claimed.last_id))

    def fill_history(self, name: str, most: int) -> None:
        """Writes *most* finished tasks."""
        while most > 0:
            self.run("bench_history", self.queue, name, min(most, CLEAR))
            most -= CLEAR

    def left(self) -> bool:
        """Whether tasks of the benchmark are ready or run."""
        with self.session.transaction(READ) as transaction:
            return any(self.rows(transaction, "bench_left", state, self.queue) for state in (2, 0))

    def conflicts(self) -> int:
        """The conflicts that all workers have counted so far."""
        return int(self.run("bench_conflicts"))

    def facts(self) -> tuple[str, int, int, bool]:
        """The engine's version, the page size in bytes, the pages of its cache, and whether writes are forced."""
        with self.session.transaction(READ) as transaction:
            version, page_size, buffers, forced = self.rows(transaction, "bench_facts")[0]
        return version, page_size, buffers, bool(forced)

    def clear(self, since: datetime) -> None:
        """Takes away its tasks, what it finished *since* then (database time), and its counters."""
        while self.run("bench_clear_tasks", self.queue, CLEAR):
            pass
        while self.run("bench_clear_history", self.queue, since, CLEAR):
            pass
        self.run("bench_clear_stats", self.queue)

    def close(self) -> None:
        """Frees the statements; the session stays."""
        for statement in self._prepared.values():
            statement.free()
        self._prepared.clear()


class Bare:
    """A bare INSERT of a task's row, as an application would write it by hand: prepared once, all values bound."""

    def __init__(self, session: Session) -> None:
        self._connection = session.connection
        self._connection.begin(INSERT)
        with self._connection.cursor() as cursor:
            self._statement = cursor.prepare(bench_queries()["bench_bare"])
        self._connection.rollback()

    def insert(self, call: Call, now: datetime) -> None:
        """Writes the row of *call*, posts its event, and commits."""
        connection = self._connection
        connection.begin(INSERT)
        with connection.cursor() as cursor:
            cursor.execute(
                self._statement,
                (
                    call.name, call.queue, 0, -call.priority, now, now, None, call.max_tries, 0,
                    call.content_type, call.payload,
                ),
            )  # fmt: skip
        connection.commit()

    def close(self) -> None:
        """Frees the statement."""
        self._statement.free()


@contextmanager
def held_snapshot(session: Session) -> Iterator[None]:
    """Holds a snapshot transaction open for the block."""
    connection = session.connection
    connection.begin(SNAPSHOT)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM RDB$DATABASE").fetchall()
        yield
    finally:
        connection.rollback()


class Observer:
    """Counts what this process asks of the database, and how long its transactions take.

    The number of statements is in *file*, for other processes to read at any time (see :func:`statements`).
    """

    def __init__(self, file: Path) -> None:
        self.transactions: dict[str, list[float]] = {}
        """Count and seconds of the transactions of each purpose: claim, finish, heartbeat, ..."""
        self.queries: dict[str, list[float]] = {}
        """Count and seconds of the statements of each name."""
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 8)
        self.count = 0

    def install(self) -> None:
        """Begins to count. For good: it is meant for a process that is started to be observed."""
        from firebird.driver import interfaces

        for kind, name in (
            (interfaces.iStatement, "execute"), (interfaces.iStatement, "open_cursor"),
            (interfaces.iAttachment, "execute"), (interfaces.iBatch, "execute"),
        ):  # fmt: skip
            self._count_calls(kind, name)
        self._time_calls(Session, "run", self.transactions, _point)
        self._time_calls(Transaction, "rows", self.queries, lambda _self, name, *_a, **_k: name)

    def _count_calls(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            struct.pack_into("=q", self._shared, 0, self.count)
            return original(*args, **kwargs)

        setattr(kind, name, counted)

    def _time_calls(self, kind: Any, name: str, into: dict[str, list[float]], key_of: Callable[..., str]) -> None:
        original = getattr(kind, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                entry = into.setdefault(key_of(*args, **kwargs), [0, 0.0])
                entry[0] += 1
                entry[1] += time.perf_counter() - begun

        setattr(kind, name, timed)


def _point(_session: Session, _work: object, _kind: bytes = b"", point: str = "", **_: object) -> str:
    return point


def statements(file: Path) -> int:
    """The statements that the process observed into *file* has executed."""
    return int(struct.unpack("=q", file.read_bytes())[0])
