"""The main transaction of a connection as a task has it: to work in with cursors, but not to end.

Effects and outcome of a transactional task are one transaction. What would end it in the middle (commit and rollback,
also retaining or in SQL, and the driver's ``begin``, which commits first) is refused where it is called, and nothing is
done. All of that goes through the driver's manager of the transaction, so to look at it costs no round trip.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from firebird.driver.core import Cursor, Statement, TransactionManager

from fbtasks.errors import TaskDefinitionError
from fbtasks.firebird.driver.translate import translate, was_cancelled
from fbtasks.firebird.session import INSERT, Session, Transaction

_BEGINNINGS: Final = 5
"""How many times a transaction is begun before a request to cancel counts."""
_ENDS: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*(COMMIT\b|ROLLBACK\b(?!\s+(?:WORK\s+)?TO\b))", re.IGNORECASE
)
"""SQL that ends a transaction; ROLLBACK TO goes back to a savepoint and does not."""
_REMEDY: Final = (
    "leave that to fbtasks, which commits effects and outcome together when the task returns, and rolls back when it "
    "raises. Use cursors and savepoints, or app.connect() for a transaction of your own."
)


class _Manager(TransactionManager):  # type: ignore[misc]  # the driver has no types
    """Refuses to end its transaction while that is lent."""

    lent = False
    refused: TaskDefinitionError | None = None
    """The first time that it was asked to."""

    def refuse(self, what: str) -> None:
        """Raises :class:`TaskDefinitionError` for *what* was called, if the transaction is lent."""
        if self.lent:
            self.refused = self.refused or TaskDefinitionError(f"a transactional task called {what}: {_REMEDY}")
            raise self.refused

    def refuse_sql(self, sql: str) -> None:
        """The same for an SQL statement."""
        found = _ENDS.match(sql)
        if found is not None:
            self.refuse(f"{found[1].upper()} in SQL")

    def begin(self, tpb: bytes | None = None) -> None:
        self.refuse("self.connection.begin()")
        super().begin(tpb)

    def commit(self, *, retaining: bool = False) -> None:
        self.refuse("self.connection.commit()")
        super().commit(retaining=retaining)

    def rollback(self, *, retaining: bool = False, savepoint: str | None = None) -> None:
        if savepoint is None:
            self.refuse("self.connection.rollback()")
        super().rollback(retaining=retaining, savepoint=savepoint)

    def execute_immediate(self, sql: str) -> None:
        self.refuse_sql(sql)
        super().execute_immediate(sql)

    def cursor(self) -> Any:
        cursor = _Cursor(self._connection(), self)
        self._cursors.append(weakref.ref(cursor, self._cursor_deleted))
        return cursor

    def close(self) -> None:
        self.refuse("self.connection.main_transaction.close()")
        super().close()

    def _finish(self, default_action: Any = None) -> None:
        self.lent = False  # the connection is being closed
        super()._finish(default_action)


class _Cursor(Cursor):  # type: ignore[misc]  # the driver has no types
    """Refuses SQL that would end the transaction."""

    def prepare(self, operation: str) -> Any:
        self._transaction.refuse_sql(operation)
        return super().prepare(operation)

    def _execute(self, operation: Any, *args: Any, **options: Any) -> None:
        self._transaction.refuse_sql(operation.sql if isinstance(operation, Statement) else operation)
        super()._execute(operation, *args, **options)


class TaskTransaction(Transaction):
    """The transaction that is to hold a task's effects and its outcome."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.connection.main_transaction, session.url, session.queries)
        self.connection = session.connection
        """What the task is lent."""
        self._begun = self.driver._tra

    @contextmanager
    def lent(self) -> Iterator[None]:
        """For the block, it is the task's to work in."""
        self.driver.refused = None
        self.driver.lent = True
        try:
            yield
        finally:
            self.driver.lent = False

    @property
    def ended(self) -> bool:
        """Whether the task has ended it all the same, in a way that is not refused."""
        begun = self._begun
        return self.driver._tra is not begun or not begun._as_parameter_

    def savepoint(self, name: str) -> None:
        """Sets a savepoint, in place of the one of this name."""
        try:
            self.driver.savepoint(name)
        except Exception as error:
            raise translate(error, self._url) from error

    def undo_to(self, name: str) -> None:
        """Undoes what was done since the savepoint of this name was set."""
        try:
            self.driver.rollback(savepoint=name)
        except Exception as error:
            raise translate(error, self._url) from error

    @property
    def closed(self) -> bool:
        """Whether the task has closed its connection."""
        return bool(self.connection.is_closed())

    def take_misuse(self) -> TaskDefinitionError | None:
        """The same as :meth:`misuse` of the call that has just ended: of the next one it is asked anew."""
        if self.closed:
            return TaskDefinitionError(f"a transactional task closed self.connection: {_REMEDY}")
        found, self.driver.refused = self.misuse(), None
        return found

    def misuse(self) -> TaskDefinitionError | None:
        """What the task did that it must not, also when it caught the error for it."""
        refused: TaskDefinitionError | None = self.driver.refused
        if refused is None and self.ended:
            refused = TaskDefinitionError(f"a transactional task ended its transaction: {_REMEDY}")
        return refused


@contextmanager
def task_transaction(session: Session) -> Iterator[TaskTransaction]:
    """Begins the main transaction of *session*, for a task; the block ends it itself."""
    connection = session.connection
    if not isinstance(connection.main_transaction, _Manager):
        connection._tra_main = _Manager(connection, connection.default_tpb)
    try:
        _begin(connection)
    except Exception as error:
        raise translate(error, session.url) from error
    transaction = TaskTransaction(session)
    try:
        yield transaction
    except BaseException:
        transaction.rollback()
        raise


def _begin(connection: Any) -> None:
    """Begins a transaction in which a statement waits for rows that others hold.

    A request to cancel that ends the beginning was for a statement of the task before, which had ended.
    """
    for left in reversed(range(_BEGINNINGS)):
        try:
            connection.begin(INSERT)
        except Exception as error:
            if not (left and was_cancelled(error)):
                raise
        else:
            return
