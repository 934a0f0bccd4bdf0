"""A connection with its prepared statements, and the transactions that run on it."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from fbtasks import timing as clock
from fbtasks.errors import CommitUncertain, ConflictError, DatabaseUnavailable, StatementRefused
from fbtasks.firebird import watchdog
from fbtasks.firebird.driver.discard import discard
from fbtasks.firebird.driver.packed import PackedCall
from fbtasks.firebird.driver.translate import Translated, is_read_only, translate
from fbtasks.system import faults
from fbtasks.url import DatabaseURL

T = TypeVar("T")

# isc_tpb_version3, then the parameters by their numbers in the client's ibase.h. The driver's own helper leaves
# out read_committed beside read_consistency, which a server before 5.0.4 takes for something else.
# The last of each is ignore_limbo: what a two-phase commit has prepared, and nobody has ended since its program died,
# is taken for a transaction that has not ended. Otherwise a statement fails that meets one row of it.
READ: Final = bytes((3, 8, 15, 17, 7, 14))
"""READ COMMITTED, read only: holds back no garbage collection. To begin and end one writes two pages of the embedded
engine's file (measured with 5.0.4): see :meth:`Session.reading`."""
SNAPSHOT: Final = bytes((3, 2, 8, 7, 14))
"""SNAPSHOT, read only, NO WAIT: for a report that adds up rows which others may add up meanwhile, on any server."""
UPDATE: Final = bytes((3, 9, 15, 22, 7, 14))
"""READ COMMITTED READ CONSISTENCY, NO WAIT: for changes of rows that another transaction may hold; try again later."""
INSERT: Final = bytes((3, 9, 15, 22, 6, 14))
"""The same, but WAIT: for an insert whose unique key another transaction may hold."""
NO_AUTO_UNDO: Final = bytes((20,))
"""Behind one of the last two: a transaction that keeps no log of what to undo.

A rollback is then recorded as such (else the engine undoes what was done and records a commit), so the number of the
transaction tells what became of it. What is rolled back stays in the pages until it is collected: for transactions that
seldom are.
"""
_READ_ONLY: Final = bytes((8,))
_WRITES: Final = bytes((9,))
"""isc_tpb_read and isc_tpb_write."""
MOST_ATTEMPTS: Final = 50
QUICK_ATTEMPTS: Final = 3
"""Conflicts after which the next attempt waits a little, at random."""
_PIECE: Final = 65_535
"""Bytes of a segment of a BLOB; what is longer goes, and comes, in several, so that it is seen that it moves."""


_also: ContextVar[Callable[[Transaction, Any], None] | None] = ContextVar("_also", default=None)
_guests: WeakKeyDictionary[Any, dict[str, dict[str, Any]]] = WeakKeyDictionary()
"""Statements prepared on connections that are not ours; the driver frees them with their connection."""


@contextmanager
def also_doing(work: Callable[[Transaction, Any], None]) -> Iterator[None]:
    """For the block: each transaction of :meth:`Session.run` in this thread does *work* too, before it is committed.

    *work* is called with what the transaction is to return. One that is tried again does it again.
    """
    token = _also.set(work)
    try:
        yield
    finally:
        _also.reset(token)


