"""Polls of a user's table: noted in the database, and run, each look in one transaction."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Final, NamedTuple

from fbtasks.firebird.session import READ, Session, Transaction
from fbtasks.poll_source import PollSource
from fbtasks.store.sources import tables
from fbtasks.store.sources.polls import Poll, Statements, resolve

MOST_ENDS: Final = 500
"""Ends that are written in one transaction."""


class Looked(NamedTuple):
    """What a look at a table has come to."""

    made: int = 0
    """Tasks that were made of rows."""
    settled: int = 0
    """Ends of tasks that were written to their rows."""
    bad: int = 0
    """Rows that could not be taken, or to which an end could not be written, and that are tried again."""
    error: str | None = None
    """Why, of the last one; None where another transaction holds it."""
    room: int = 0
    """How many tasks could have been made."""
    missed: bool = False
    """Whether another worker was at it."""


class Waits(NamedTuple):
    """What a look without changes has found."""

    ends: int
    """1 when ends of tasks are to be written to their rows."""
    rows: int
    """1 when rows wait that may be taken."""


class Polled(NamedTuple):
    """A poll that is noted in the database."""

    id: int
    """The number of its subscription."""
    poll: Poll
    statements: Statements
    expire_ms: int | None
    failure: str | None
    """Why it failed the last time, in whichever worker."""


def prepare(
    session: Session, app: str, task: str, source: PollSource, queue: str, priority: int, expire_ms: int | None
) -> Polled:
    """Returns the poll of *source* for *task*, noted in the database.

    Raises :class:`TaskDefinitionError` for what the table does not have, and :class:`DatabaseError`.
    """
    poll = resolve(source, tables.describe(session, source.table, "rows of {!r} cannot be polled"))
    number, failure = register(session, app, task, source, queue, priority)
    return Polled(number, poll, Statements(number, poll), expire_ms, failure)


def register(
    session: Session, app: str, task: str, source: PollSource, queue: str, priority: int
) -> tuple[int, str | None]:
    """Notes the definition in the database, if it is not there as it is.

    Returns the subscription's number, and why its poll failed the last time.
    """
    definition = json.dumps({**asdict(source), "queue": queue, "priority": priority}, sort_keys=True)
    digest = hashlib.sha256(definition.encode()).hexdigest()
    for number, noted, state, failure in session.read("poll_known", app, task):
        if noted == digest and state != "orphaned":
            return number, failure
    ordering = "key" if source.status is not None or source.delete or source.sequence is None else "none"
    values = (app, task, source.table, queue, -priority, ordering, definition, digest)
    return int(session.run(lambda t: t.value("poll_register", *values))), None


def waits(session: Session, polled: Polled) -> Waits:
    """Returns whether rows wait, or ends are to be written. Changes nothing."""
    with session.transaction(READ) as transaction:
        return Waits(*transaction.generated(polled.statements.look)[0])


def look(session: Session, polled: Polled, room: int, most: int) -> Looked:
    """Writes the ends of tasks to their rows, and makes tasks of rows that wait, in one transaction.

    Up to *most*, and as long as there are less than *room* that are ready in the queue.
    """
    return session.run(lambda t: _look(session, t, polled, room, most), point="poll")


def _look(session: Session, transaction: Transaction, polled: Polled, room: int, most: int) -> Looked:
    begun = transaction.rows("poll_begin", polled.id, room, most)
    if not begun:
        return Looked(missed=True)
    room, notes = begun[0]
    settled = made = bad = bad_ends = 0
    error = ends_error = None
    if notes and polled.statements.settle:
        settled, bad_ends, ends_error = transaction.generated(polled.statements.settle, MOST_ENDS)[0]
    if room > 0:
        # Read before the statement: what is active when it begins may have ended when it sees the table.
        oldest = session.oldest_active() if polled.poll.needs_oldest else None
        made, bad, error = transaction.generated(polled.statements.take, room, polled.expire_ms, oldest)[0]
    return Looked(made, settled, bad + bad_ends, error or ends_error, room)


def note_failure(session: Session, number: int, error: str | None) -> None:
    """Keeps why a poll fails; None: it does not any more."""
    session.run(lambda t: t.execute("poll_failed", number, error and error[:1000]))


class Failing(NamedTuple):
    """A poll that fails."""

    task: str
    table: str
    since: object
    last: object
    error: str


def failing(session: Session) -> list[Failing]:
    """Returns the polls that fail, the longest first."""
    return [Failing(*row) for row in session.read("poll_failures")]
