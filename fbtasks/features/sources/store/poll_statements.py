"""The statements of a poll: one template for each, of which each shape of tables takes some lines.

They touch the table with the rights of the worker's user; what they change of the queue is in the package FBTASKS_POLLS
(``schema/packages/polls.sql``). Names of variables begin with QUEUE_, so that a condition does not meet them by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fbtasks.database.schema import numbered
from fbtasks.features.sources.store import expressions, texts
from fbtasks.features.sources.store.expressions import Value, concatenated, escaped, most, record, value
from fbtasks.features.sources.store.polls import MOST_KEY, Poll, Shape
from fbtasks.features.sources.store.tables import BLOB, Column, quoted
from fbtasks.features.sources.store.templates import render
from fbtasks.features.sources.store.texts import charset_of, constant

_LONGEST_ROW: Final = 30_000
"""The most bytes of a row that is handled as a VARCHAR."""
_MOST_ERROR: Final = 1300
_MOST_WHY: Final = 400
"""The most characters of why a row cannot be read."""

_WAITING: Final = """
1 = 1
[sequence]  AND {number} > (SELECT D.LAST_LANE FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {id})
[stated]  AND {status} = {ready}
  {not_null}
[version]  AND R.RDB$RECORD_VERSION >= (SELECT D.MARK_ID FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {id})
[gated]  AND NOT EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = {id} AND G.LANE = {lane_of_row})
  {when}
"""

# Changes nothing.
_LOOK: Final = """
SELECT IIF(EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = {id}), 1, 0),
  -- Neither an operator nor the window of the queue is against it.
  IIF(EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S WHERE S.ID = {id} AND S.STATE = _ASCII 'active'
    AND NOT EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = S.QUEUE AND P.WINDOWED = 1 AND NOT EXISTS(
      SELECT 1 FROM QUEUE_SHIFT H
      WHERE H.QUEUE = P.QUEUE AND H.OPEN_TIME <= QUEUE_NOW() AND H.CLOSE_TIME > QUEUE_NOW())))
  AND (EXISTS(SELECT 1 FROM {table} R WHERE {waiting})
[sequence]    OR EXISTS(SELECT 1 FROM QUEUE_GAP G JOIN {table} R ON {number} BETWEEN G.LANE AND G.LAST_LANE
[sequence]      WHERE G.SUBSCRIPTION_ID = {id} {when})
  ), 1, 0),
  IIF(EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S WHERE S.ID = {id} AND S.STATE <> _ASCII 'dropped'), 1, 0)
  FROM RDB$DATABASE
"""

# The row of a task, as long as it shows that it is the task's.
_OWN_ROW: Final = """
[named]{status} = _ASCII 'fbtasks:' || :QUEUE_LANE
[!named]{of_key}
[status]  AND {status} = IIF(:QUEUE_ENDED = 2, {failed}, {taken})
"""

# Rows that are taken, and not by a task of this poll or of another one.
_IS_STRAY: Final = """
{status} = {taken} AND NOT EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S
  JOIN QUEUE_GATE G ON G.OWNER_ID = S.ID AND G.LANE = {lane_of_row} WHERE S.KIND = _ASCII 'poll')
"""

# By how the task has ended: done, failed, or to be run again.
_CHANGE: Final = """
IF (QUEUE_ENDED = 1) THEN
[deletes]  DELETE FROM {table} R WHERE {place};
[stated !deletes]  UPDATE {table} R SET {status} = {done} WHERE {place};
[!stated !deletes]  BEGIN END
IF (QUEUE_ENDED = 0) THEN
[stated !errs]  UPDATE {table} R SET {status} = {failed} WHERE {place};
[!stated errs]  UPDATE {table} R SET {error} = {text} WHERE {place};
[stated errs]  UPDATE {table} R SET {status} = {failed}, {error} = {text} WHERE {place};
[!stated !errs]  BEGIN END
[status]IF (QUEUE_ENDED = 2) THEN
[status !errs]  UPDATE {table} R SET {status} = {taken} WHERE {place};
[status errs]  UPDATE {table} R SET {status} = {taken}, {error} = NULL WHERE {place};
"""

# What keeps a change of the user's row from being done is counted and noted, and keeps back no other row. Before it
# stands nothing but that change: the engine undoes the statement that fails, and not those before it in the block.
_REFUSED: Final = """
WHEN GDSCODE cancelled DO
  EXCEPTION;
