"""Looks at tasks in the order of an index, up to a bound.

An index leads to the tasks of a state; of those that have not ended, to these of one queue. Such lanes are read side by
side, each up to its part of the bound, and merged as far as all of them were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from fbtasks.database.schema import numbered
from fbtasks.database.values import as_utc
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import READ, Session
from fbtasks.states import State

FEW: Final = 1_000
"""Tasks due at one moment that are sorted; of more the index of their numbers is walked."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=100)
"""As fine as the database counts."""
_TIMES: Final = ("START_TIME", "DUE_TIME", "FINISH_TIME")
_BLOCK: Final = """
EXECUTE BLOCK {given} RETURNS (LANE INTEGER, IS_MATCH BOOLEAN, LOOKED INTEGER, ROOM INTEGER, PRIORITY_RANK SMALLINT,
    MOMENT TIMESTAMP, ID BIGINT)
AS
    DECLARE STATE SMALLINT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE MATCHES INTEGER;
BEGIN
    SELECT COUNT(*) FROM ({lanes}) INTO :LANE;
    ROOM = MAXVALUE({most} + 1, {bound} / MAXVALUE(LANE, 1));
    LANE = 0;
    FOR {lanes} INTO :STATE, :QUEUE DO
    BEGIN
        LANE = LANE + 1;
        LOOKED = 0;
        MATCHES = 0;
        FOR {tasks} INTO :PRIORITY_RANK, :MOMENT, :ID, :IS_MATCH DO
        BEGIN
            LOOKED = LOOKED + 1;
            MATCHES = MATCHES + IIF(IS_MATCH, 1, 0);
            IF (IS_MATCH OR LOOKED = ROOM) THEN
                SUSPEND;
            IF (MATCHES > {most} OR LOOKED = ROOM) THEN
                LEAVE;
        END
    END
END"""
"""Those of each lane that are looked for, up to one more than a page has, and the last one that it has looked at."""
Key = tuple[int, ...]
"""Where a task is in a list: the last columns of the index, times in tenths of a millisecond. The ID is the last."""


class Order(NamedTuple):
    """An order in which tasks are listed."""

    table: str
    lane: tuple[str, ...]
    """The first columns of the index, which are the same for a lane."""
    columns: tuple[str, ...]
    """The others. Without those of a lane, the index is of the first of them alone."""
    lanes: str
    """Selects STATE and QUEUE of each lane."""
    step: int = 1
    """-1: the last ones come first."""

    @property
    def live(self) -> bool:
        """Whether these tasks have not ended."""
        return self.table == "QUEUE_TASK"

    @property
    def time(self) -> str:
        """The column with the time of a task."""
        return self.columns[-2]

    def place(self, key: Key) -> Key:
        """Returns *key* so that it sorts as the list does."""
        return tuple(self.step * each for each in key)

    def ranges(self, cursor: Key | None, *, many: bool) -> Iterator[tuple[str, str]]:
        """Yields conditions for the ranges of the index behind *cursor*, and the order in each.

        *many*: so many tasks have the time of the cursor.
        """
        compare, direction = (">=", "") if self.step > 0 else ("<=", " DESC")
        for level in range(len(cursor or "1") - 1, -1, -1):
            columns = (*self.lane, *self.columns) if self.lane else self.columns[level : level + 1]
            order = ", ".join(f"T.{each}{direction}" for each in columns)
            if level and not self.lane and not many:
                order += " + 0"  # sorted; else the index of all numbers is walked
            if cursor is None:
                yield f"T.{self.columns[0]} >= {_literal(self.columns[0], None)}", order
                return
            same = [f"T.{name} = {_literal(name, cursor[n])}" for n, name in enumerate(self.columns[:level])]
            name, beyond = self.columns[level], cursor[level] + self.step
            yield " AND ".join((*same, f"T.{name} {compare} {_literal(name, beyond)}")), order


LIVE: Final = Order(
    "QUEUE_TASK",
    ("STATE", "QUEUE"),
    ("PRIORITY_RANK", "START_TIME", "ID"),
    "SELECT STATE, QUEUE FROM FBTASKS_VIEW.STATES",
)
DUE: Final = Order("QUEUE_TASK", (), ("DUE_TIME", "ID"), "SELECT 1 AS STATE, NULL AS QUEUE FROM RDB$DATABASE")
ENDED: Final = Order(
    "QUEUE_HISTORY",
    ("STATE",),
    ("FINISH_TIME", "ID"),
    "SELECT STATE, NULL AS QUEUE FROM (SELECT 10 AS STATE FROM RDB$DATABASE UNION ALL SELECT 11 FROM RDB$DATABASE "
    "UNION ALL SELECT 12 FROM RDB$DATABASE)",
    step=-1,
)


class Seen(NamedTuple):
    """What a look has found."""

    found: list[Key]
    """The tasks that are looked for, in their order, as far as all lanes were read."""
    until: Key | None
    """How far that is; None: to their ends."""
    beyond: bool
    """Whether more is known to follow."""
    looked: int
    """At how many tasks it has looked, about."""


