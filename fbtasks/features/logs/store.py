"""The lines that tasks log, packed for their workers, and in the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.database.values import as_utc
from fbtasks.firebird.session import Session, Transaction
from fbtasks.tasks.call import Said

BATCH: Final = 2_000
"""Rows that maintenance looks at, or deletes, in one transaction."""
_PIECE: Final = 8_000
"""Bytes of a row."""
_RECORDS: Final = 32_765
_MOST_ROWS: Final = 1_000
_MOST: Final = 2**31 - 1


def packed(number: int, left_out: int, head: bytes, tail: bytes) -> bytes:
    """Packs lines of the try *number* for its worker."""
    return b"%d %d %d\n%b%b" % (number, left_out, len(head), head, tail)


class Lines(NamedTuple):
    """Lines of one claim that are still to be written."""

    id: int
    claim_id: int
    number: int
    """Which try of the task it is."""
    left_out: int
    """Lines between the head and the tail that are not kept."""
    head: bytes
    """Its first lines, or more of them."""
    tail: bytes
    """Its last lines, in the place of those that were the last before."""

    @classmethod
    def of(cls, said: Said) -> Lines:
        """Unpacks *said*. Raises :class:`ValueError` for what the process of a task may say that is none of this."""
        numbers, _, data = said.data.partition(b"\n")
        number, left_out, head = (max(0, min(int(each), _MOST)) for each in numbers.split())
        return cls(said.id, said.claim_id, number, left_out, data[:head], data[head:])

    def with_more(self, more: Lines) -> Lines:
        """Returns these lines, and *more* of the same claim, that were said later."""
        return more._replace(head=self.head + more.head, tail=more.tail or self.tail)

    def records(self) -> Iterator[bytes]:
        """Yields a record for each row."""
        for kinds, data in ((b"HH", self.head), (b"TM", self.tail)):
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                kind = kinds[bool(start) :][:1]
                left_out = self.left_out if kind == b"T" else 0
                numbers = self.id, self.claim_id, self.number, left_out, piece.count(b"\n"), len(piece)
                yield b"%019d%019d%010d%010d%05d%04d%b%b" % (*numbers, kind, piece)


def put(transaction: Transaction, some: Iterable[Lines]) -> None:
    """Writes lines."""
    records = b""
    for record in (record for lines in some for record in lines.records()):
        if len(records) + len(record) > _RECORDS:
            transaction.call("FBTASKS_LOGS.PUT_LINES", records)
            records = b""
        records += record
    if records:
        transaction.call("FBTASKS_LOGS.PUT_LINES", records)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line as it is kept."""

    time: datetime
    level: str
    logger: str
    text: str
    """The message, with the traceback where it has one."""


@dataclass(frozen=True, slots=True)
class LogOfTry:
    """What is kept of one try, in the order in which it was logged. Where lines are left out one line says so."""

    try_number: int
    lines: list[LogLine]


def of_task(session: Session, task: int, number: int | None = None, most: int = _MOST_ROWS) -> list[LogOfTry]:
    """Returns what is kept of the tries of a task, the earliest first; or of the try *number* alone.

    *most*: rows that are read, the last ones.
    """
    first, last = (0, _MOST) if number is None else (number, number)
    claims: dict[int, list[tuple[int, int, int, bytes]]] = {}
    for _, claim, *row in reversed(session.read("log_rows", task, first, last, most)):
        claims.setdefault(claim, []).append((*row,))
    # By the claims: a worker that is busy writes the lines of one after another worker has written those of the next.
    return [LogOfTry(rows[0][0], [*_lines(rows)]) for _, rows in sorted(claims.items())]


def _lines(rows: list[tuple[int, int, int, bytes]]) -> Iterator[LogLine]:
    head, tail = ([*_parsed(b"".join(row[3] for row in rows if row[1] == is_tail))] for is_tail in (0, 1))
    yield from head
    if tail and (left_out := sum(row[2] for row in rows)):
        yield LogLine(tail[0].time, "INFO", "fbtasks", f"(lines that are not kept: {left_out:,})")
    yield from tail


def _parsed(data: bytes) -> Iterator[LogLine]:
    for line in data.split(b"\n"):
        with suppress(ValueError, TypeError, ArithmeticError, OSError):  # half of one, or what a task made up
            time, *texts = json.loads(line)
            level, logger, text = map(str, texts)
            yield LogLine(clock.from_ms(time), level, logger, text)


def size(session: Session, task: int) -> tuple[int, int]:
    """Returns of how many tries of a task lines are kept, and how many lines."""
    ((tries, lines),) = session.read("log_count", task)
    return tries, lines or 0


def newest(session: Session, below: int, most: int) -> list[tuple[int, str | None, int, int, datetime]]:
    """Returns up to *most* tasks with a number less than *below*, the highest first.

    Of each its number, its name, as :func:`size` says, and when its last lines were written.
    """
    rows = session.read("log_tasks", below, most)
    return [(task, name, tries, lines, as_utc(time)) for task, name, tries, lines, time in rows]