WHEN GDSCODE lock_conflict, GDSCODE deadlock, GDSCODE update_conflict DO
  QUEUE_BAD = QUEUE_BAD + 1;
WHEN ANY DO
BEGIN
  QUEUE_BAD = QUEUE_BAD + 1;
  QUEUE_ERROR = LEFT(RDB$ERROR(MESSAGE), 500);
END
"""

# Puts a row into QUEUE_ROW; one that cannot be read with the reason. Where the table was altered since it was
# described, that may be the reason, and is none to fail the row.
_READ: Final = """
EXECUTE PROCEDURE FBTASKS_POLLS.NEXT_NUMBER RETURNING_VALUES QUEUE_TASK_ID;
BEGIN
  QUEUE_ROW = {row};
  WHEN GDSCODE cancelled DO
    EXCEPTION;
  WHEN ANY DO
  BEGIN
    IF ((SELECT T.RDB$FORMAT FROM RDB$RELATIONS T WHERE T.RDB$RELATION_NAME = {name}) <> {version}) THEN
      EXCEPTION;
    QUEUE_WHY = LEFT(RDB$ERROR(MESSAGE), 400);
    QUEUE_ROW = {unread};
  END
END
"""

_MAKE: Final = """
EXECUTE PROCEDURE FBTASKS_POLLS.TAKE({id}, QUEUE_TASK_ID, QUEUE_LANE, {gated}, {data}, QUEUE_EXPIRE_MS);
{keep_keys}
QUEUE_MADE = QUEUE_MADE + 1;
"""

# Part -1 marks a key that several rows have.
_KEEP_KEY: Final = "EXECUTE PROCEDURE FBTASKS_POLLS.KEEP_KEY({id}, QUEUE_LANE, {part}, {field});"

_LOOK_UP: Final = """
QUEUE_KEY{part} = (SELECT CAST(K.DATA AS {kind}) FROM QUEUE_POLL_KEY K
  WHERE K.SUBSCRIPTION_ID = {id} AND K.LANE = :QUEUE_LANE AND K.PART = {part});
"""

# Takes the room, milliseconds until a task expires, and the oldest transaction that has not ended. Nothing is computed
# in a cursor: what fails there ends it.
_TAKE: Final = """
EXECUTE BLOCK (QUEUE_ROOM INTEGER = ?, QUEUE_EXPIRE_MS BIGINT = ?, QUEUE_OLDEST BIGINT = ?)
RETURNS (QUEUE_MADE INTEGER, QUEUE_BAD INTEGER, QUEUE_ERROR VARCHAR(500) CHARACTER SET UTF8 COLLATE UTF8)
AS
  DECLARE QUEUE_TASK_ID BIGINT;
  DECLARE QUEUE_LANE BIGINT;
  DECLARE QUEUE_CHANGED SMALLINT;
  DECLARE QUEUE_ROW {row_type};
  DECLARE QUEUE_WHY VARCHAR(400) CHARACTER SET UTF8 COLLATE UTF8;
  DECLARE QUEUE_SEEN BIGINT;
  DECLARE QUEUE_END BIGINT;
  DECLARE QUEUE_FIRST BIGINT;
  DECLARE QUEUE_LAST BIGINT;
  DECLARE QUEUE_NOTED BIGINT;
  DECLARE QUEUE_KEEPS SMALLINT;
BEGIN
  QUEUE_MADE = 0;
  QUEUE_BAD = 0;
  SELECT D.LAST_LANE FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {id} INTO :QUEUE_LAST;
  {take}
  IF (QUEUE_MADE > 0 OR QUEUE_SEEN IS NOT NULL) THEN
    EXECUTE PROCEDURE FBTASKS_POLLS.MARK({id}, QUEUE_SEEN, QUEUE_LAST, QUEUE_MADE);
  SUSPEND;
END
"""

# First the numbers that were missing are looked for, then those behind the last.
_TAKE_NUMBERS: Final = """
FOR SELECT G.LANE, G.LAST_LANE, G.NOTED_TX FROM QUEUE_GAP G WHERE G.SUBSCRIPTION_ID = {id}
  INTO :QUEUE_FIRST, :QUEUE_END, :QUEUE_NOTED DO
