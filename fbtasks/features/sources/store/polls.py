"""The statements of a poll, made from its definition and the description of its table.

Nothing here speaks to the database. The statements touch the table with the rights of the worker's user; what they
change of the queue is in the package FBTASKS_POLLS (``sql/packages/polls.sql``). Names of variables begin
with QUEUE_, so that a condition does not meet them by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from fbtasks.database.schema import numbered
from fbtasks.errors import TaskDefinitionError
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import expressions, tables, texts
from fbtasks.features.sources.store.capture import check_column
from fbtasks.features.sources.store.expressions import Value, concatenated, most, record, value
from fbtasks.features.sources.store.tables import BIGINT, BLOB, INTEGER, SMALLINT, Column, Table, quoted
from fbtasks.features.sources.store.texts import charset_of, constant
from fbtasks.firebird.driver.charsets import encoded
from fbtasks.system.showing import count

NAME: Final = "fbtasks:"
"""What stands before a task's number in a status that names it."""
NAME_LENGTH: Final = len(NAME) + 19
MOST_BAD: Final = 1000
"""Rows that may be refused in one look, before it ends."""
_MOST_KEY: Final = 2000
"""The most bytes of a column of a key."""
_LONGEST_ROW: Final = 30_000
"""The most bytes of a row that is handled as a VARCHAR."""
_MOST_SHOWN: Final = 100
"""The most bytes of each column of a key that a message names."""
_DUPLICATE: Final = -1
"""QUEUE_POLL_KEY.PART of the mark of a key that several rows have."""
_MOST_ERROR: Final = 1300
_MOST_WHY: Final = 400
"""The most characters of why a row cannot be read."""
_BEFORE_ALL: Final = -9223372036854775807
"""Where QUEUE_DISPATCH.LAST_LANE begins."""
_ROWS: Final = "QUEUE_ROWS"
_LATE: Final = "QUEUE_LATE"
"""The names of cursors."""
_RANGES: Final = {SMALLINT: 15, INTEGER: 31, BIGINT: 63}
_NOT_IN_KEYS: Final = (tables.FLOAT, tables.DOUBLE, tables.DECFLOAT_16, tables.DECFLOAT_34, BLOB)


class Shape(Enum):
    """How the rows of a table are taken, and how it is known that they were."""

    STATUS = "a key and a status"
    KEPT = "a key and no status"
    SEQUENCE = "a sequence and no status"
    DELETE = "a key, and rows are deleted when they are done"
    REMOVE = "no key, and rows are deleted when they are taken"
    NAMED = "no key, and a status that names the task"


_GATED: Final = {Shape.STATUS: 1, Shape.KEPT: 1, Shape.DELETE: 1, Shape.NAMED: 2, Shape.SEQUENCE: 0, Shape.REMOVE: 0}
"""What FBTASKS_POLLS.TAKE is told of the lanes of each shape."""


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
        """Whether something is written when a task ends."""
        return _GATED[self.shape] > 0

    @property
    def needs_oldest(self) -> bool:
        """Whether a look needs to know the oldest transaction that has not ended."""
        return self.shape in (Shape.KEPT, Shape.SEQUENCE)

    @property
    def privileges(self) -> tuple[str, ...]:
        """What the worker's user must be allowed to do with the table."""
        deletes = self.source.delete
        updates = self.status is not None or self.error is not None or deletes  # a lock needs it as well
        return ("SELECT", *(("UPDATE",) if updates else ()), *(("DELETE",) if deletes else ()))


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
    if column.length * column.width > _MOST_KEY:
        raise _refusal(source, f"the column {column.name!r} is too long for a key: {_MOST_KEY} bytes are the most")


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


