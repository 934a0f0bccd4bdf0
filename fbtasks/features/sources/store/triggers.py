"""The trigger that records a table's changes: from what is to be recorded to its text. No database is asked.

The statement that fires it only inserts, into a table whose key has a number of a sequence, and reads nothing that
others write. An expression that fails at run time is caught, and a row with the error takes the change's place. Its
variables are called QUEUE_...: a condition does not meet them by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.expressions import (
    LONGEST,
    Value,
    appended,
    concatenated,
    escaped,
    literal,
    most,
    record,
    size,
    value,
)
from fbtasks.features.sources.store.tables import BIGINT, Column, quoted
from fbtasks.features.sources.store.templates import render

_MOST: Final = LONGEST - 40
"""The most bytes behind the id of a change that is a VARCHAR: before it stands the id, and which of two rows it is."""
_ERROR: Final = 300
"""The most characters of an error's text."""
_MOST_ERROR: Final = 4 * _ERROR + 600
"""Room for the members of a change that could not be recorded, with a usual key."""
_WHILE: Final = {"I": "INSERTING", "U": "UPDATING", "D": "DELETING"}
_EVENTS: Final = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}
_COMMON: Final = Value("QUEUE_COMMON", 400)
"""The members that each row has: when the change was made, by which transaction and by whom."""
_START: Final = literal('{"i":')

_TRIGGER: Final = """
CREATE OR ALTER TRIGGER {trigger} FOR {table} ACTIVE
AFTER {events} POSITION 32767 SQL SECURITY DEFINER
AS
  DECLARE QUEUE_SILENT VARCHAR(255) CHARACTER SET OCTETS;
  {variables}
  DECLARE QUEUE_ERROR VARCHAR(1200) CHARACTER SET OCTETS;
BEGIN
[!always]  QUEUE_SILENT = RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_SILENT');
[!always]  IF (QUEUE_SILENT IS NOT NULL) THEN
[!always]  BEGIN
[!always]    QUEUE_SILENT = TRIM(_OCTETS ' ' FROM QUEUE_SILENT);
[!always]    IF (QUEUE_SILENT = _ASCII '*'
[!always]      OR POSITION({name} IN ',' || REPLACE(QUEUE_SILENT, ', ', ',') || ',') > 0) THEN EXIT;
[!always]  END
  IF ({wanted}) THEN
  {condition}
  BEGIN
    {common}
    {members}
    {lanes}
[moves]    IF (UPDATING AND ({moved})) THEN
[moves]    BEGIN
[moves]      QUEUE_START = {out};
[moves]      QUEUE_LANE = {old_lane};
[moves]      QUEUE_ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;
[moves]      {insert}
[moves]      QUEUE_START = {into};
[moves]      {lanes}
[moves]    END
    QUEUE_ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;
    {insert}
    POST_EVENT '{event}';
  END
  WHEN ANY DO
  BEGIN
    {common}
    QUEUE_START = {start};
    QUEUE_WIDE = NULL;
    BEGIN
      QUEUE_ERROR = {message};
      WHEN ANY DO
        QUEUE_ERROR = _OCTETS 'error ' || GDSCODE;
    END
    BEGIN
      {lanes}
      {keyed_errors}
      WHEN ANY DO
      BEGIN
        QUEUE_LANE = 0;
        {error}
      END
    END
    QUEUE_ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;
    {insert_error}
    POST_EVENT '{event}';
  END
END
"""

_VARIABLES: Final = """
  DECLARE QUEUE_ID BIGINT;
  DECLARE QUEUE_LANE BIGINT = 0;
  DECLARE QUEUE_TIME TIMESTAMP;
  DECLARE QUEUE_START VARCHAR(20) CHARACTER SET OCTETS = {start};
  DECLARE QUEUE_COMMON VARCHAR(400) CHARACTER SET OCTETS;
  DECLARE QUEUE_REST VARCHAR({longest}) CHARACTER SET OCTETS;
  DECLARE QUEUE_WIDE BLOB SUB_TYPE BINARY;
"""

_SHORT: Final = """
INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, ID, LANE, RAISE_TIME, DATA)
  VALUES ({id}, :QUEUE_ID, :QUEUE_LANE, :QUEUE_TIME, :QUEUE_START || :QUEUE_ID || :QUEUE_REST);
"""

# Up to 2000 bytes are in the row.
_INSERT: Final = """
IF (QUEUE_WIDE IS NULL AND OCTET_LENGTH(QUEUE_REST) <= 1960) THEN
  {short}
ELSE
  INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, ID, LANE, RAISE_TIME, LARGE)
    VALUES ({id}, :QUEUE_ID, :QUEUE_LANE, :QUEUE_TIME,
      BLOB_APPEND(NULL, :QUEUE_START || :QUEUE_ID, COALESCE(:QUEUE_WIDE, :QUEUE_REST)));
"""