BEGIN
  QUEUE_KEEPS = IIF(QUEUE_NOTED <= QUEUE_OLDEST, 0, 1);
  FOR SELECT {columns} FROM {table} R WHERE {number} BETWEEN :QUEUE_FIRST AND :QUEUE_END {when}
    ORDER BY {number} AS CURSOR QUEUE_ROWS DO
  BEGIN
    IF (QUEUE_MADE >= QUEUE_ROOM) THEN
    BEGIN
      QUEUE_KEEPS = 1;
      LEAVE;
    END
    QUEUE_LANE = {lane};
    {read}
    {make}
    EXECUTE PROCEDURE FBTASKS_POLLS.FOUND({id}, QUEUE_LANE);
  END
  IF (QUEUE_KEEPS = 0) THEN
    EXECUTE PROCEDURE FBTASKS_POLLS.FORGET({id}, QUEUE_FIRST, QUEUE_END);
END
FOR SELECT {columns} FROM {table} R WHERE {waiting} ORDER BY {number} AS CURSOR QUEUE_ROWS DO
BEGIN
  IF (QUEUE_MADE >= QUEUE_ROOM) THEN
    LEAVE;
  QUEUE_LANE = {lane};
  {read}
  IF (QUEUE_LANE > QUEUE_LAST + 1) THEN
    EXECUTE PROCEDURE FBTASKS_POLLS.MISS({id}, QUEUE_LAST + 1, QUEUE_LANE - 1);
  {make}
  QUEUE_LAST = QUEUE_LANE;
END
"""

# A row of a key that another one had which was taken since the cursor was opened is passed over.
_TAKE_ROWS: Final = """
FOR SELECT {columns} FROM {table} R WHERE {waiting}
[ordered]  ORDER BY {order_by}
[marks]  FOR UPDATE WITH LOCK SKIP LOCKED
  AS CURSOR QUEUE_ROWS DO
BEGIN
  QUEUE_LANE = {lane};
  QUEUE_CHANGED = 0;
  IF (EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = {id} AND G.LANE = :QUEUE_LANE)) THEN
  BEGIN
    {duplicate}
    QUEUE_BAD = QUEUE_BAD + 1;
  END
  ELSE
  BEGIN
    {read}
    {mark}
    QUEUE_CHANGED = 1;
    {refused}
  END
  IF (QUEUE_CHANGED = 1) THEN
  BEGIN
    {make}
  END
  IF (QUEUE_MADE >= QUEUE_ROOM OR QUEUE_BAD >= 1000) THEN
    LEAVE;
END
[version]IF (QUEUE_MADE < QUEUE_ROOM AND QUEUE_BAD = 0) THEN
[version]  QUEUE_SEEN = QUEUE_OLDEST;
"""

# Makes QUEUE_FIT of QUEUE_WHY, letter by letter: the error column may not have all of them.
_FIT: Final = """
QUEUE_FIT = _ASCII '';
QUEUE_AT = 1;
WHILE (QUEUE_AT <= CHAR_LENGTH(QUEUE_WHY)) DO
BEGIN
  BEGIN
    QUEUE_LETTER = SUBSTRING(QUEUE_WHY FROM QUEUE_AT FOR 1);
    WHEN GDSCODE arith_except DO
      QUEUE_LETTER = _ASCII '?';
  END
  IF ({size}(QUEUE_FIT) + {size}(QUEUE_LETTER) > {length}) THEN
    LEAVE;
  QUEUE_FIT = QUEUE_FIT || QUEUE_LETTER;
  QUEUE_AT = QUEUE_AT + 1;
END
"""

# Takes the most ends to write.
_SETTLE: Final = """
EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)
RETURNS (QUEUE_SETTLED INTEGER, QUEUE_BAD INTEGER, QUEUE_ERROR VARCHAR(500) CHARACTER SET UTF8 COLLATE UTF8,
  QUEUE_LOST INTEGER)
