"""The main transaction of a connection as a transactional task has it: to work in with cursors, but not to end.

Effects and outcome of such a task are one transaction. The methods of the driver that would end it are refused, and
nothing is done. Whether it is still the one that was begun, which SQL can end too, is looked at when the task's call
has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.firebird.driver.translate import translate, was_cancelled
from fbtasks.firebird.session import INSERT, Session, Transaction

_NUMBER: Final = b"\x04"
"""isc_info_tra_id."""
_BEGINNINGS: Final = 5
"""How many times a transaction is begun before a request to cancel counts."""
_REFUSED: Final = ("begin", "commit", "rollback")
_REMEDY: Final = (
    "leave that to fbtasks, which commits effects and outcome together when the task returns, and rolls back when it "
    "raises. Use cursors and savepoints, or app.connect() for a transaction of your own."
)
_WHAT_REMAINS: Final = f"so what it had done by then is committed or undone, whatever its outcome: {_REMEDY}"


class TaskTransaction(Transaction):
    """The transaction that is to hold a task's effects and its outcome."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.connection.main_transaction, session.url, session.queries)
        self.connection = session.connection
        """What the task is lent."""
        self._begun = self.driver._tra
        self._number = self._ask_number()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """For the block, it is the task's to work in, and not to end."""
        manager = self.driver

        def give_back() -> None:
            for name in (*_REFUSED, "_finish"):
                vars(manager).pop(name, None)

        def finish(*given: Any) -> None:  # what the driver calls when the manager or its connection is closed
            give_back()
            type(manager)._finish(manager, *given)

        vars(manager).update({name: partial(_refuse, manager, name) for name in _REFUSED}, _finish=finish)
        try:
            yield
        finally:
            give_back()

    def _ask_number(self) -> bytes:
        """The number of the transaction, as the engine answers it. The driver's own way takes ten times as long."""
        answer = ctypes.create_string_buffer(32)
        self.driver._tra.get_info(_NUMBER, answer)
        return answer.raw

    @property
    def ended(self) -> bool:
        """Whether the task has ended it. After a COMMIT that retains, what is committed next has another number."""
        if not self._begun._as_parameter_:  # ended in SQL
            self._begun._refcnt = 0  # so it is not to be given back
            return True
        if self.driver._tra is not self._begun:
            return True
        try:
            return self._ask_number() != self._number
        except Exception:  # noqa: BLE001  # the connection is lost, and whoever uses it next is told
            return False

    def misuse(self) -> TaskDefinitionError | None:
        """Returns the error of a task that has ended its transaction or closed its connection."""
        if self.connection.is_closed():
            return TaskDefinitionError(f"a transactional task closed self.connection, {_WHAT_REMAINS}")
        if self.ended:
            return TaskDefinitionError(f"a transactional task ended its transaction itself, {_WHAT_REMAINS}")
        return None

    def savepoint(self, name: str) -> None:
        """Sets a savepoint, in place of the one of this name."""
        self.script(f"SAVEPOINT {name}")

    def undo_to(self, name: str) -> None:
        """Undoes what was done since the savepoint of this name was set."""
        self.script(f"ROLLBACK TO SAVEPOINT {name}")


def _refuse(manager: Any, name: str, *_given: Any, savepoint: str | None = None, **_options: Any) -> None:
    """Stands for a method of *manager* that would end its transaction. Going back to a savepoint does not."""
    if savepoint is None:
        raise TaskDefinitionError(f"a transactional task called self.connection.{name}(): {_REMEDY}")
    type(manager).rollback(manager, savepoint=savepoint)


@contextmanager
def task_transaction(session: Session) -> Iterator[TaskTransaction]:
    """Begins the main transaction of *session*, for a task, whose statements wait for rows that others hold.

    The block ends it itself. A request to cancel that ends the beginning was for a statement of the task before.
    """
    for left in reversed(range(_BEGINNINGS)):
        try:
            session.connection.begin(INSERT)
            transaction = TaskTransaction(session)
            break
        except Exception as error:
            if not (left and was_cancelled(error)):
                raise translate(error, session.url) from error
    try:
        yield transaction
    except BaseException:
        transaction.rollback()
        raise