# Rows that a table has already, behind those that an earlier call has noted and that still wait. Returns how many.
_EXISTING: Final = """
EXECUTE BLOCK RETURNS (QUEUE_COUNT BIGINT)
AS
  {variables}
BEGIN
  QUEUE_COUNT = 0;
  {common}
  SELECT COALESCE(MAX(C.ID), MAX(S.FIRST_ID) - 1) FROM QUEUE_SUBSCRIPTION S LEFT JOIN QUEUE_CHANGE C
    ON C.SUBSCRIPTION_ID = S.ID AND C.ID < S.FIRST_ID + 1000000000
    WHERE S.ID = {id} INTO :QUEUE_ID;
  FOR SELECT {columns} FROM {table} new LEFT JOIN {table} old ON 1 = 0
    {where}
    AS CURSOR new DO
  BEGIN
    QUEUE_ID = QUEUE_ID + 1;
    QUEUE_COUNT = QUEUE_COUNT + 1;
    QUEUE_WIDE = NULL;
    {members}
    {lanes}
    {insert}
  END
  UPDATE QUEUE_DISPATCH D SET MARK_ID = 0, BACK_ID = 0, BACK_TX = NULL, ELDERS = '' WHERE D.SUBSCRIPTION_ID = {id};
  SELECT 'fbtasks:queue:' || S.QUEUE FROM QUEUE_SUBSCRIPTION S WHERE S.ID = {id} INTO :QUEUE_REST;
  POST_EVENT QUEUE_REST;
  SUSPEND;
END
"""


def trigger_name(subscription: int) -> str:
    """The name of the trigger of a subscription."""
    return f"QUEUE_ON_{subscription}"


def grants(subscription: int) -> tuple[str, ...]:
    """The statements after which the trigger may write, whoever fires it."""
    name = trigger_name(subscription)
    return (
        f"GRANT INSERT ON QUEUE_CHANGE TO TRIGGER {name}",
        f"GRANT USAGE ON SEQUENCE QUEUE_CHANGE_SEQ TO TRIGGER {name}",
    )


def trigger(subscription: int, task: str, queue: str, capture: Capture) -> str:
    """Returns the statement that makes or replaces the trigger of *subscription*.

    *task* is the task's name, by which a transaction may be silenced; *queue* the queue whose workers are woken. What
    its condition reads and calls is looked at with the rights of the table's owner, and not of each user who writes:
    the engine does so before the trigger begins, where no handler in it helps.
    """
    source = capture.source
    there = {"I": source.insert, "U": bool(source.update), "D": source.delete}
    ops = [op for op in there if there[op]]
    moves = source.order == "key" and there["U"]
    wanted = [_WHILE[op] for op in ops if op != "U"]  # the trigger is called for UPDATEs that are not, too
    wanted += [f"old.{quoted(c.name)} IS DISTINCT FROM new.{quoted(c.name)}" for c in capture.update]
    is_op = [f"IIF({_WHILE[op]}, {literal(op)}" for op in ops]
    members = {op: _members(capture, op) for op in ops}
    longest = max(most(pieces) for pieces in members.values())
    text = {
        "trigger": trigger_name(subscription),
        "name": _octets(f",{task},"),
        "events": " OR ".join(_EVENTS[op] for op in ops),
        "event": f"fbtasks:queue:{queue}",
        "wanted": " OR ".join(wanted) if capture.update else "TRUE",
        "condition": "" if capture.when is None else f"IF (\n{capture.when}\n) THEN",  # it may end in a comment
        "common": _common(Value(", ".join(is_op) + ", NULL" + ")" * len(ops), 1)),
        "members": _each({_WHILE[op]: _assigned(pieces) for op, pieces in members.items()}),
        "moved": _key_changed(capture),
        "out": literal('{"m":"out","i":'),
        "into": literal('{"m":"in","i":'),
        "old_lane": lane(capture, "old"),
        "message": escaped(f"LEFT(RDB$ERROR(MESSAGE), {_ERROR})", 4 * _ERROR),
        "keyed_errors": _of_row(ops, lambda row: _error([',"k":', *row_json(capture, capture.key, row)])),
        "error": _error([]),
    }
    facts = {fact for fact, holds in (("always", source.always), ("moves", moves)) if holds}
    return _text(_TRIGGER, facts, subscription, capture, ops, longest, text)


def existing(subscription: int, capture: Capture) -> str:
    """Returns the statement that notes the rows of the table for which the condition holds, as their inserts."""
    members = _members(capture, "I")
    text = {
        "columns": ", ".join(f"new.{quoted(each.name)}" for each in (*capture.key, *capture.others)),
        "where": "" if capture.when is None else f"WHERE (\n{capture.when}\n)",
        "common": _common("I"),
        "members": _assigned(members),
    }
    return _text(_EXISTING, (), subscription, capture, ["I"], most(members), text)


def _text(
    template: str,
    facts: Collection[str],
    subscription: int,
    capture: Capture,
    ops: Sequence[str],
    longest: int,
    text: Mapping[str, str],
) -> str:
    """*template* with *text*, and with what a trigger and existing rows have in common."""
    given: dict[str, object] = {
        **text,
        "id": subscription,
        "table": quoted(capture.table.name),
        "start": _START,
        "longest": min(max(longest, _MOST_ERROR), _MOST),
        "lanes": "",
    }
    if capture.source.order == "key":
        given["lanes"] = _of_row(ops, lambda row: f"QUEUE_LANE = {lane(capture, row)};")
    insert = _SHORT if longest <= 1960 else _INSERT
    parts = {"variables": _VARIABLES, "short": _SHORT, "insert": insert, "insert_error": _INSERT}
    return render(template, facts, given, parts)