AS
  DECLARE QUEUE_NOTE_ID BIGINT;
  DECLARE QUEUE_KIND CHAR(1) CHARACTER SET ASCII;
  DECLARE QUEUE_LANE BIGINT;
  DECLARE QUEUE_TASK_ID BIGINT;
  DECLARE QUEUE_ENDED SMALLINT;
  DECLARE QUEUE_WHY VARCHAR(1300) CHARACTER SET UTF8 COLLATE UTF8;
  DECLARE QUEUE_FOUND SMALLINT;
  DECLARE QUEUE_CHANGED SMALLINT;
  DECLARE QUEUE_PLACE CHAR(8) CHARACTER SET OCTETS;
  DECLARE QUEUE_STRAYS INTEGER;
  DECLARE QUEUE_AT INTEGER;
[fits]  DECLARE QUEUE_FIT VARCHAR({length}) CHARACTER SET {charset};
[fits]  DECLARE QUEUE_LETTER VARCHAR(1) CHARACTER SET {charset};
  {keys}
BEGIN
  QUEUE_SETTLED = 0;
  QUEUE_BAD = 0;
  QUEUE_LOST = 0;
  FOR SELECT N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N WHERE N.OWNER_ID = {id} ORDER BY N.OWNER_ID, N.ID
    INTO :QUEUE_NOTE_ID, :QUEUE_KIND, :QUEUE_LANE, :QUEUE_TASK_ID DO
  BEGIN
    IF (QUEUE_SETTLED >= QUEUE_MOST) THEN
      LEAVE;
    EXECUTE PROCEDURE FBTASKS_POLLS.OUTCOME({id}, QUEUE_NOTE_ID, QUEUE_KIND, QUEUE_LANE, QUEUE_TASK_ID, {gated})
      RETURNING_VALUES QUEUE_ENDED, QUEUE_WHY;
    QUEUE_CHANGED = IIF(QUEUE_ENDED >= 0, 1, 0);
    IF (QUEUE_ENDED IS NULL) THEN
      QUEUE_SETTLED = QUEUE_SETTLED + 1;
[writes]    {write}
    IF (QUEUE_CHANGED = 1) THEN
    BEGIN
      EXECUTE PROCEDURE FBTASKS_POLLS.SETTLED({id}, QUEUE_NOTE_ID, QUEUE_LANE, QUEUE_TASK_ID, {gated}, QUEUE_ENDED,
        {keeps});
      QUEUE_SETTLED = QUEUE_SETTLED + 1;
    END
  END
  SUSPEND;
END
"""

# Of several rows with one key it is not known which is that of the task, and none is changed. Where none is found, the
# row may be one that has another key now: one end is kept for each row that is taken and has no task. Rows of other
# tasks were deleted, or their statuses changed.
_WRITE: Final = """
QUEUE_FOUND = 0;
IF (QUEUE_CHANGED = 1) THEN
BEGIN
  QUEUE_CHANGED = 0;
  {look_up}
  FOR SELECT R.RDB$DB_KEY FROM {table} R WHERE {own_row} FOR UPDATE WITH LOCK SKIP LOCKED INTO :QUEUE_PLACE DO
  BEGIN
    QUEUE_FOUND = {found};
    IF (QUEUE_FOUND > 1) THEN
      LEAVE;
  END
[fits]  {fit}
  IF (QUEUE_FOUND = 1) THEN
  BEGIN
    {change}
  END
  IF (QUEUE_FOUND = 0 AND EXISTS(SELECT 1 FROM {table} R WHERE {own_row})) THEN
    QUEUE_BAD = QUEUE_BAD + 1;
[status]  ELSE IF (QUEUE_FOUND = 0 AND QUEUE_ENDED < 2) THEN
[status]  BEGIN
[status]    IF (QUEUE_STRAYS IS NULL) THEN
[status]      QUEUE_STRAYS = (SELECT COUNT(*) FROM (SELECT FIRST 1000 1 AS ONE FROM {table} R WHERE {is_stray}));
[status]    QUEUE_CHANGED = IIF(QUEUE_LOST < QUEUE_STRAYS, 0, 1);
[status]    QUEUE_LOST = QUEUE_LOST + 1 - QUEUE_CHANGED;
[status]    QUEUE_BAD = QUEUE_BAD + 1 - QUEUE_CHANGED;
[status]  END
  ELSE IF (QUEUE_FOUND < 2) THEN
    QUEUE_CHANGED = 1;
  {refused}