class Lanes:
    """The lanes of tasks in some states, and which of these are looked for."""

    def __init__(self, session: Session, states: tuple[State, ...], most: int) -> None:
        """*most*: how many a page has."""
        self._session = session
        self._most = most
        self.order = DUE if states == (State.SCHEDULED,) else LIVE if states[0].live else ENDED
        self._of = [f"STATE IN ({', '.join(f'{each:d}' for each in states)})"]
        self._ranges: list[str] = []
        self._matches: list[str] = []
        self._declared: list[str] = []
        self._params: list[object] = []

    def param(self, value: object, kind: str = "QUEUE_MESSAGE") -> str:
        """Returns what stands for *value* in a condition."""
        self._declared.append(f"P{len(self._params)} {kind} = ?")
        self._params.append(value)
        return f":P{len(self._params) - 1}"

    def match(self, condition: str) -> None:
        """Looks for those tasks T alone for which *condition* is true."""
        self._matches.append(condition)

    def in_queues(self, names: Iterable[str], *, others: bool = False) -> None:
        """Looks in these queues alone; with *others* in all others."""
        quoted = ("_ASCII '{}'".format(name.replace("'", "''")) for name in ("", *names))
        condition = f"QUEUE {'NOT ' if others else ''}IN ({', '.join(quoted)})"
        if self.order is LIVE:
            self._of.append(condition)
        else:
            self.match(f"T.{condition}")

    def in_time(self, compare: str, time: datetime) -> None:
        """Looks for those alone whose time is ``>=`` *time*, or ``<=``."""
        where = self._matches if self.order is LIVE else self._ranges
        where.append(f"T.{self.order.time} {compare} {_literal(self.order.time, _ticks(time))}")

    def look(self, cursor: Key | None, bound: int) -> Seen:
        """Looks at up to *bound* tasks behind *cursor*."""
        with self._session.transaction(READ) as transaction:
            many = False
            if self.order is DUE and cursor is not None:
                many = transaction.value("due_at", FEW + 1, from_ticks(cursor[0])) > FEW
            sql = numbered(self._block(cursor, bound, many=many), self._session.generation)
            lanes: dict[int, list[tuple[Any, ...]]] = {}
            for lane, *row in transaction.sql(sql, *self._params):
                lanes.setdefault(lane, []).append(tuple(row))
        found: list[Key] = []
        ends: list[Key] = []
        for rows in lanes.values():
            some = [self._key(*key) for is_match, _, _, *key in rows if is_match]
            _, looked, room, *last = rows[-1]
            if looked == room or len(some) > self._most:
                ends.append(self._key(*last))
            found += some
        place = self.order.place
        until = min(ends, key=place, default=None)
        if until is not None and self.order is DUE and (cursor is None or until[0] > cursor[0]):
            until = (until[0], -1)  # those of one moment are not in the order of their numbers
        kept = [each for each in found if until is None or place(each) <= place(until)]
        looked_at = sum(rows[-1][1] for rows in lanes.values())
        return Seen(sorted(kept, key=place), until, len(kept) < len(found), looked_at)

    def _key(self, rank: int, time: datetime, number: int) -> Key:
        return (rank, _ticks(as_utc(time)), number)[-len(self.order.columns) :]

    def _block(self, cursor: Key | None, bound: int, *, many: bool) -> str:
        order = self.order
        lane = [f"T.{name} = :{name}" for name in order.lane] or ["T.STATE + 0 = 1"]
        match = f"IIF({' AND '.join(self._matches)}, TRUE, FALSE)" if self._matches else "TRUE"
        tasks = " UNION ALL ".join(
            f"SELECT * FROM (SELECT T.PRIORITY_RANK, T.{order.time}, T.ID, {match} AS IS_MATCH FROM {order.table} T "
            f"WHERE {' AND '.join((*lane, where, *self._ranges))} ORDER BY {by})"
            for where, by in order.ranges(cursor, many=many)
        )
        lanes = f"SELECT STATE, QUEUE FROM ({order.lanes}) WHERE {' AND '.join(self._of)}"
        given = f"({', '.join(self._declared)})" if self._declared else ""
        return _BLOCK.format(given=given, lanes=lanes, most=self._most, bound=bound, tasks=tasks)


def _ticks(time: datetime) -> int:
    return (time - _EPOCH) // _TICK


def from_ticks(ticks: int) -> datetime:
    """Returns a time of a key as the database has it. Raises :class:`ConfigurationError` for one that cannot be."""
    try:
        return (_EPOCH + ticks * _TICK).replace(tzinfo=None)
    except OverflowError:
        raise ConfigurationError(f"{ticks} is no time of a task: begin with the first page.") from None


def _literal(column: str, value: int | None) -> str:
    """A *value* of a column in a statement; None: the least one."""
    if column in _TIMES:
        return "TIMESTAMP '{:.24}'".format("0001-01-01" if value is None else str(from_ticks(value)))
    return str(-9999 if value is None else value)