def lane(capture: Capture, row: str) -> str:
    """The number of the lane of a *row*, ``old`` or ``new``, as an expression: its key, or a hash of that."""
    key = capture.key
    if len(key) == 1 and key[0].is_integer:
        number = f"{row}.{quoted(key[0].name)}"
        if key[0].type == BIGINT:  # an index holds the least of them in the wrong place: it shares a lane
            number = f"MAXVALUE({number}, {-(2**63) + 1})"
        return f"COALESCE({number}, 0)"
    pieces = row_json(capture, key, row)
    whole = concatenated(pieces) if most(pieces) <= LONGEST else appended(pieces)
    return f"HASH(CRYPT_HASH({whole} USING SHA256))"  # HASH alone is the same for many short texts


def row_json(capture: Capture, columns: Sequence[Column], row: str) -> list[str | Value]:
    """The values of *columns* in a *row*, ``old`` or ``new``, as the pieces of a JSON object."""
    return record(columns, [value(column, row, capture.source.charset) for column in columns])


def _each(statements: Mapping[str, str]) -> str:
    """Each of *statements* under its condition."""
    return "\n".join(f"IF ({condition}) THEN\nBEGIN\n{each}\nEND" for condition, each in statements.items())


def _of_row(ops: Sequence[str], statement: Callable[[str], str]) -> str:
    """The *statement* for the row that has the key: the old one in a DELETE, else the new one."""
    if len(ops) == 1:
        return statement("old" if ops == ["D"] else "new")
    if "D" not in ops:
        return statement("new")
    return _each({"DELETING": statement("old"), "NOT DELETING": statement("new")})


def _assigned(pieces: Sequence[str | Value]) -> str:
    """The statement that makes QUEUE_REST of *pieces*, or QUEUE_WIDE when that has no room for the row's values."""
    rest = f"QUEUE_REST = {concatenated(pieces)};"
    if most(pieces) <= _MOST:
        return rest
    return f"IF ({size(pieces)} <= {_MOST}) THEN\n{rest}\nELSE\nQUEUE_WIDE = {appended(pieces)};"


def _common(op: str | Value) -> str:
    user = Value(escaped("CURRENT_USER", 252), 252)
    time = Value("CAST(QUEUE_TIME AS VARCHAR(24))", 24)
    pieces = [',"o":"', op, '","t":"', time, '","x":', Value("CURRENT_TRANSACTION", 20), ',"u":"', user, '"']
    return f"QUEUE_TIME = QUEUE_NOW();\nQUEUE_COMMON = {concatenated(pieces)};"


def _members(capture: Capture, op: str) -> list[str | Value]:
    """The members of a change by *op*, behind its id, and the end of the object."""
    found: list[str | Value] = [_COMMON, ',"k":', *row_json(capture, capture.key, "old" if op == "D" else "new")]
    if op == "U":
        found.append(_former_key(capture))
    for name, row, without in (("p", "old", "I"), ("n", "new", "D")):
        if op != without and capture.others:
            found += [f',"{name}":', *row_json(capture, capture.others, row)]
    return [*found, "}"]


def _former_key(capture: Capture) -> Value:
    """The key before the change, where it was another one."""
    pieces, changed = [',"q":', *row_json(capture, capture.key, "old")], _key_changed(capture)
    return Value(
        f"IIF({changed}, {concatenated(pieces)}, {literal('')})",
        most(pieces),
        size(pieces) if any(isinstance(each, Value) and each.size for each in pieces) else "",
        f"IIF({changed}, {appended(pieces)}, NULL)",
    )


def _key_changed(capture: Capture) -> str:
    return " OR ".join(_differs(column) for column in capture.key)


def _error(key: list[str | Value]) -> str:
    """Makes QUEUE_REST of the members of a change that could not be recorded, with the *key* where that can be made."""
    members = [_COMMON, *key, ',"e":"', Value("QUEUE_ERROR", 4 * _ERROR), '"}']
    return f"QUEUE_REST = {concatenated(members)};"


def _differs(column: Column) -> str:
    """Returns the test whether *column* has changed: of texts byte by byte, whatever its collation takes for equal."""
    old, new = (f"{row}.{quoted(column.name)}" for row in ("old", "new"))
    if column.is_text:
        length = min(column.length * column.width, LONGEST)
        old, new = (f"CAST({each} AS VARCHAR({length}) CHARACTER SET OCTETS)" for each in (old, new))
    return f"{old} IS DISTINCT FROM {new}"


def _octets(text: str) -> str:
    """*text* as bytes in SQL, in UTF-8."""
    return literal(text) if text.isascii() else f"_OCTETS x'{text.encode().hex()}'"