END
[gated]IF (QUEUE_FOUND > 1) THEN
[gated]BEGIN
[gated]  {duplicate}
[gated]  QUEUE_BAD = QUEUE_BAD + 1;
[gated]END
[gated]IF (QUEUE_ENDED = 2 AND QUEUE_FOUND = 0) THEN
[gated]  QUEUE_ENDED = 3;
"""

# Takes the most marks to look at: forgets those of keys that one row has. Returns a key that several have.
_DUPLICATES: Final = """
EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)
RETURNS ({shown_parts})
AS
  DECLARE QUEUE_LANE BIGINT;
  DECLARE QUEUE_FOUND SMALLINT;
  {keys}
BEGIN
  FOR SELECT FIRST (:QUEUE_MOST) K.LANE FROM QUEUE_POLL_KEY K WHERE K.SUBSCRIPTION_ID = {id} AND K.PART = -1
    INTO :QUEUE_LANE DO
  BEGIN
    {look_up}
    QUEUE_FOUND = 0;
    FOR SELECT {shown} FROM {table} R WHERE {of_key}
[status]      AND {status} IN ({ready}, {taken}, {failed})
      INTO {into_shown} DO
    BEGIN
      QUEUE_FOUND = QUEUE_FOUND + 1;
      IF (QUEUE_FOUND > 1) THEN
        LEAVE;
    END
    IF (QUEUE_FOUND > 1) THEN
    BEGIN
      SUSPEND;
      EXIT;
    END
    EXECUTE PROCEDURE FBTASKS_POLLS.FORGET_DUPLICATE({id}, QUEUE_LANE);
  END
END
"""

# Takes the most gates to look at: forgets those that stay for rows which are gone. Returns how many were. Marks keys
# that several rows have.
_SWEEP: Final = """
EXECUTE BLOCK (QUEUE_MOST INTEGER = ?)
RETURNS (QUEUE_GONE INTEGER)
AS
  DECLARE QUEUE_LANE BIGINT;
  DECLARE QUEUE_AT BIGINT;
  DECLARE QUEUE_SEEN INTEGER = 0;
  DECLARE QUEUE_FOUND SMALLINT;
  {keys}
BEGIN
  QUEUE_GONE = 0;
  SELECT D.LAST_LANE FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {id} INTO :QUEUE_AT;
  FOR SELECT G.LANE FROM QUEUE_GATE G WHERE G.OWNER_ID = {id} AND G.LANE > :QUEUE_AT AND G.HOLDER_ID IS NULL
    ORDER BY G.OWNER_ID, G.LANE INTO :QUEUE_LANE DO
  BEGIN
    QUEUE_SEEN = QUEUE_SEEN + 1;
    QUEUE_AT = QUEUE_LANE;
    {look_up}
    QUEUE_FOUND = (SELECT COUNT(*) FROM (SELECT FIRST 2 1 AS ONE FROM {table} R WHERE {of_key}));
    IF ({has_key} QUEUE_FOUND = 0) THEN
    BEGIN
      EXECUTE PROCEDURE FBTASKS_POLLS.GONE({id}, QUEUE_LANE);
      QUEUE_GONE = QUEUE_GONE + 1;
    END
    IF (QUEUE_FOUND > 1) THEN
      {duplicate}
    IF (QUEUE_SEEN >= QUEUE_MOST) THEN
      LEAVE;
  END
  -- From the first lane on again.
  IF (QUEUE_SEEN < QUEUE_MOST) THEN
    QUEUE_AT = -9223372036854775807;
  IF (QUEUE_AT <> (SELECT D.LAST_LANE FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = {id})) THEN
    EXECUTE PROCEDURE FBTASKS_POLLS.MARK({id}, NULL, QUEUE_AT, 0);
  SUSPEND;
