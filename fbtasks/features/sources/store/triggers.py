"""The trigger that records a table's changes: from what is to be recorded to its text. No database is asked.

The statement that fires it only inserts, into a table whose key has a number of a sequence, and reads nothing that
others write. An expression that fails at run time is caught, and a row with the error takes the change's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fbtasks.features.sources.store import expressions
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.expressions import (
    LONGEST,
    Value,
    appended,
    concatenated,
    escaped,
    literal,
    record,
    value,
)
from fbtasks.features.sources.store.tables import BIGINT, Column, quoted

SILENT: Final = "FBTASKS_SILENT"
"""The variable of the transaction that silences it: ``*``, or the names of tasks with commas between them."""
IN_ROW: Final = 2_000
"""The most bytes of a change in QUEUE_CHANGE.DATA; a longer one is in LARGE."""
_ID: Final = 40
"""Room for what stands before the other members: the id, and which of two rows it is."""
_ERROR: Final = 300
"""The most characters of an error's text."""
_MOST_ERROR: Final = 4 * _ERROR + 600
"""Room for the members of a change that could not be recorded, with a usual key."""
_OPS: Final = ("I", "U", "D")
_WHILE: Final = {"I": "INSERTING", "U": "UPDATING", "D": "DELETING"}
_ROW: Final = {"I": "new", "U": "new", "D": "old"}
"""The row that has the key under which a change is handled."""
_START: Final = '{"i":'
_START_OUT: Final = '{"m":"out","i":'
_START_IN: Final = '{"m":"in","i":'
BY: Final[tuple[str | Value, ...]] = (
    '","t":"',
    Value("CAST(QUEUE_TIME AS VARCHAR(24))", 24),
    '","x":',
    Value("CURRENT_TRANSACTION", 20),
    ',"u":"',
    Value(escaped("CURRENT_USER", 252), 252),
    '"',
)
"""When the change was made, by which transaction and by whom."""
_COMMON: Final = Value("QUEUE_COMMON", 400)
"""The members that each row has, as :meth:`_Body._set_common` makes them."""
INSERTION: Final = (
    "INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, ID, LANE, RAISE_TIME, {column}) "
    "VALUES ({number}, :QUEUE_ID, {lane}, :QUEUE_TIME, {members});"
)


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
    wanted = (("INSERT", source.insert), ("UPDATE", source.update), ("DELETE", source.delete))
    return (
        f"CREATE OR ALTER TRIGGER {trigger_name(subscription)} FOR {quoted(capture.table.name)} ACTIVE\n"
        f"AFTER {' OR '.join(event for event, there in wanted if there)} POSITION 32767 SQL SECURITY DEFINER\n"
        f"AS\n{_Body(subscription, task, queue, capture).text()}"
    )


def lane(capture: Capture, row: str) -> str:
    """The number of the lane of a *row*, ``old`` or ``new``, as an expression: its key, or a hash of that."""
    key = capture.key
    if len(key) == 1 and key[0].is_integer:
        number = f"{row}.{quoted(key[0].name)}"
        if key[0].type == BIGINT:  # an index holds the least of them in the wrong place: it shares a lane
            number = f"MAXVALUE({number}, {-(2**63) + 1})"
        return f"COALESCE({number}, 0)"
    pieces = row_json(capture, key, row)
    whole = concatenated(pieces) if expressions.most(pieces) <= LONGEST else appended(pieces)
    return f"HASH(CRYPT_HASH({whole} USING SHA256))"  # HASH alone is the same for many short texts


def row_json(capture: Capture, columns: Sequence[Column], row: str) -> list[str | Value]:
    """The values of *columns* in a *row*, ``old`` or ``new``, as the pieces of a JSON object."""
    return record(columns, [value(column, row, capture.source.charset) for column in columns])