class Transaction:
    """Runs named queries, and procedures by their names, in one transaction of the driver's."""

    def __init__(
        self, transaction: Any, url: DatabaseURL, queries: Mapping[str, str], session: Session | None = None
    ) -> None:
        """*transaction* is a transaction manager; without *session* it belongs to a connection of the application's.

        *queries* has the SQL of each query, and of the call of each procedure, by its name.
        """
        self.driver = transaction
        self._url = url
        self._queries = queries
        self._session = session

    def rows(self, name: str, *params: object, more: str = "") -> list[tuple[Any, ...]]:
        """All rows of the query, or of the procedure, *name* (with *more* SQL behind it)."""
        return self._rows(lambda cursor: self._queries[name] + more if more else self._prepared(cursor, name), params)

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """All rows of *statement*, which is not kept prepared: what it names can be altered and dropped meanwhile."""
        return self._rows(lambda _: statement, params)

    def _rows(self, statement: Callable[[Any], Any], params: Sequence[object]) -> list[tuple[Any, ...]]:
        with Translated(self._url), closing(self._cursor()) as cursor:
            cursor.stream_blob_threshold = _PIECE  # longer ones arrive as readers, which end with the cursor
            cursor.execute(statement(cursor), _uploads(params, self._moved))
            watchdog.moved()
            return _downloads(cursor.fetchall(), self._moved) if cursor.description else []

    def parts(self, name: str, *params: object, more: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yields the rows of a query, *size* at a time: for a list that may be long, without long BLOBs."""
        with Translated(self._url), closing(self._cursor()) as cursor:
            cursor.execute(self._queries[name] + more, params)
            watchdog.moved()
            while rows := cursor.fetchmany(size):
                watchdog.moved()
                yield rows

    def compile(self, sql: str) -> None:
        """Compiles *sql* without running it. Raises :class:`StatementRefused` when that fails."""
        with Translated(self._url), closing(self._cursor()) as cursor:
            cursor.prepare(sql).free()

    def packed(self, name: str, data: bytes) -> bytes:
        """Calls the procedure *name*, which takes a string and returns one; see PackedCall."""
        with Translated(self._url):
            calls = self._statements("packed")
            call = calls.get(name)
            if call is None:
                with closing(self._cursor()) as cursor:
                    call = calls[name] = PackedCall(self._prepared(cursor, name))
            return call(self.driver, data)

    def _cursor(self) -> Any:
        from fbtasks.firebird.driver.binding import cursor_of  # imports the driver: not before there is a connection

        return cursor_of(self.driver)

    def _moved(self) -> None:
        """Notes that the database has taken or given a piece of something long."""
        watchdog.moved()
        if self._session is not None and self._session.meanwhile is not None:
            self._session.do_meanwhile()

    def _prepared(self, cursor: Any, name: str) -> Any:
        statements = self._statements("prepared")
        statement = statements.get(name)
        if statement is None:
            statement = statements[name] = cursor.prepare(self._queries[name])
        return statement

    def _statements(self, kind: str) -> dict[str, Any]:
        """Returns the statements of *kind* that are kept for this connection, ours or the application's."""
        if self._session is not None:
            return self._session.statements[kind]
        return _guests.setdefault(self.driver._connection(), {"packed": {}, "prepared": {}})[kind]

    def execute(self, name: str, *params: object) -> None:
        """Runs a query that returns nothing."""
        self.rows(name, *params)

    def value(self, name: str, *params: object) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(name, *params)
        return rows[0][0] if rows else None

    def call(self, procedure: str, *params: object) -> Any:
        """Calls ``PACKAGE.PROCEDURE`` with all its parameters. Returns its result; of several the tuple of them.

        None when it has none, or has returned no row.
        """
        rows = self.rows(procedure, *params)
        if not rows:
            return None
        row = rows[0]
        return row if len(row) > 1 else row[0]

    def begin(self) -> None:
        """Begins it."""
        with Translated(self._url):
            self.driver.begin()

    def commit(self, point: str = "") -> None:
        """Commits. Raises :class:`CommitUncertain` when the connection is lost meanwhile. *point*: see ``faults``."""
        if faults.armed:
            faults.reach(point, "before")
        try:
            self.driver.commit()
        except Exception as error:
            self.rollback()
            found = translate(error, self._url)
            if isinstance(found, DatabaseUnavailable):
                raise CommitUncertain(str(found)) from error
            raise found from error
        if faults.armed:
            faults.reach(point, "after")

    def rollback(self) -> None:
        """Rolls back; a connection that is lost needs none."""
        with suppress(Exception):
            self.driver.rollback()

    def script(self, statement: str) -> None:
        """Runs one statement of a migration."""
        with Translated(self._url):
            self.driver.execute_immediate(statement)
            watchdog.moved()


def database_info(connection: Any, *codes: str) -> tuple[Any, ...]:
    """Returns facts of a database, by the names of the driver's ``DbInfoCode``."""
    from firebird.driver.types import DbInfoCode

    with Translated():
        return tuple(connection.info.get_info(DbInfoCode[code]) for code in codes)


class _Upload:
    """Bytes that the driver reads like a file, a segment at a time."""

    def __init__(self, data: bytes, moved: Callable[[], None]) -> None:
        self._file = io.BytesIO(data)
        self._moved = moved

    def read(self, size: int) -> bytes:
        """The next piece. The one before it has been taken by the database."""
        self._moved()
        return self._file.read(size)


def _uploads(params: Sequence[object], moved: Callable[[], None]) -> Sequence[object]:
    """*params*, of which those that are long call *moved* for each piece that was written."""
    return [_Upload(each, moved) if isinstance(each, bytes) and len(each) > _PIECE else each for each in params]


def _downloads(rows: Iterable[tuple[Any, ...]], moved: Callable[[], None]) -> list[tuple[Any, ...]]:
    """*rows* with what they only refer to, calling *moved* for each piece that was read."""
    return [
        tuple(_download(value, moved) for value in row) if any(isinstance(value, io.IOBase) for value in row) else row
        for row in rows
    ]


def _download(value: Any, moved: Callable[[], None]) -> Any:
    if not isinstance(value, io.IOBase):
        return value
    with value as reader:
        if reader.sub_type == 1:  # type: ignore[attr-defined]  # the driver's: text, whose characters have many bytes
            return reader.read()
        pieces = []
        while piece := reader.read(_PIECE):
            pieces.append(piece)
            moved()
    return b"".join(pieces)


class Session:
    """One connection of the driver's with the statements prepared on it. Used by one thread at a time."""

    def __init__(self, connection: Any, url: DatabaseURL, queries: Mapping[str, str]) -> None:
        self.connection = connection
        self.url = url
        self.queries = queries
        self.generation = 0
        """The number of the packages that *queries* name."""
        self.conflicts = 0
        """Conflicts met and retried since the last :meth:`take_conflicts`."""
        self.fresh = True
        """Whether the connection was opened for the use it is in, and has not lain in a pool."""
        self.meanwhile: Callable[[], None] | None = None
        """Called before each transaction, and again and again while something long is transferred.

        It may use transactions of the kind INSERT.
        """
        self.statements: dict[str, dict[str, Any]] = {"prepared": {}, "packed": {}}
        """Prepared statements by the names of their queries; they outlive commit and rollback."""
        self._managers: dict[bytes, Any] = {}
        self._reading: Transaction | None = None
        self._ending = threading.Lock()
        self._ended = False

    @contextmanager
    def transaction(self, kind: bytes = UPDATE, point: str = "") -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back when it raises."""
        if self.meanwhile is not None:  # one of many short ones may be as late as one that takes long
            self.do_meanwhile()
        manager = self._managers.get(kind)
        if manager is None:
            manager = self._managers[kind] = self.connection.transaction_manager(kind)
        with self.watched():
            transaction = Transaction(manager, self.url, self.queries, self)
            try:
                transaction.begin()
            except StatementRefused as error:
                _let_triggers_write(manager, error)
                transaction.begin()
            try:
                yield transaction
            except BaseException:
                transaction.rollback()  # the first error is the one to tell
                raise
            try:
                transaction.commit(point)
            except StatementRefused as error:
                _let_triggers_write(manager, error)  # of what was read nothing is lost

    @contextmanager
    def transaction_beside(self) -> Iterator[Transaction]:
        """A transaction of the kind INSERT that others may run beside: the block begins it, and may do so again.

        It is not watched, and nothing of it is kept that the block does not commit.
        """
        manager = self.connection.transaction_manager(INSERT)
        try:
            yield Transaction(manager, self.url, self.queries)
        finally:
            with suppress(Exception):  # the connection may be lost, and then that is what the block has raised
                manager.close()

    def do_meanwhile(self) -> None:
        """Calls :attr:`meanwhile`, which is not interrupted by itself."""
        act, self.meanwhile = self.meanwhile, None
        try:
            if act is not None:
                act()
        finally:
            self.meanwhile = act

    def watched(self) -> AbstractContextManager[None]:
        """For the block: a server that does not answer for too long is given up, so that no call waits without end."""
        return watchdog.guard(self.connection, embedded=self.url.embedded)

    def run(
        self, work: Callable[[Transaction], T], kind: bytes = UPDATE, point: str = "", attempts: int = MOST_ATTEMPTS
    ) -> T:
        """*work* in a transaction of its own, tried again (and counted) when another one is in its way."""
        for attempt in range(attempts):
            try:
                with self.transaction(kind, point) as transaction:
                    done = work(transaction)
                    if (also := _also.get()) is not None:
                        also(transaction, done)
                    return done
            except ConflictError:
                self.conflicts += 1
                if attempt == attempts - 1:
                    raise
                if attempt > QUICK_ATTEMPTS:
                    clock.sleep(random.uniform(0, 0.002 * attempt))  # noqa: S311  # others are in each other's way too
        raise AssertionError("not reached")

    def call(
        self, procedure: str, *params: object, kind: bytes = UPDATE, point: str = "", attempts: int = MOST_ATTEMPTS
    ) -> Any:
        """Calls a procedure as :meth:`Transaction.call` does, in a transaction of its own, like :meth:`run`."""
        return self.run(lambda transaction: transaction.call(procedure, *params), kind, point, attempts)

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """All rows of *statement*, in a transaction of its own, like :meth:`run`; none when it returns no rows."""
        return self.run(lambda transaction: transaction.sql(statement, *params))

    @contextmanager
    def reading(self, kind: bytes = READ) -> Iterator[None]:
        """For the block, all that is read is read in one transaction."""
        before = self._reading
        with self._read_only(kind) as transaction:
            self._reading = transaction
            try:
                yield
            finally:
                self._reading = before

    def _read_only(self, kind: bytes = READ) -> AbstractContextManager[Transaction]:
        return self.transaction(kind) if self._reading is None else nullcontext(self._reading)

    def read(self, name: str, *params: object, more: str = "") -> list[tuple[Any, ...]]:
        """All rows of a query, in a read-only transaction."""
        with self._read_only() as transaction:
            return transaction.rows(name, *params, more=more)

    def read_in_parts(self, name: str, *params: object, more: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yields the rows of a query, *size* at a time. This session reads nothing else before the last of them."""
        with self._read_only() as transaction:
            yield from transaction.parts(name, *params, more=more, size=size)

    def take_conflicts(self) -> int:
        """The number of conflicts since the last call."""
        taken, self.conflicts = self.conflicts, 0
        return taken

    def transaction_gap(self) -> int:
        """How many transactions have begun since the oldest one whose view of the database is still kept.

        As it was when this connection last began a transaction. MON$DATABASE is not read for it: see the query
        ``database_identity``.
        """
        following, oldest = database_info(self.connection, "NEXT_TRANSACTION", "OLDEST_SNAPSHOT")
        return int(following - oldest)

    def ping(self) -> None:
        """Raises :class:`DatabaseUnavailable` unless the database still answers on this connection."""
        try:
            with self.watched():
                self.connection._att.ping()
        except Exception as error:  # whatever it is, the connection is of no use
            raise DatabaseUnavailable(f"the connection was lost: {error}") from error

    def alive(self) -> bool:
        """Whether the database still answers on this connection."""
        try:
            self.ping()
        except DatabaseUnavailable:
            return False
        return True

    def cancel_statement(self) -> None:
        """Cancels the statement that runs on this connection; from another thread."""
        self._from_outside(watchdog.cancel)

    def kill(self) -> None:
        """Kills the connection on this side: a thread that waits for its answer gets an error."""
        self._from_outside(watchdog.kill_connection)

    def _from_outside(self, act: Callable[[Any], None]) -> None:
        """Does something to the connection in another thread; nothing once it is being closed, which frees it."""
        with self._ending, suppress(Exception):  # no statement runs, or the connection is lost
            if not self._ended:
                act(self.connection)

    def close(self, *, lost: bool = False) -> None:
        """Frees the statements, then the transactions, then the connection; never raises.

        *lost*: the connection has failed. It ends on this side first, since a server does not always answer what is
        asked on a connection that it has killed.
        """
        with self._ending:
            if self._ended:
                return  # another thread frees it
            self._ended = True
        if self.connection.is_closed():
            return
        if lost and not self.url.embedded:
            with suppress(Exception):
                watchdog.kill_connection(self.connection)
        try:
            with self.watched():
                self.connection._att.ping()
                for statement in self.statements["prepared"].values():
                    statement.free()
                for manager in self._managers.values():
                    manager.close()
                self.connection.close()
        except Exception:  # noqa: BLE001  # lost, now or before
            discard(self.connection)
        for kept in self.statements.values():
            kept.clear()
        self._managers.clear()


def _let_triggers_write(manager: Any, error: StatementRefused) -> None:
    """Makes read-only transactions of *manager* writable from now on. Raises *error* unless it comes of that.

    A trigger of the application's ON TRANSACTION START or COMMIT writes, and the engine calls it in read-only
    transactions too.
    """
    if not is_read_only(error.__cause__):
        raise error
    manager.default_tpb = manager.default_tpb.replace(_READ_ONLY, _WRITES)