END
"""

_SHOWN: Final = "CAST(LEFT({field}, 100) AS VARCHAR(100) CHARACTER SET OCTETS)"
_STRAY: Final = "SELECT FIRST 1 {shown} FROM {table} R WHERE {is_stray}"


_PARTS: Final = {
    "waiting": _WAITING,
    "refused": _REFUSED,
    "read": _READ,
    "make": _MAKE,
    "own_row": _OWN_ROW,
    "is_stray": _IS_STRAY,
    "change": _CHANGE,
    "write": _WRITE,
    "fit": _FIT,
    "duplicate": "EXECUTE PROCEDURE FBTASKS_POLLS.KEEP_KEY({id}, QUEUE_LANE, -1, _OCTETS '');",
}


class Statements:
    """The statements of one poll, of which a subscription has the number. What its shape has no use for is empty."""

    def __init__(self, subscription: int, poll: Poll, version: int, generation: int) -> None:
        """*version* is RDB$FORMAT of the table as it was described, *generation* that of the packages in use."""
        self._poll, self._generation = poll, generation
        shape, source = poll.shape, poll.source
        row, unread = self._row(), self._unread_row()
        longest = max(most(row), most(unread))
        is_wide = longest > _LONGEST_ROW
        written = expressions.appended if is_wide else concatenated
        gated = shape.gated == 1
        writes = poll.settles and bool(poll.status or poll.error or source.delete)
        facts = {
            shape.name.lower(): True,
            "gated": gated,
            "stated": poll.status is not None,
            "deletes": source.delete,
            "errs": poll.error is not None,
            "writes": writes,
            "marks": bool(shape.mark),
            "ordered": bool(poll.order_by),
            # Rows that no transaction has changed since are passed over; a condition may come to hold later.
            "version": shape is Shape.KEPT and poll.when is None,
        }
        self._facts = {fact for fact, holds in facts.items() if holds}
        self._parts = _PARTS | {
            "mark": shape.mark,
            "take": _TAKE_NUMBERS if shape is Shape.SEQUENCE else _TAKE_ROWS,
            "place": _OWN_ROW if shape is Shape.NAMED else "R.RDB$DB_KEY = :QUEUE_PLACE",
        }
        self._given: dict[str, object] = {
            "id": subscription,
            "table": quoted(poll.table.name),
            "name": constant(poll.table.name),
            "version": version,
            "gated": shape.gated,
            "keeps": shape.keeps,
            "found": 1 if shape is Shape.NAMED else "QUEUE_FOUND + 1",
            "row_type": "BLOB SUB_TYPE BINARY" if is_wide else f"VARCHAR({longest}) CHARACTER SET OCTETS",
            "data": "NULL, QUEUE_ROW" if is_wide else "QUEUE_ROW, NULL",
            "row": written(row),
            "unread": written(unread),
            "columns": _listed((*poll.key, *poll.columns)) or "1 AS QUEUE_C0",
            "order_by": _listed(poll.order_by),
            # It has lines of its own: it may end in a comment.
            "when": "" if poll.when is None else f"AND (\n{poll.when}\n)",
            "not_null": " ".join(f"AND {_field(column)} IS NOT NULL" for column in poll.key if column.nullable),
            "lane": self._lane("QUEUE_ROWS"),
            "lane_of_row": self._lane("R"),
        }
        # The key is kept beside a lane that does not lead back to it.
        self._give_key(is_kept=gated and not self._is_number and (writes or shape is Shape.KEPT))
        self._give_status()
        self._give_error()
        self.look = self._text(_LOOK)
        """Returns whether ends are to be written, whether rows wait that may be taken, and whether it is known."""
        self.take = self._text(_TAKE)
        """Returns how many tasks were made, how many rows could not be taken, and the last error."""
        self.settle = self._text(_SETTLE) if poll.settles else ""
        """Returns how many ends were written, how many could not be, the last error, and for how many the row was not
        found while others are taken and have no task.
        """
        self.stray = self._text(_STRAY) if shape is Shape.STATUS else ""
        """Returns the key of a row that is taken and has no task."""
        self.duplicates = self._text(_DUPLICATES) if gated else ""
        self.sweep = self._text(_SWEEP) if shape in (Shape.KEPT, Shape.DELETE) else ""

    def _text(self, template: str, **given: object) -> str:
        return numbered(render(template, self._facts, self._given | given, self._parts), self._generation)

    @property
    def _is_number(self) -> bool:
        return len(self._poll.key) == 1 and self._poll.key[0].is_integer

    def _lane(self, row: str) -> str:
        """The number of a row's lane: the key itself, or a hash of its bytes, which there are for any value."""
        key = [_field(column, row) for column in self._poll.key]
        if self._is_number or not key:
            return key[0] if key else "NULL"
        whole = " || _OCTETS x'00' || ".join(map(_octets, key))
        return f"HASH(CRYPT_HASH({whole} USING SHA256))"

    def _row(self) -> list[str | Value]:
        """The pieces of a row as its task has it."""
        return ["{", *self._members(lambda column: value(column, "QUEUE_ROWS", self._poll.source.charset))]

    def _unread_row(self) -> list[str | Value]:
        """The same of a row of which a value cannot be read, for the reason in QUEUE_WHY: nothing is converted."""
        why = Value(escaped("QUEUE_WHY", 4 * _MOST_WHY), 4 * _MOST_WHY)
        return ['{"e":"', why, '",', *self._members(lambda column: expressions.unconverted(column, "QUEUE_ROWS"))]

    def _members(self, member: Callable[[Column], Value]) -> list[str | Value]:
        key, others = self._poll.key, self._poll.columns
        return ['"k":', *record(key, map(member, key)), ',"v":', *record(others, map(member, others)), "}"]

    def _give_key(self, *, is_kept: bool) -> None:
        """Gives the parts that find the rows of a key: by the lane, or by the key that is kept beside it."""
        given, key = self._given, list(enumerate(self._poll.key))
        lanes = [f"QUEUE_KEY{part}" if is_kept else "QUEUE_LANE" for part, _ in key]
        keys, look_up, keep_keys = [], [], []
        for part, column in key if is_kept else ():
            kind = f"TYPE OF COLUMN {given['table']}.{quoted(column.name)}"
            keys.append(f"DECLARE QUEUE_KEY{part} {kind};")
            look_up.append(self._text(_LOOK_UP, part=part, kind=kind))
            keep_keys.append(self._text(_KEEP_KEY, part=part, field=_octets(_field(column, "QUEUE_ROWS"))))
        given |= {
            "number": _listed(self._poll.key),
            "of_key": " AND ".join(f"{_field(column)} = :{lanes[part]}" for part, column in key),
            "keys": "\n".join(keys),
            "look_up": "\n".join(look_up),
            "keep_keys": "\n".join(keep_keys),
            "has_key": "QUEUE_KEY0 IS NOT NULL AND" if is_kept else "",
            "shown": ", ".join(_SHOWN.format(field=_octets(_field(column))) for _, column in key),
            "shown_parts": ", ".join(f"QUEUE_SHOWN{part} VARCHAR(100) CHARACTER SET OCTETS" for part, _ in key),
            "into_shown": ", ".join(f":QUEUE_SHOWN{part}" for part, _ in key),
        }

    def _give_status(self) -> None:
        status, source = self._poll.status, self._poll.source
        if status is not None:
            self._given["status"] = _field(status)
            for name, each in source.statuses.items():
                sql = str(each) if isinstance(each, int) else None
                self._given[name] = sql or texts.constant_for(str(each), status, source.charset, self._poll.table)

    def _give_error(self) -> None:
        """The error's text, as long as the column has room for it, in the character set of the column."""
        column, source, given = self._poll.error, self._poll.source, self._given
        if column is None:
            return
        length = _MOST_ERROR if column.type == BLOB else min(column.length, _MOST_ERROR)
        given["error"], given["text"] = _field(column), f"LEFT(:QUEUE_WHY, {length})"
        if column.charset not in (None, "UTF8", "OCTETS"):  # which have all letters, and count them
            charset = charset_of(column, source.charset, self._poll.table, "poll_table")
            size = "OCTET_LENGTH" if column.charset == "NONE" else "CHAR_LENGTH"
            self._facts.add("fits")
            given |= {"text": ":QUEUE_FIT", "length": length, "charset": charset, "size": size}


def _field(column: Column, row: str = "R") -> str:
    return f"{row}.{quoted(column.name)}"


def _listed(columns: Iterable[Column]) -> str:
    return ", ".join(map(_field, columns))


def _octets(field: str) -> str:
    return f"CAST({field} AS VARCHAR({MOST_KEY}) CHARACTER SET OCTETS)"