class _Body:
    """The parts of a trigger's body. Its variables are called QUEUE_...: a condition does not meet them by chance."""

    def __init__(self, subscription: int, task: str, queue: str, capture: Capture) -> None:
        self._subscription = subscription
        self._task = task
        self._queue = queue
        self._capture = capture
        self._source = capture.source
        source = capture.source
        self._ops = [
            op for op, wanted in zip(_OPS, (source.insert, source.update, source.delete), strict=True) if wanted
        ]
        self._members = {op: self._members_of(op) for op in self._ops}
        self._longest = max(expressions.most(pieces) for pieces in self._members.values())
        self._moves = source.order == "key" and bool(source.update)

    def text(self) -> str:
        """The declarations and the body."""
        wanted = self._silence() + self._if_wanted(self._if_condition(_block(self._record())))
        handlers = ["WHEN ANY DO", *_block(self._record_error())]
        return "\n".join([*_indented(self._declarations()), *_block([*wanted, *handlers])])

    def _declarations(self) -> Iterator[str]:
        if not self._source.always:
            yield "DECLARE QUEUE_SILENT VARCHAR(255) CHARACTER SET OCTETS;"
        yield "DECLARE QUEUE_ID BIGINT;"
        yield "DECLARE QUEUE_LANE BIGINT = 0;"
        yield "DECLARE QUEUE_TIME TIMESTAMP;"
        if self._moves:
            yield f"DECLARE QUEUE_START VARCHAR(20) CHARACTER SET OCTETS = {literal(_START)};"
        yield f"DECLARE QUEUE_COMMON VARCHAR({_COMMON.most}) CHARACTER SET OCTETS;"
        yield f"DECLARE QUEUE_REST VARCHAR({min(max(self._longest, _MOST_ERROR), LONGEST - _ID)}) CHARACTER SET OCTETS;"
        if self._may_be_wide:
            yield "DECLARE QUEUE_WIDE BLOB SUB_TYPE BINARY;"
        yield f"DECLARE QUEUE_ERROR VARCHAR({4 * _ERROR}) CHARACTER SET OCTETS;"

    @property
    def _may_be_wide(self) -> bool:
        """Whether a change can be longer than a VARCHAR."""
        return self._longest > LONGEST - _ID

    # Whether the change is wanted.

    def _silence(self) -> list[str]:
        """The statements that leave the trigger when the transaction is silenced."""
        if self._source.always:
            return []
        name = _octets(f",{self._task},")
        return [
            f"QUEUE_SILENT = RDB$GET_CONTEXT('USER_TRANSACTION', '{SILENT}');",
            "IF (QUEUE_SILENT IS NOT NULL) THEN",
            "BEGIN",
            "  QUEUE_SILENT = TRIM(_OCTETS ' ' FROM QUEUE_SILENT);",
            "  IF (QUEUE_SILENT = _ASCII '*'",
            f"    OR POSITION({name} IN ',' || REPLACE(QUEUE_SILENT, ', ', ',') || ',') > 0) THEN EXIT;",
            "END",
        ]

    def _if_wanted(self, then: list[str]) -> list[str]:
        """*then*, under the condition that what was done is wanted. The trigger is called for UPDATEs that are not."""
        if not self._capture.update:
            return then
        parts = [event for event, op in (("INSERTING", "I"), ("DELETING", "D")) if op in self._ops]
        parts += [f"old.{quoted(c.name)} IS DISTINCT FROM new.{quoted(c.name)}" for c in self._capture.update]
        return [f"IF ({' OR '.join(parts)}) THEN", *_branch(then)]

    def _if_condition(self, then: list[str]) -> list[str]:
        """*then*, under the definition's condition. That has lines of its own, for it may end in a comment."""
        if self._capture.when is None:
            return then
        return ["IF (", self._capture.when, ") THEN", *_branch(then)]

    # The change.

    def _record(self) -> Iterator[str]:
        yield from self._set_common()
        yield from self._by_op(lambda op: self._set_rest(self._members[op]))
        yield from self._set_lane()
        if self._moves:
            yield f"IF ({'UPDATING AND ' if len(self._ops) > 1 else ''}({self._key_changed()})) THEN"
            yield from _block(self._record_move())
        yield from self._insert(self._longest)
        yield self._post()

    def _record_move(self) -> Iterator[str]:
        """The change under the key that the row had before."""
        yield f"QUEUE_START = {literal(_START_OUT)};"
        yield from self._insert(self._longest, lane(self._capture, "old"))
        yield f"QUEUE_START = {literal(_START_IN)};"

    def _by_op(self, lines: Callable[[str], list[str]]) -> list[str]:
        """The *lines* of each op, of which those of what was done are run."""
        found: list[str] = []
        for op in self._ops[:-1]:
            found += [f"{'ELSE ' if found else ''}IF ({_WHILE[op]}) THEN", *_block(lines(op))]
        last = lines(self._ops[-1])
        return [*found, "ELSE", *_block(last)] if found else last

    def _set_rest(self, pieces: Sequence[str | Value]) -> list[str]:
        """The statements that make QUEUE_REST of *pieces*, or QUEUE_WIDE when that has no room for the row's values."""
        rest = f"QUEUE_REST = {concatenated(pieces)};"
        if expressions.most(pieces) <= LONGEST - _ID:
            return [rest]
        return [
            f"IF ({expressions.size(pieces)} <= {LONGEST - _ID}) THEN",
            f"  {rest}",
            "ELSE",
            f"  QUEUE_WIDE = {appended(pieces)};",
        ]

    def _insert(self, most: int, lane: str = ":QUEUE_LANE") -> Iterator[str]:
        """The statements that write a row, whose members behind the id have *most* bytes at most."""
        start = ":QUEUE_START" if self._moves else literal(_START)
        short = f"{start} || :QUEUE_ID || :QUEUE_REST"
        yield "QUEUE_ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;"
        if most <= IN_ROW - _ID:
            yield self._insert_into("DATA", short, lane)
            return
        if most > LONGEST - _ID:
            yield "IF (QUEUE_WIDE IS NOT NULL) THEN"
            yield "  " + self._insert_into("LARGE", f"BLOB_APPEND(NULL, {start} || :QUEUE_ID, :QUEUE_WIDE)", lane)
            yield "ELSE"
        yield f"IF (OCTET_LENGTH(QUEUE_REST) <= {IN_ROW - _ID}) THEN"
        yield "  " + self._insert_into("DATA", short, lane)
        yield "ELSE"
        yield "  " + self._insert_into("LARGE", short, lane)

    def _insert_into(self, column: str, members: str, lane: str) -> str:
        return INSERTION.format(number=self._subscription, column=column, lane=lane, members=members)

    def _post(self) -> str:
        return f"POST_EVENT 'fbtasks:queue:{self._queue}';"

    # The members of the JSON object, behind its id.

    def _set_common(self) -> Iterator[str]:
        """The statements that make the members that each row has."""
        yield "QUEUE_TIME = QUEUE_NOW();"
        pieces = [',"o":"', self._op(), *BY]
        yield f"QUEUE_COMMON = {concatenated(pieces)};"

    def _members_of(self, op: str) -> list[str | Value]:
        """The members of a change by *op*, and the end of the object."""
        found: list[str | Value] = [_COMMON, ',"k":', *self._key(_ROW[op])]
        if op == "U":
            found.append(self._former_key())
        if op != "I" and self._capture.others:
            found += [',"p":', *self._others("old")]
        if op != "D" and self._capture.others:
            found += [',"n":', *self._others("new")]
        return [*found, "}"]

    def _key(self, row: str) -> list[str | Value]:
        return row_json(self._capture, self._capture.key, row)

    def _others(self, row: str) -> list[str | Value]:
        return row_json(self._capture, self._capture.others, row)

    def _former_key(self) -> Value:
        """The key before the change, where it was another one."""
        pieces = [',"q":', *self._key("old")]
        changed = self._key_changed()
        return Value(
            f"IIF({changed}, {concatenated(pieces)}, {literal('')})",
            expressions.most(pieces),
            expressions.size(pieces) if any(isinstance(each, Value) and each.size for each in pieces) else "",
            f"IIF({changed}, {appended(pieces)}, NULL)",
        )

    def _key_changed(self) -> str:
        return " OR ".join(_differs(column) for column in self._capture.key)

    # Lanes.

    def _set_lane(self) -> list[str]:
        if self._source.order != "key":
            return []
        return self._by_row(lambda row: [f"QUEUE_LANE = {lane(self._capture, row)};"])

    def _by_row(self, lines: Callable[[str], list[str]]) -> list[str]:
        """The *lines* of the row that has the key: the old one in a DELETE, else the new one."""
        if self._ops == ["D"]:
            return lines("old")
        if "D" not in self._ops:
            return lines("new")
        return ["IF (DELETING) THEN", *_indented(lines("old")), "ELSE", *_indented(lines("new"))]

    # The error.

    def _record_error(self) -> Iterator[str]:
        """The statements that write a row with the error, and with the key where that can be made."""
        yield from self._set_common()
        if self._moves:
            yield f"QUEUE_START = {literal(_START)};"
        if self._may_be_wide:
            yield "QUEUE_WIDE = NULL;"
        message = escaped(f"LEFT(RDB$ERROR(MESSAGE), {_ERROR})", 4 * _ERROR)
        yield from _block([f"QUEUE_ERROR = {message};", f"WHEN ANY DO QUEUE_ERROR = {literal('error ')} || GDSCODE;"])
        yield from _block(
            [
                *self._set_lane(),
                *self._by_row(lambda row: [self._set_error([',"k":', *self._key(row)])]),
                "WHEN ANY DO",
                *_block(["QUEUE_LANE = 0;", self._set_error([])]),
            ]
        )
        yield from self._insert(LONGEST - _ID)
        yield self._post()

    def _set_error(self, key: list[str | Value]) -> str:
        """Makes QUEUE_REST of the members of a change that could not be recorded."""
        members = [_COMMON, *key, ',"e":"', Value("QUEUE_ERROR", 4 * _ERROR), '"}']
        return f"QUEUE_REST = {concatenated(members)};"

    def _op(self) -> str | Value:
        if len(self._ops) == 1:
            return self._ops[0]
        return Value(f"IIF(INSERTING, {literal('I')}, IIF(UPDATING, {literal('U')}, {literal('D')}))", 1)


def _differs(column: Column) -> str:
    """Whether the values of *column* are not the same: of texts not a byte, whatever its collation takes for equal."""
    old, new = (f"{row}.{quoted(column.name)}" for row in ("old", "new"))
    if column.is_text:
        length = min(column.length * column.width, LONGEST)
        old, new = (f"CAST({each} AS VARCHAR({length}) CHARACTER SET OCTETS)" for each in (old, new))
    return f"{old} IS DISTINCT FROM {new}"


def _octets(text: str) -> str:
    """*text* as bytes in SQL, in UTF-8."""
    return literal(text) if text.isascii() else f"_OCTETS x'{text.encode().hex()}'"


def _branch(lines: list[str]) -> list[str]:
    """*lines*, one statement, as what is done behind THEN or ELSE."""
    return lines if lines[0] == "BEGIN" else _indented(lines)


def _block(lines: Iterable[str]) -> list[str]:
    return ["BEGIN", *_indented(lines), "END"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
