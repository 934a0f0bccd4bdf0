"""Statements that a user types: each runs in a transaction of its own, which has ended when the answer is returned.

Works on any database, also on one without the tables of the queue.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from fbtasks.errors import DatabaseError, DatabaseUnavailable, FBTasksError, StatementRefused
from fbtasks.firebird import connections, watchdog
from fbtasks.firebird.driver.discard import discard
from fbtasks.firebird.driver.translate import is_read_only, translate, was_cancelled
from fbtasks.firebird.session import READ
from fbtasks.url import DatabaseURL

_WRITE: Final = bytes((3, 9, 15, 22, 6, 21, 4, 10, 0, 0, 0))
"""READ COMMITTED READ CONSISTENCY; waits for other transactions for 10 seconds."""
_SESSION: Final = re.compile(
    r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*+"
    r"(?:SET\s+(?:ROLE|TRUSTED|STATEMENT|SESSION|TIME|BIND|DECFLOAT|OPTIMIZE)|ALTER\s+SESSION)\b",
    re.IGNORECASE | re.DOTALL,
)
"""What the engine counts as a change of the schema, and changes this connection alone; comments may stand before it."""
_REFUSED: Final = "this statement would change the database, and `fbtasks sql` only reads: start it with --write."
_NO_TRANSACTION: Final = (
    "each statement is a transaction of its own, and is committed when it has run: there is nothing to {what}."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the database to a statement."""

    columns: tuple[str, ...] = ()
    """The names of the columns; empty when the statement returns no rows."""
    rows: tuple[tuple[Any, ...], ...] = ()
    """As many rows as were asked for. BLOBs are whole: str, or bytes when they are binary."""
    total: int | None = 0
    """How many rows there are. None: more than were asked for, and the rest was not read."""
    changed: int | None = None
    """How many rows the statement inserted, updated and deleted. None when that cannot be told."""


class Statements:
    """Runs statements, one at a time, on one connection."""

    def __init__(self, url: DatabaseURL, *, write: bool) -> None:
        """Connects. With *write* false, statements that change something are refused.

        Raises :class:`DatabaseError`, when there is no database as well: none is created.
        """
        if not connections.database_exists(url):
            raise DatabaseUnavailable(f"there is no database at {url.database}.")
        self._url = url
        self._write = write
        self._connection = connections.connect(url, charset=url.charset)
        self._transaction = self._connection.transaction_manager(_WRITE if write else READ)

    def run(self, sql: str, limit: int | None = None) -> Answer:
        """Runs *sql* and ends its transaction. Returns at most *limit* rows.

        Where the statement may change something all rows are read, also those behind *limit*: a selectable procedure
        runs no further than it is read. Raises :class:`DatabaseError`, and nothing of the statement remains then.
        """
        try:
            self._transaction.begin()
            try:
                answer = self._answer(sql, limit)
                self._transaction.commit()
            except BaseException:
                with suppress(Exception):  # the first error is the one to raise
                    self._transaction.rollback()
                raise
        except FBTasksError:
            raise
        except Exception as error:
            raise _error_of(error, self._url) from error
        return answer

    def cancel(self) -> None:
        """Cancels the statement that runs; from another thread."""
        with suppress(Exception):  # none runs, or the connection is gone
            watchdog.cancel(self._connection)

    def close(self) -> None:
        """Closes the connection; never raises."""
        try:
            self._transaction.close()
            self._connection.close()
        except Exception:  # noqa: BLE001  # lost
            discard(self._connection)

    def _answer(self, sql: str, limit: int | None) -> Answer:
        cursor = self._transaction.cursor()
        cursor.stream_blob_threshold = -1  # blobs arrive whole, not as readers bound to the cursor
        try:
            statement = cursor.prepare(sql)
            try:
                self._check(int(statement.type), sql)
                cursor.execute(statement)
                answer = _rows(cursor, limit, to_end=self._write) if cursor.description else Answer()
                return replace(answer, changed=_changed(statement))
            finally:
                with suppress(Exception):
                    cursor.close()
                    statement.free()
        finally:
            with suppress(Exception):
                cursor.close()

    def _check(self, kind: int, sql: str) -> None:
        """Refuses statements that make no sense here, and those whose changes a read-only transaction would allow."""
        from firebird.driver import StatementType

        what = {
            StatementType.START_TRANS: "begin",
            StatementType.COMMIT: "commit",
            StatementType.ROLLBACK: "roll back",
            StatementType.SAVEPOINT: "go back to",
        }.get(StatementType(kind))
        if what is not None:
            raise DatabaseError(_NO_TRANSACTION.format(what=what))
        reads = kind in (StatementType.SELECT, StatementType.SELECT_FOR_UPD, StatementType.EXEC_PROCEDURE)
        if not (self._write or reads or (kind == StatementType.DDL and _SESSION.match(sql))):
            raise DatabaseError(_REFUSED)


def _rows(cursor: Any, limit: int | None, *, to_end: bool) -> Answer:
    columns = tuple(str(column[0]) for column in cursor.description)
    rows: list[tuple[Any, ...]] = []
    total = 0
    while (row := cursor.fetchone()) is not None:
        total += 1
        if limit is None or total <= limit:
            rows.append(row)
        elif not to_end:
            return Answer(columns, tuple(rows), None)
    return Answer(columns, tuple(rows), total)


def _changed(statement: Any) -> int | None:
    """Returns how many rows *statement* has changed, as the engine counts; None where it does not count.

    It does not count what a procedure changes that the statement calls.
    """
    from firebird.driver import StatementType
    from firebird.driver.types import ReqInfoCode, StmtInfoCode

    counts = statement.info.get_info(StmtInfoCode.RECORDS)
    if not counts:
        return None
    kinds = (ReqInfoCode.INSERT_COUNT, ReqInfoCode.UPDATE_COUNT, ReqInfoCode.DELETE_COUNT)
    total = sum(int(counts.get(kind, 0)) for kind in kinds)
    return None if total == 0 and statement.type == StatementType.EXEC_PROCEDURE else total


def _error_of(error: Exception, url: DatabaseURL) -> FBTasksError:
    """Returns the error for the user who typed the statement, and knows which database it is."""
    if is_read_only(error):
        return DatabaseError(_REFUSED)
    if was_cancelled(error):
        return DatabaseError("the statement was cancelled, and nothing of it remains.")
    if isinstance(error, UnicodeError):
        return DatabaseError(
            f"a text cannot be converted ({error}): name the character set of the data in the URL, as ?charset=WIN1252."
        )
    found = translate(error, url)
    text = str(error) if type(found) is StatementRefused else str(found)
    return type(found)(" ".join(text.split()))
