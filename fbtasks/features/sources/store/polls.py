"""Brings the definition of a poll together with the description of its table."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from fbtasks.errors import TaskDefinitionError
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import tables, texts
from fbtasks.features.sources.store.capture import check_column
from fbtasks.features.sources.store.tables import BIGINT, BLOB, INTEGER, SMALLINT, Column, Table
from fbtasks.features.sources.store.texts import charset_of
from fbtasks.firebird.driver.charsets import encoded
from fbtasks.system.showing import count

NAME_LENGTH: Final = len("fbtasks:") + 19
"""The characters of a status that names its task: what stands before the number, and its digits."""
MOST_KEY: Final = 2000
"""The most bytes of a column of a key."""
_RANGES: Final = {SMALLINT: 15, INTEGER: 31, BIGINT: 63}
_NOT_IN_KEYS: Final = (tables.FLOAT, tables.DOUBLE, tables.DECFLOAT_16, tables.DECFLOAT_34, BLOB)


class Shape(Enum):
    """How the rows of a table are taken, and how it is known that they were."""

    gated: int
    """What FBTASKS_POLLS.TAKE is told: 1, the lane of the row is shut; 2, its lane is the number of its task; 0, it has
    none, and nothing is written when the task ends.
    """
    mark: str
    """By which the row itself shows that it is taken."""
    keeps: str
    """Whether the gate stays when the task has ended."""

    def __init__(self, _: str, gated: int, mark: str = "", keeps: str = "0") -> None:
        self.gated, self.mark, self.keeps = gated, mark, keeps

    STATUS = "a key and a status", 1, "UPDATE {table} R SET {status} = {taken} WHERE CURRENT OF QUEUE_ROWS;"
    KEPT = "a key and no status", 1, "", "1"
    SEQUENCE = "a sequence and no status", 0
    DELETE = "a key, and rows are deleted when they are done", 1, "", "IIF(QUEUE_ENDED = 0, 1, 0)"
    REMOVE = "no key, and rows are deleted when they are taken", 0, "DELETE FROM {table} WHERE CURRENT OF QUEUE_ROWS;"
    NAMED = (
        "no key, and a status that names the task",
        2,
        "UPDATE {table} R SET {status} = _ASCII 'fbtasks:' || :QUEUE_TASK_ID WHERE CURRENT OF QUEUE_ROWS;",
    )


class Poll(NamedTuple):
    """A definition whose names are those of columns that there are, and that can be polled."""

    source: PollSource
    table: Table
    shape: Shape
    key: tuple[Column, ...]
    status: Column | None
    error: Column | None
    order_by: tuple[Column, ...]
    columns: tuple[Column, ...]
    """The columns of the row beside its key."""
    when: str | None = None
    """The condition of the source, with its texts in the character set of what they are compared with."""

    @property
    def settles(self) -> bool:
        """Returns whether something is written when a task ends."""
        return self.shape.gated > 0

    @property
    def needs_oldest(self) -> bool:
        """Returns whether a look needs the oldest transaction that has not ended."""
        return self.shape in (Shape.KEPT, Shape.SEQUENCE)


def resolve(source: PollSource, table: Table) -> Poll:
    """Returns how *table* is polled for *source*.

    Raises :class:`TaskDefinitionError` for a column that the table does not have or whose values cannot be used so, and
    for a table whose rows could not be told apart or not be marked.
    """
    key = _key(source, table)
    status = None if source.status is None else table.column(source.status)
    shape = _shape(source, table, key)
    error = None if source.error is None else table.column(source.error)
    columns = _columns(source, table, key, status, shape)
    order_by = tuple(table.column(name) for name in source.order_by) or (key if source.sequence else ())
    when = texts.condition(source.when, source.charset, table, "poll_table")
    poll = Poll(source, table, shape, key, status, error, order_by, columns, when)
    if status is not None:
        _check_status(status, poll)
    for column in key:
        _check_key(column, poll)
    for column in (*key, *columns):
        check_column(column, source.charset, table, "poll_table")
    if error is not None:
        _check_error(error, poll)
    for column in order_by:
        if column.type == BLOB or column.array:
            raise _refusal(poll.source, f"the column {column.name!r} cannot be sorted by. Name another in order_by=")
    return poll


def _key(source: PollSource, table: Table) -> tuple[Column, ...]:
    names = (source.sequence,) if source.sequence is not None else source.key
    return tuple(dict.fromkeys(table.column(name) for name in (table.primary_key if names is None else names)))


def _shape(source: PollSource, table: Table, key: tuple[Column, ...]) -> Shape:
    if source.status is not None:
        if key and source.taken is None:
            raise _refusal(source, "taken= is missing: what the status column holds while a row is a task")
        if not key and source.taken is not None:
            raise _refusal(
                source,
                f"the table {table.name!r} has no primary key, so rows that are {source.taken!r} could not be told "
                f"apart. Name key=, or leave taken= out: then the status names the task, for which it needs "
                f"{NAME_LENGTH} characters",
            )
        return Shape.STATUS if key else Shape.NAMED
    if source.delete:
        return Shape.DELETE if key else Shape.REMOVE
    if source.sequence is not None:
        return Shape.SEQUENCE
    if key:
        return Shape.KEPT
    raise _refusal(
        source,
        f"the table {table.name!r} has no primary key, and nothing would show which rows were handled. Give one of "
        "key=, status=, sequence= and delete=True",
    )


def _columns(
    source: PollSource, table: Table, key: tuple[Column, ...], status: Column | None, shape: Shape
) -> tuple[Column, ...]:
    if source.columns is not None:
        named = dict.fromkeys(table.column(name) for name in source.columns)
        return tuple(column for column in named if column not in key)
    if shape in (Shape.REMOVE, Shape.NAMED):
        return tuple(column for column in table.columns if column != status)
    return ()


def _check_key(column: Column, poll: Poll) -> None:
    source = poll.source
    if source.sequence is not None and not column.is_integer:
        raise _refusal(source, f"sequence={source.sequence!r} must be a column of whole numbers")
    if column.array or column.type in _NOT_IN_KEYS:
        raise _refusal(source, f"the column {column.name!r} cannot be of a key: texts of its values are not exact")
    if column.length * column.width > MOST_KEY:
        raise _refusal(source, f"the column {column.name!r} is too long for a key: {MOST_KEY} bytes are the most")


def _check_status(column: Column, poll: Poll) -> None:
    source, given = poll.source, poll.source.statuses
    what = f"the status column {column.name!r} of {poll.table.name!r}"
    if column.computed or column in poll.key or not (column.is_text or column.is_integer):
        raise _refusal(source, f"{what} must be one of texts or whole numbers that can be changed, and not of the key")
    if column.is_integer:
        bits = _RANGES[column.type]
        for name, each in given.items():
            if isinstance(each, str) or not -(2**bits) <= each < 2**bits:
                raise _refusal(source, f"{what} holds whole numbers of {bits + 1} bits: {name}={each!r} is none")
    else:
        for name, each in given.items():
            if not isinstance(each, str):
                raise _refusal(source, f"{what} holds texts: give {name}={str(each)!r}")
            _check_fits(each, name, column, poll)
    if poll.shape is Shape.NAMED and not (column.is_text and column.length >= NAME_LENGTH):
        raise _refusal(
            source,
            f"{what} cannot name a task, for which it needs {NAME_LENGTH} characters. Make it longer, or name key= "
            "and taken=",
        )


def _check_fits(text: str, name: str, column: Column, poll: Poll) -> None:
    """Raises :class:`TaskDefinitionError` unless the status column can hold *text*."""
    source, size = poll.source, len(text)
    what = f"the status column {column.name!r} of {poll.table.name!r}"
    if not text.isascii():
        charset = charset_of(column, source.charset, poll.table, "poll_table") or "UTF8"
        try:
            data = encoded(text, charset)
        except LookupError:
            raise _refusal(
                source, f"{what} has CHARACTER SET {charset}, which Python does not know. Give {name}= in ASCII"
            ) from None
        if data is None:
            raise _refusal(
                source, f"{what} has CHARACTER SET {charset}, which does not have all letters of {name}={text!r}"
            )
        size = len(data) if column.charset == "NONE" else size
    if size > column.length:
        raise _refusal(source, f"{what} has {count(column.length, 'character')}: {name}={text!r} is too long for it")


def _check_error(column: Column, poll: Poll) -> None:
    if poll.shape in (Shape.SEQUENCE, Shape.REMOVE):
        raise _refusal(
            poll.source, f"error={poll.source.error!r} cannot be written: the row is not found again. Leave it out"
        )
    if column.computed or column in (*poll.key, poll.status) or not (column.is_text or column.type == BLOB):
        raise _refusal(
            poll.source,
            f"the error column {column.name!r} of {poll.table.name!r} must be one of texts that can be changed, and "
            "none of the key or the status",
        )
    charset_of(column, poll.source.charset, poll.table, "poll_table")


def _refusal(source: PollSource, why: str) -> TaskDefinitionError:
    return TaskDefinitionError(f"poll_table({source.table!r}): {why}.")