class Statements:
    """The statements of one poll, of which a subscription has the number."""

    def __init__(self, subscription: int, poll: Poll, version: int, generation: int) -> None:
        """*version* is RDB$FORMAT of the table as it was described, *generation* that of the packages in use."""
        self._id = subscription
        self._version = version
        self._poll = poll
        self._table = quoted(poll.table.name)
        self._gated = _GATED[poll.shape]
        self._longest = max(most(self._pieces(_ROWS)), most(self._unread_pieces(_ROWS)))
        self._is_wide = self._longest > _LONGEST_ROW
        self.look = self._look()
        """Returns a row: whether ends are to be written, whether rows wait that may be taken, and whether it is known.

        Changes nothing.
        """
        self.settle = numbered(self._settle(), generation) if poll.settles else ""
        """Takes the most ends to write. Returns how many were written, how many could not be, the last error, and for
        how many the row was not found while others are taken and have no task.
        """
        self.sweep = numbered(self._sweep(), generation) if poll.shape in (Shape.KEPT, Shape.DELETE) else ""
        """Takes the most gates to look at: forgets those that stay for rows which are gone. Returns how many were.

        Marks keys that several rows have.
        """
        self.duplicates = numbered(self._duplicates(), generation) if self._gated == 1 else ""
        """Takes the most marks to look at: forgets those of keys that one row has. Returns a key that several have."""
        self.stray = self._first_stray() if poll.shape is Shape.STATUS else ""
        """Returns the key of a row that is taken and has no task."""
        self.take = numbered(self._take(), generation)
        """Takes the room, milliseconds until a task expires, and the oldest transaction that has not ended.

        Returns how many tasks were made, how many rows could not be taken, and the last error.
        """

    # What is looked for.

    def _look(self) -> str:
        shape = self._poll.shape
        notes = f"EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = {self._id})"
        if shape is Shape.SEQUENCE:
            column = self._column(self._poll.key[0])
            late = (
                f"SELECT 1 FROM QUEUE_GAP G JOIN {self._table} R ON {column} BETWEEN G.LANE AND G.LAST_LANE\n"
                f"WHERE G.SUBSCRIPTION_ID = {self._id}{self._when()}"
            )
            new = f"SELECT 1 FROM {self._table} R WHERE {column} > {self._mark('LAST_LANE')}{self._when()}"
            waits = f"EXISTS({new})\nOR EXISTS({late})"
        else:
            waits = f"EXISTS(SELECT 1 FROM {self._table} R WHERE {self._waiting(self._mark('MARK_ID'))})"
        known = f"EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S WHERE S.ID = {self._id} AND S.STATE <> _ASCII 'dropped')"
        return (
            f"SELECT IIF({notes}, 1, 0), IIF({self._takes()} AND ({waits}), 1, 0), IIF({known}, 1, 0)\n"
            "FROM RDB$DATABASE"
        )

    def _takes(self) -> str:
        """The condition that rows may be taken now: neither an operator nor the window of the queue is against it."""
        now = "QUEUE_NOW()"
        return (
            f"EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S WHERE S.ID = {self._id} AND S.STATE = _ASCII 'active'\n"
            "AND NOT EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = S.QUEUE AND P.WINDOWED = 1 AND NOT EXISTS(\n"
            f"SELECT 1 FROM QUEUE_SHIFT H WHERE H.QUEUE = P.QUEUE AND H.CLOSE_TIME > {now} AND H.OPEN_TIME <= {now})))"
        )

    def _mark(self, name: str) -> str:
        return f"(SELECT D.{name} FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {self._id})"

    def _waiting(self, mark: str) -> str:
        """The condition for rows that wait, of all shapes but that of a sequence without a status."""
        poll, parts = self._poll, []
        if poll.status is not None:
            parts.append(self._status_is("ready"))
        parts += [f"{self._column(column)} IS NOT NULL" for column in poll.key if column.nullable]
        if self._by_version:
            parts.append(f"R.RDB$RECORD_VERSION >= {mark}")
        if self._gated == 1:
            parts.append(f"NOT {self._has_gate(self._lane())}")
        return (" AND ".join(parts) or "1 = 1") + self._when()

    def _has_gate(self, lane: str) -> str:
        return f"EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = {self._id} AND G.LANE = {lane})"

    @property
    def _by_version(self) -> bool:
        """Whether rows that no transaction has changed since are passed over; a condition may come to hold later."""
        return self._poll.shape is Shape.KEPT and self._poll.when is None

    def _when(self) -> str:
        """The definition's condition, which has lines of its own: it may end in a comment."""
        when = self._poll.when
        return "" if when is None else f" AND (\n{when}\n)"

    def _status_is(self, name: str) -> str:
        assert self._poll.status is not None
        return f"{self._column(self._poll.status)} = {self._status(name)}"

    def _status(self, name: str) -> str:
        """A status as SQL."""
        poll, value = self._poll, self._poll.source.statuses[name]
        assert poll.status is not None
        if isinstance(value, int):
            return str(value)
        return texts.constant_for(value, poll.status, poll.source.charset, poll.table)

    def _column(self, column: Column) -> str:
        return f"R.{quoted(column.name)}"

    def _lane(self, row: str = "R") -> str:
        """The number of a row's lane: the key itself, or a hash of its bytes, which there are for any value."""
        key = [f"{row}.{quoted(column.name)}" for column in self._poll.key]
        if self._is_number:
            return key[0]
        whole = " || _OCTETS x'00' || ".join(map(_as_octets, key))
        return f"HASH(CRYPT_HASH({whole} USING SHA256))"

    @property
    def _is_number(self) -> bool:
        return len(self._poll.key) == 1 and self._poll.key[0].is_integer

    @property
    def _keeps_key(self) -> bool:
        """Whether the key is kept beside the lane, which does not lead back to it."""
        return self._gated == 1 and not self._is_number and (self._writes or self._poll.shape is Shape.KEPT)

    @property
    def _writes(self) -> bool:
        """Whether the table is changed when a task ends."""
        poll = self._poll
        return poll.settles and (poll.status is not None or poll.error is not None or poll.source.delete)

    # A row, as its task has it.

    def _pieces(self, row: str) -> list[str | Value]:
        def members(columns: tuple[Column, ...]) -> list[str | Value]:
            return record(columns, [value(column, row, self._poll.source.charset) for column in columns])

        return ['{"k":', *members(self._poll.key), ',"v":', *members(self._poll.columns), "}"]

    def _unread_pieces(self, row: str) -> list[str | Value]:
        """The same of a row of which a value cannot be read, for the reason in QUEUE_WHY: nothing is converted."""

        def members(columns: tuple[Column, ...]) -> list[str | Value]:
            return record(columns, [expressions.unconverted(column, row) for column in columns])

        why = expressions.escaped("QUEUE_WHY", 4 * _MOST_WHY)
        return [
            '{"e":"',
            Value(why, 4 * _MOST_WHY),
            '","k":',
            *members(self._poll.key),
            ',"v":',
            *members(self._poll.columns),
            "}",
        ]

    def _selected(self) -> str:
        """What a cursor selects. Nothing is computed there: what fails in a cursor ends it."""
        columns = (*self._poll.key, *self._poll.columns)
        return ", ".join(map(self._column, columns)) or "1 AS QUEUE_C0"

    def _read_row(self, cursor: str) -> list[str]:
        """Puts the row that *cursor* is at into QUEUE_ROW; one that cannot be read with the reason.

        Where the table was altered since it was described, that may be the reason, and is none to fail the row.
        """

        def written(pieces: list[str | Value]) -> str:
            return expressions.appended(pieces) if self._is_wide else concatenated(pieces)

        return _block(
            [
                f"QUEUE_ROW = {written(self._pieces(cursor))};",
                "WHEN GDSCODE cancelled DO",
                "  EXCEPTION;",
                "WHEN ANY DO",
                *_block(
                    [
                        "IF ((SELECT T.RDB$FORMAT FROM RDB$RELATIONS T",
                        f"    WHERE T.RDB$RELATION_NAME = {constant(self._poll.table.name)})",
                        f"    <> {self._version}) THEN",
                        "  EXCEPTION;",
                        f"QUEUE_WHY = LEFT(RDB$ERROR(MESSAGE), {_MOST_WHY});",
                        f"QUEUE_ROW = {written(self._unread_pieces(cursor))};",
                    ]
                ),
            ]
        )

    # Taking rows.

    def _take(self) -> str:
        count = ["IF (QUEUE_MADE > 0) THEN", f"  EXECUTE PROCEDURE FBTASKS_POLLS.COUNT_TAKEN({self._id}, QUEUE_MADE);"]
        body = self._take_sequence() if self._poll.shape is Shape.SEQUENCE else self._take_rows()
        return _text(
            [
                "EXECUTE BLOCK (QUEUE_ROOM INTEGER = ?, QUEUE_EXPIRE_MS BIGINT = ?, QUEUE_OLDEST BIGINT = ?)",
                "RETURNS (QUEUE_MADE INTEGER, QUEUE_BAD INTEGER,",
                "  QUEUE_ERROR VARCHAR(500) CHARACTER SET UTF8 COLLATE UTF8)",
                "AS",
                *self._take_variables(),
                *_block(["QUEUE_MADE = 0;", "QUEUE_BAD = 0;", *body, *count, "SUSPEND;"]),
            ]
        )

    def _take_variables(self) -> Iterator[str]:
        yield "DECLARE QUEUE_LANE BIGINT;"
        if self._poll.shape is Shape.NAMED:
            yield "DECLARE QUEUE_TASK_ID BIGINT;"
        if self._mark_taken():
            yield "DECLARE QUEUE_CHANGED SMALLINT;"
        if self._is_wide:
            yield "DECLARE QUEUE_ROW BLOB SUB_TYPE BINARY;"
        else:
            yield f"DECLARE QUEUE_ROW VARCHAR({self._longest}) CHARACTER SET OCTETS;"
        yield f"DECLARE QUEUE_WHY VARCHAR({_MOST_WHY}) CHARACTER SET UTF8 COLLATE UTF8;"
        if self._by_version or self._poll.shape is Shape.SEQUENCE:
            yield "DECLARE QUEUE_MARK BIGINT;"
        if self._poll.shape is Shape.SEQUENCE:
            yield "DECLARE QUEUE_FIRST BIGINT;"
            yield "DECLARE QUEUE_LAST BIGINT;"
            yield "DECLARE QUEUE_NOTED BIGINT;"
            yield "DECLARE QUEUE_KEEPS SMALLINT;"
        if self._keeps_key:
            for part in range(len(self._poll.key)):
                yield f"DECLARE QUEUE_KEY{part} VARCHAR({_MOST_KEY}) CHARACTER SET OCTETS;"

    def _take_rows(self) -> Iterator[str]:
        changes = self._poll.shape not in (Shape.KEPT, Shape.DELETE)
        if self._by_version:
            yield f"QUEUE_MARK = {self._mark('MARK_ID')};"
        yield f"FOR SELECT {self._selected()}"
        yield f"  FROM {self._table} R WHERE {self._waiting(':QUEUE_MARK')}"
        if self._poll.order_by:
            yield f"  ORDER BY {', '.join(map(self._column, self._poll.order_by))}"
        if changes:
            yield "  FOR UPDATE WITH LOCK SKIP LOCKED"
        yield f"  AS CURSOR {_ROWS} DO"
        yield "BEGIN"
        yield from _indented(self._take_row() if self._gated != 1 else self._take_row_of_own_key())
        yield f"  IF (QUEUE_MADE >= QUEUE_ROOM OR QUEUE_BAD >= {MOST_BAD}) THEN"
        yield "    LEAVE;"
        yield "END"
        if self._by_version:
            yield "IF (QUEUE_MADE < QUEUE_ROOM AND QUEUE_BAD = 0) THEN"
            yield f"  EXECUTE PROCEDURE FBTASKS_POLLS.MARK({self._id}, QUEUE_OLDEST, NULL);"

    def _take_row_of_own_key(self) -> Iterator[str]:
        """Takes the row that the cursor is at, unless another one of its key was taken since the cursor was opened."""
        yield f"QUEUE_LANE = {self._lane(_ROWS)};"
        yield f"IF ({self._has_gate(':QUEUE_LANE')}) THEN"
        yield from _block([self._mark_duplicate(), "QUEUE_BAD = QUEUE_BAD + 1;"])
        yield "ELSE"
        yield from _block(self._take_row())

    def _mark_duplicate(self) -> str:
        return f"EXECUTE PROCEDURE FBTASKS_POLLS.KEEP_KEY({self._id}, QUEUE_LANE, {_DUPLICATE}, _OCTETS '');"

    def _take_row(self) -> Iterator[str]:
        """Changes the row that the cursor is at, and makes a task of it. One that cannot be changed is passed over."""
        change = self._mark_taken()
        if self._poll.shape is Shape.NAMED:
            yield "EXECUTE PROCEDURE FBTASKS_POLLS.NEXT_NUMBER RETURNING_VALUES QUEUE_TASK_ID;"
        if self._keeps_key:
            for part, column in enumerate(self._poll.key):
                yield f"QUEUE_KEY{part} = {_as_octets(f'{_ROWS}.{quoted(column.name)}')};"
        if not change:
            yield from self._read_row(_ROWS)
            yield from self._make_task()
            return
        yield "QUEUE_CHANGED = 0;"
        yield from _unless_refused([*self._read_row(_ROWS), change, "QUEUE_CHANGED = 1;"])
        yield "IF (QUEUE_CHANGED = 1) THEN"
        yield from _block(self._make_task())

    def _mark_taken(self) -> str:
        """The statement by which the row itself shows that it is taken; empty where it does not."""
        table, where = self._table, f"WHERE CURRENT OF {_ROWS};"
        match self._poll.shape:
            case Shape.STATUS:
                return f"UPDATE {table} SET {self._set_status('taken')} {where}"
            case Shape.NAMED:
                assert self._poll.status is not None
                name = quoted(self._poll.status.name)
                return f"UPDATE {table} SET {name} = {constant(NAME)} || :QUEUE_TASK_ID {where}"
            case Shape.REMOVE:
                return f"DELETE FROM {table} {where}"
        return ""

    def _make_task(self) -> Iterator[str]:
        row = "NULL, QUEUE_ROW" if self._is_wide else "QUEUE_ROW, NULL"
        number = "QUEUE_TASK_ID" if self._poll.shape is Shape.NAMED else "NULL"
        yield (
            f"EXECUTE PROCEDURE FBTASKS_POLLS.TAKE({self._id}, {number}, QUEUE_LANE, {self._gated}, {row}, "
            "QUEUE_EXPIRE_MS);"
        )
        if self._keeps_key:
            for part in range(len(self._poll.key)):
                yield f"EXECUTE PROCEDURE FBTASKS_POLLS.KEEP_KEY({self._id}, QUEUE_LANE, {part}, QUEUE_KEY{part});"
        yield "QUEUE_MADE = QUEUE_MADE + 1;"

    def _set_status(self, name: str) -> str:
        assert self._poll.status is not None
        return f"{quoted(self._poll.status.name)} = {self._status(name)}"

    # Taking rows of a sequence: first those of numbers that were missing, then those behind the last.

    def _take_sequence(self) -> Iterator[str]:
        column = self._column(self._poll.key[0])
        select = f"FOR SELECT {self._selected()} FROM {self._table} R WHERE"
        yield "FOR SELECT G.LANE, G.LAST_LANE, G.NOTED_TX FROM QUEUE_GAP G"
        yield f"  WHERE G.SUBSCRIPTION_ID = {self._id} INTO :QUEUE_FIRST, :QUEUE_LAST, :QUEUE_NOTED DO"
        late = [
            *self._take_number(_LATE),
            *self._make_task(),
            f"EXECUTE PROCEDURE FBTASKS_POLLS.FOUND({self._id}, QUEUE_LANE);",
        ]
        yield from _block(
            [
                "QUEUE_KEEPS = IIF(QUEUE_NOTED <= QUEUE_OLDEST, 0, 1);",
                f"{select} {column} BETWEEN :QUEUE_FIRST AND :QUEUE_LAST{self._when()}",
                f"  ORDER BY {column} AS CURSOR {_LATE} DO",
                *_block(["IF (QUEUE_MADE >= QUEUE_ROOM) THEN", *_block(["QUEUE_KEEPS = 1;", "LEAVE;"]), *late]),
                "IF (QUEUE_KEEPS = 0) THEN",
                f"  EXECUTE PROCEDURE FBTASKS_POLLS.FORGET({self._id}, QUEUE_FIRST, QUEUE_LAST);",
            ]
        )
        yield f"QUEUE_MARK = {self._mark('LAST_LANE')};"
        yield f"{select} {column} > :QUEUE_MARK{self._when()}"
        yield f"  ORDER BY {column} AS CURSOR {_ROWS} DO"
        yield from _block(
            [
                "IF (QUEUE_MADE >= QUEUE_ROOM) THEN",
                "  LEAVE;",
                *self._take_number(_ROWS),
                "IF (QUEUE_LANE > QUEUE_MARK + 1) THEN",
                f"  EXECUTE PROCEDURE FBTASKS_POLLS.MISS({self._id}, QUEUE_MARK + 1, QUEUE_LANE - 1);",
                *self._make_task(),
                "QUEUE_MARK = QUEUE_LANE;",
            ]
        )
        yield f"EXECUTE PROCEDURE FBTASKS_POLLS.MARK({self._id}, NULL, QUEUE_MARK);"

    def _take_number(self, cursor: str) -> Iterator[str]:
        yield f"QUEUE_LANE = {cursor}.{quoted(self._poll.key[0].name)};"
        yield from self._read_row(cursor)

    # Writing ends.

    def _settle(self) -> str:
        note = [
            f"EXECUTE PROCEDURE FBTASKS_POLLS.OUTCOME({self._id}, QUEUE_NOTE_ID, QUEUE_KIND, QUEUE_LANE,",
            f"  QUEUE_TASK_ID, {self._gated}) RETURNING_VALUES QUEUE_ENDED, QUEUE_WHY;",
            "IF (QUEUE_ENDED >= 0) THEN",
            *_block(self._write_end()),
            "ELSE IF (QUEUE_ENDED IS NULL) THEN",
            "  QUEUE_SETTLED = QUEUE_SETTLED + 1;",
        ]
        loop = [
            "FOR SELECT N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N",
            f"  WHERE N.OWNER_ID = {self._id} ORDER BY N.OWNER_ID, N.ID",
            "  INTO :QUEUE_NOTE_ID, :QUEUE_KIND, :QUEUE_LANE, :QUEUE_TASK_ID DO",
            *_block(["IF (QUEUE_SETTLED >= QUEUE_MOST) THEN", "  LEAVE;", *note]),
        ]
        return _text(
            [
                "EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)",
                "RETURNS (QUEUE_SETTLED INTEGER, QUEUE_BAD INTEGER,",
                "  QUEUE_ERROR VARCHAR(500) CHARACTER SET UTF8 COLLATE UTF8, QUEUE_LOST INTEGER)",
                "AS",
                "DECLARE QUEUE_NOTE_ID BIGINT;",
                "DECLARE QUEUE_KIND CHAR(1) CHARACTER SET ASCII;",
                "DECLARE QUEUE_LANE BIGINT;",
                "DECLARE QUEUE_TASK_ID BIGINT;",
                "DECLARE QUEUE_ENDED SMALLINT;",
                f"DECLARE QUEUE_WHY VARCHAR({_MOST_ERROR}) CHARACTER SET UTF8 COLLATE UTF8;",
                "DECLARE QUEUE_FOUND SMALLINT;",
                "DECLARE QUEUE_CHANGED SMALLINT;",
                "DECLARE QUEUE_PLACE CHAR(8) CHARACTER SET OCTETS;",
                "DECLARE QUEUE_STRAYS INTEGER;",
                *self._fit_variables(),
                *self._key_variables(),
                *_block(["QUEUE_SETTLED = 0;", "QUEUE_BAD = 0;", "QUEUE_LOST = 0;", *loop, "SUSPEND;"]),
            ]
        )

    def _key_variables(self) -> Iterator[str]:
        if self._keeps_key:
            for part, column in enumerate(self._poll.key):
                yield f"DECLARE QUEUE_KEY{part} TYPE OF COLUMN {self._table}.{quoted(column.name)};"

    def _write_end(self) -> Iterator[str]:
        """Writes the end of the task to its row, and opens its gate, unless another transaction holds the row."""
        if not self._writes:
            yield from self._settled()
            return
        if self._keeps_key:
            yield from self._look_key_up()
        change = [
            f"FOR SELECT R.RDB$DB_KEY FROM {self._table} R WHERE {self._own_row()}",
            "  FOR UPDATE WITH LOCK SKIP LOCKED INTO :QUEUE_PLACE DO",
            *_block(self._found_row()),
            *self._change_only_row(),
            f"IF (QUEUE_FOUND = 0 AND EXISTS(SELECT 1 FROM {self._table} R WHERE {self._own_row()})) THEN",
            "  QUEUE_BAD = QUEUE_BAD + 1;",
            *self._row_lost(),
            "ELSE IF (QUEUE_FOUND < 2) THEN",
            "  QUEUE_CHANGED = 1;",
        ]
        yield "QUEUE_FOUND = 0;"
        yield "QUEUE_CHANGED = 0;"
        yield from _unless_refused(change)
        if self._gated == 1:
            yield "IF (QUEUE_FOUND > 1) THEN"
            yield from _block([self._mark_duplicate(), "QUEUE_BAD = QUEUE_BAD + 1;"])
        yield "IF (QUEUE_CHANGED = 1) THEN"
        yield from _block(self._settle_found())

    def _found_row(self) -> Iterator[str]:
        """Counts the rows of a key, of which there should be one; where the status names the task, changes each."""
        if self._gated != 1:
            yield "QUEUE_FOUND = 1;"
            yield from self._change_row()
            return
        yield "QUEUE_FOUND = QUEUE_FOUND + 1;"
        yield "IF (QUEUE_FOUND > 1) THEN"
        yield "  LEAVE;"

    def _change_only_row(self) -> Iterator[str]:
        """Changes the row that was found. Of several with one key it is not known which is that of the task."""
        if self._gated == 1:
            yield "IF (QUEUE_FOUND = 1) THEN"
            yield from _block(self._change_row())

    def _row_lost(self) -> Iterator[str]:
        """Keeps the end of a task whose row is not found, where the row may be one that has another key now.

        One for each row that is taken and has no task: rows of other tasks were deleted, or their statuses changed.
        """
        if self._poll.shape is not Shape.STATUS:
            return
        strays = f"SELECT FIRST {MOST_BAD} 1 AS ONE FROM {self._table} R WHERE {self._is_stray()}"
        yield "ELSE IF (QUEUE_FOUND = 0 AND QUEUE_ENDED < 2) THEN"
        yield from _block(
            [
                "IF (QUEUE_STRAYS IS NULL) THEN",
                f"  QUEUE_STRAYS = (SELECT COUNT(*) FROM ({strays}));",
                "IF (QUEUE_LOST < QUEUE_STRAYS) THEN",
                *_block(["QUEUE_LOST = QUEUE_LOST + 1;", "QUEUE_BAD = QUEUE_BAD + 1;"]),
                "ELSE",
                "  QUEUE_CHANGED = 1;",
            ]
        )

    def _is_stray(self) -> str:
        """The condition for rows that are taken, and not by a task of this poll or of another one."""
        return (
            f"{self._status_is('taken')} AND NOT EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S\n"
            f"JOIN QUEUE_GATE G ON G.OWNER_ID = S.ID AND G.LANE = {self._lane()} WHERE S.KIND = _ASCII 'poll')"
        )

    def _first_stray(self) -> str:
        shown = ", ".join(_shown(self._column(column)) for column in self._poll.key)
        return f"SELECT FIRST 1 {shown} FROM {self._table} R WHERE {self._is_stray()}"

    def _look_key_up(self) -> Iterator[str]:
        for part, column in enumerate(self._poll.key):
            kind = f"TYPE OF COLUMN {self._table}.{quoted(column.name)}"
            yield (
                f"QUEUE_KEY{part} = (SELECT CAST(K.DATA AS {kind}) FROM QUEUE_POLL_KEY K WHERE K.SUBSCRIPTION_ID = "
                f"{self._id} AND K.LANE = :QUEUE_LANE AND K.PART = {part});"
            )

    def _has_key(self) -> list[str]:
        """The conditions for the row of a lane."""
        if self._is_number:
            return [f"{self._column(self._poll.key[0])} = :QUEUE_LANE"]
        return [f"{self._column(column)} = :QUEUE_KEY{part}" for part, column in enumerate(self._poll.key)]

    def _own_row(self) -> str:
        """The condition for the row of the task, as long as it shows that it is the task's."""
        poll = self._poll
        if poll.shape is Shape.NAMED:
            assert poll.status is not None
            return f"{self._column(poll.status)} = {constant(NAME)} || :QUEUE_LANE"
        parts = self._has_key()
        if poll.status is not None:
            taken, failed = self._status("taken"), self._status("failed")
            parts.append(f"{self._column(poll.status)} = IIF(:QUEUE_ENDED = 2, {failed}, {taken})")
        return " AND ".join(parts)

    def _change_row(self) -> Iterator[str]:
        """What is written to the row, by how its task has ended: done, failed, or to be run again."""
        source, status = self._poll.source, self._poll.status
        done = "DELETE" if source.delete else self._set_status("done") if status is not None else ""
        failed = [self._set_status("failed")] if status is not None else []
        again = [self._set_status("taken")] if status is not None and self._poll.shape is Shape.STATUS else []
        if self._poll.error is not None:
            name = quoted(self._poll.error.name)
            failed.append(f"{name} = {self._error}")
            if again:
                again.append(f"{name} = NULL")
        for ended, change in ((1, done), (0, ", ".join(failed)), (2, ", ".join(again))):
            if change:
                yield f"IF (QUEUE_ENDED = {ended}) THEN"
                yield from _block(self._change(change, errs=ended == 0))

    def _change(self, change: str, *, errs: bool) -> Iterator[str]:
        where = "WHERE RDB$DB_KEY = :QUEUE_PLACE;"
        if errs and self._error_charset is not None:
            yield from self._fit_error()
        if change == "DELETE":
            yield f"DELETE FROM {self._table} {where}"
            return
        yield f"UPDATE {self._table} SET {change} {where}"

    @property
    def _error(self) -> str:
        """The error's text, as long as the column has room for it."""
        column = self._poll.error
        assert column is not None
        if self._error_charset is not None:
            return ":QUEUE_FIT"
        return ":QUEUE_WHY" if column.type == BLOB else f"LEFT(:QUEUE_WHY, {column.length})"

    @property
    def _error_charset(self) -> str | None:
        """The character set of the error column, unless it has all letters and counts them."""
        column, source = self._poll.error, self._poll.source
        if column is None or column.charset in (None, "UTF8", "OCTETS"):
            return None
        return charset_of(column, source.charset, self._poll.table, "poll_table")

    @property
    def _error_length(self) -> int:
        column = self._poll.error
        assert column is not None
        return _MOST_ERROR if column.type == BLOB else min(column.length, _MOST_ERROR)

    def _fit_variables(self) -> Iterator[str]:
        if (charset := self._error_charset) is not None:
            yield f"DECLARE QUEUE_FIT VARCHAR({self._error_length}) CHARACTER SET {charset};"
            yield f"DECLARE QUEUE_LETTER VARCHAR(1) CHARACTER SET {charset};"
            yield "DECLARE QUEUE_AT INTEGER;"

    def _fit_error(self) -> list[str]:
        """Makes QUEUE_FIT of QUEUE_WHY, letter by letter: the column may not have all of them."""
        assert self._poll.error is not None
        size = "OCTET_LENGTH" if self._poll.error.charset == "NONE" else "CHAR_LENGTH"
        letter = "SUBSTRING(QUEUE_WHY FROM QUEUE_AT FOR 1)"
        return [
            "QUEUE_FIT = _ASCII '';",
            "QUEUE_AT = 1;",
            "WHILE (QUEUE_AT <= CHAR_LENGTH(QUEUE_WHY)) DO",
            *_block(
                [
                    *_block(
                        [f"QUEUE_LETTER = {letter};", "WHEN GDSCODE arith_except DO", "  QUEUE_LETTER = _ASCII '?';"]
                    ),
                    f"IF ({size}(QUEUE_FIT) + {size}(QUEUE_LETTER) > {self._error_length}) THEN",
                    "  LEAVE;",
                    "QUEUE_FIT = QUEUE_FIT || QUEUE_LETTER;",
                    "QUEUE_AT = QUEUE_AT + 1;",
                ]
            ),
        ]

    def _settle_found(self) -> Iterator[str]:
        """Has the gate opened. A task that is to be run again is not, where its row is gone or was changed."""
        if self._gated == 1:
            yield "IF (QUEUE_ENDED = 2 AND QUEUE_FOUND = 0) THEN"
            yield "  QUEUE_ENDED = 3;"
        yield from self._settled()

    def _settled(self) -> Iterator[str]:
        keeps = {Shape.KEPT: "1", Shape.DELETE: "IIF(QUEUE_ENDED = 0, 1, 0)"}.get(self._poll.shape, "0")
        yield (
            f"EXECUTE PROCEDURE FBTASKS_POLLS.SETTLED({self._id}, QUEUE_NOTE_ID, QUEUE_LANE, QUEUE_TASK_ID, "
            f"{self._gated}, QUEUE_ENDED, {keeps});"
        )
        yield "QUEUE_SETTLED = QUEUE_SETTLED + 1;"

    # Keys that several rows have.

    def _duplicates(self) -> str:
        poll, key = self._poll, self._poll.key
        rows_of_key = self._has_key()
        if poll.status is not None:
            live = ", ".join(self._status(name) for name in ("ready", "taken", "failed"))
            rows_of_key.append(f"{self._column(poll.status)} IN ({live})")
        shown = ", ".join(f"QUEUE_SHOWN{part} VARCHAR({_MOST_SHOWN}) CHARACTER SET OCTETS" for part in range(len(key)))
        look = [
            *(self._look_key_up() if self._keeps_key else ()),
            "QUEUE_FOUND = 0;",
            f"FOR SELECT {', '.join(_shown(self._column(column)) for column in key)}",
            f"  FROM {self._table} R WHERE {' AND '.join(rows_of_key)}",
            f"  INTO {', '.join(f':QUEUE_SHOWN{part}' for part in range(len(key)))} DO",
            *_block(["QUEUE_FOUND = QUEUE_FOUND + 1;", "IF (QUEUE_FOUND > 1) THEN", "  LEAVE;"]),
            "IF (QUEUE_FOUND > 1) THEN",
            *_block(["SUSPEND;", "EXIT;"]),
            f"EXECUTE PROCEDURE FBTASKS_POLLS.FORGET_DUPLICATE({self._id}, QUEUE_LANE);",
        ]
        return _text(
            [
                "EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)",
                f"RETURNS ({shown})",
                "AS",
                "DECLARE QUEUE_LANE BIGINT;",
                "DECLARE QUEUE_FOUND SMALLINT;",
                *self._key_variables(),
                *_block(
                    [
                        "FOR SELECT FIRST (:QUEUE_MOST) K.LANE FROM QUEUE_POLL_KEY K",
                        f"  WHERE K.SUBSCRIPTION_ID = {self._id} AND K.PART = {_DUPLICATE} INTO :QUEUE_LANE DO",
                        *_block(look),
                    ]
                ),
            ]
        )

    # Forgetting rows that are gone.

    def _sweep(self) -> str:
        of_key = " AND ".join(self._has_key())
        look = [
            "QUEUE_SEEN = QUEUE_SEEN + 1;",
            "QUEUE_AT = QUEUE_LANE;",
            *(self._look_key_up() if self._keeps_key else ()),
            f"QUEUE_FOUND = (SELECT COUNT(*) FROM (SELECT FIRST 2 1 AS ONE FROM {self._table} R WHERE {of_key}));",
            f"IF ({'QUEUE_KEY0 IS NOT NULL AND ' if self._keeps_key else ''}QUEUE_FOUND = 0) THEN",
            *_block(
                [
                    f"EXECUTE PROCEDURE FBTASKS_POLLS.GONE({self._id}, QUEUE_LANE);",
                    "QUEUE_GONE = QUEUE_GONE + 1;",
                ]
            ),
            "IF (QUEUE_FOUND > 1) THEN",
            f"  {self._mark_duplicate()}",
            "IF (QUEUE_SEEN >= QUEUE_MOST) THEN",
            "  LEAVE;",
        ]
        return _text(
            [
                "EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)",
                "RETURNS (QUEUE_GONE INTEGER)",
                "AS",
                "DECLARE QUEUE_LANE BIGINT;",
                "DECLARE QUEUE_AT BIGINT;",
                "DECLARE QUEUE_SEEN INTEGER = 0;",
                "DECLARE QUEUE_FOUND SMALLINT;",
                *self._key_variables(),
                *_block(
                    [
                        "QUEUE_GONE = 0;",
                        f"QUEUE_AT = {self._mark('LAST_LANE')};",
                        "FOR SELECT G.LANE FROM QUEUE_GATE G",
                        f"  WHERE G.OWNER_ID = {self._id} AND G.LANE > :QUEUE_AT AND G.HOLDER_ID IS NULL",
                        "  ORDER BY G.OWNER_ID, G.LANE INTO :QUEUE_LANE DO",
                        *_block(look),
                        "IF (QUEUE_SEEN < QUEUE_MOST) THEN",
                        f"  QUEUE_AT = {_BEFORE_ALL};",
                        f"IF (QUEUE_AT IS DISTINCT FROM {self._mark('LAST_LANE')}) THEN",
                        f"  EXECUTE PROCEDURE FBTASKS_POLLS.MARK({self._id}, NULL, QUEUE_AT);",
                        "SUSPEND;",
                    ]
                ),
            ]
        )


def _unless_refused(change: Iterable[str]) -> list[str]:
    """*change* of the user's row. What keeps it from being done is counted and noted, and keeps back no other row.

    It holds nothing but that: the engine undoes the statement that fails, and not those before it in the block.
    """
    count = "QUEUE_BAD = QUEUE_BAD + 1;"
    refused = [
        "WHEN GDSCODE cancelled DO",
        "  EXCEPTION;",
        "WHEN GDSCODE lock_conflict, GDSCODE deadlock, GDSCODE update_conflict DO",
        f"  {count}",
        "WHEN ANY DO",
        *_block([count, "QUEUE_ERROR = LEFT(RDB$ERROR(MESSAGE), 500);"]),
    ]
    return _block([*change, *refused])


def _as_octets(field: str) -> str:
    return f"CAST({field} AS VARCHAR({_MOST_KEY}) CHARACTER SET OCTETS)"


def _shown(field: str) -> str:
    """The value of *field* as a message names it: bytes."""
    return f"CAST(LEFT({_as_octets(field)}, {_MOST_SHOWN}) AS VARCHAR({_MOST_SHOWN}) CHARACTER SET OCTETS)"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _block(lines: Iterable[str]) -> list[str]:
    return ["BEGIN", *_indented(lines), "END"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
