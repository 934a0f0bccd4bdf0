"""Polls of a user's table: each look in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.kinds.rows import reason
from fbtasks.features.sources.store.poll_statements import Statements
from fbtasks.features.sources.store.polls import Poll, resolve
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.firebird.session import READ, Session, Transaction, database_info

MOST_ENDS: Final = 500
"""Ends that are written in one transaction."""
ATTEMPTS: Final = 4
"""How often a look is tried at once that meets another transaction: the next look comes soon."""
SWEPT: Final = 1000
"""Rows of a table without a status that are looked up in one transaction: whether they are still there."""
SWEPT_WITHOUT_INDEX: Final = 20
"""The same, where each look-up reads the whole table."""


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
    known: int
    """0 when the poll was dropped."""


class Known(NamedTuple):
    """A poll as it is registered."""

    id: int
    ends: bool
    """Whether another one has taken its place: the ends of its tasks are still to be written."""
    hash: str
    state: str
    definition: str
    failure: str | None
    """Why it failed the last time, in whichever worker."""


class Polled(NamedTuple):
    """A poll, with its statements for a registered subscription."""

    id: int
    """The number of its subscription."""
    poll: Poll
    statements: Statements
    expire_ms: int | None = None
    most_swept: int = SWEPT


def describe(catalog: Catalog, source: PollSource) -> Poll:
    """Returns how the table of *source* is polled.

    Raises :class:`TaskDefinitionError` for what the table does not have, and :class:`DatabaseError`.
    """
    return resolve(source, catalog.describe(source.table, "rows of {!r} cannot be polled"))


def known(session: Session, app: str, task: str) -> list[Known]:
    """Returns the polls that are registered for a task: the present one, and those of which tasks may be left."""
    return [Known(*row)._replace(ends=bool(row[1])) for row in session.read("poll_known", app, task)]


def prepare(session: Session, number: int, source: PollSource, expire_ms: int | None = None) -> Polled:
    """Returns the poll of *source* with the statements for the subscription *number*. Raises as :func:`describe`."""
    catalog = Catalog(session)
    name = describe(catalog, source).table.name
    version = session.read("poll_format", name)[0][0]
    poll = describe(catalog, source)  # anew: what is altered from now on has another format
    indexed = {name for (name,) in session.read("poll_indexed", poll.table.name)}
    is_quick = any(column.name in indexed for column in poll.key)
    return Polled(
        number,
        poll,
        Statements(number, poll, version, session.generation),
        expire_ms,
        SWEPT if is_quick else SWEPT_WITHOUT_INDEX,
    )


def waits(session: Session, polled: Polled) -> Waits:
    """Returns whether rows wait, or ends are to be written. Changes nothing."""
    with session.transaction(READ) as transaction:
        return Waits(*transaction.sql(polled.statements.look)[0])


def look(session: Session, polled: Polled, room: int, most: int, *, sweep: bool = False) -> Looked:
    """Writes the ends of tasks to their rows, and makes tasks of rows that wait, in one transaction.

    Up to *most*, and as long as there are less than *room* that are ready in the queue. With *sweep* it is also looked
    whether some of the rows that are known to be done are gone, and these are forgotten, or share their keys with
    others; the rest the next time.
    """
    return session.run(lambda t: _look(session, t, polled, room, most, sweep=sweep), point="poll", attempts=ATTEMPTS)


def _look(session: Session, transaction: Transaction, polled: Polled, room: int, most: int, *, sweep: bool) -> Looked:
    begun = transaction.call("FBTASKS_POLLS.BEGIN_POLL", polled.id, room, most)
    if begun is None:
        return Looked(missed=True)
    room, notes, duplicates = begun
    settled = made = bad = bad_ends = lost = 0
    error = ends_error = None
    if notes and polled.statements.settle:
        settled, bad_ends, ends_error, lost = transaction.sql(polled.statements.settle, MOST_ENDS)[0]
    if room > 0:
        oldest = _oldest(session, transaction) if polled.poll.needs_oldest else None
        made, bad, error = transaction.sql(polled.statements.take, room, polled.expire_ms, oldest)[0]
    if sweep and polled.statements.sweep:
        transaction.sql(polled.statements.sweep, polled.most_swept)
    why = error or ends_error
    if why is not None:
        why = reason(why)
    elif lost:
        why = _stray(transaction, polled)
    elif polled.statements.duplicates and (duplicates or bad or bad_ends or sweep):
        why = _duplicate(transaction, polled)
    return Looked(made, settled, bad + bad_ends, why, room)


def _stray(transaction: Transaction, polled: Polled) -> str | None:
    """Tells a row that is taken and has no task."""
    found = transaction.sql(polled.statements.stray)
    if not found:
        return None
    key, status = _shown(polled, found[0]), polled.poll.source.taken
    return (
        f"the row with the key {key} has the status {status!r} and no task: its key was changed while it was handled, "
        "so what became of it is not written. Give it its former key, or set its status."
    )


def _duplicate(transaction: Transaction, polled: Polled) -> str | None:
    """Tells a key that several rows have, and forgets those that one row has by now."""
    found = transaction.sql(polled.statements.duplicates, polled.most_swept)
    if not found:
        return None
    return (
        f"several rows have the key {_shown(polled, found[0])}: no more than one of them is taken, and what became of "
        "it is written only where its status tells which one it is. Give each row a key of its own."
    )


def _shown(polled: Polled, values: Iterable[bytes | None]) -> str:
    """A key as a message names it."""
    texts = ("NULL" if each is None else each.decode("utf-8", "replace") for each in values)
    return ", ".join(f"{column.name} = {text}" for column, text in zip(polled.poll.key, texts, strict=True))


def _oldest(session: Session, transaction: Transaction) -> int:
    """The number of the oldest transaction that may still be committed.

    To be asked before the table is read: what has not ended then may have ended when the statement sees the table.
    """
    first, active = database_info(
        session.connection, "OLDEST_TRANSACTION", "OLDEST_ACTIVE"
    )  # between: dead, or prepared
    return active if active - first <= 1 else int(transaction.call("FBTASKS_POLLS.OLDEST", first, active))


def note_failure(session: Session, number: int, error: str | None) -> None:
    """Keeps why a poll fails; None: it does not any more."""
    session.call("FBTASKS_POLLS.FAILED", number, error and error[:1000])


class Failing(NamedTuple):
    """A poll that fails."""

    task: str
    table: str
    since: object
    last: object
    error: str
    id: int
    """The number of its subscription."""


def failing(session: Session) -> list[Failing]:
    """Returns the polls that fail, the longest first."""
    return [Failing(*row) for row in session.read("poll_failures")]
