"""Resolves commits whose answer was lost: the number of the transaction tells whether it took effect.

The plain path pays nothing for it. The procedure that writes also returns the number of its transaction, and a
transaction of kind ``ENQUEUE`` or ``PUBLISH`` is recorded as rolled back when it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import CommitUncertain, DatabaseUnavailable
from fbtasks.firebird.session import INSERT, NO_AUTO_UNDO, READ, UPDATE, Transaction

T = TypeVar("T")
ENQUEUE: Final = INSERT + NO_AUTO_UNDO
"""For calls: waits for another one that has the same id."""
PUBLISH: Final = UPDATE + NO_AUTO_UNDO
"""For messages."""
_LOOK: Final = 0.05
_LOOK_WHILE_AWAY: Final = 0.5
_PATIENCE: Final = 2.0
"""Seconds for which a transaction may go on whose connection was lost on this side; then it is killed on the other."""
_LONGEST: Final = 6.0


class Use(Protocol):
    """Runs work in a transaction of the given kind, on a connection that is made when it is missing."""

    def __call__(self, work: Callable[[Transaction], T], kind: bytes, /) -> T:
        """Returns what *work* returns."""


class InDoubt(CommitUncertain):
    """Whether a transaction took effect cannot be told now: ask again with :func:`settle` and its number."""

    def __init__(self, message: str, number: int, written: Any = None) -> None:
        super().__init__(message)
        self.number = number
        self.written = written
        """What the transaction would have returned."""


def once(use: Use, write: Callable[[Transaction], tuple[T, int | None]], kind: bytes, away: float = 0.0) -> T:
    """Returns what *write* returns, in one transaction that takes effect once. *kind* is ``ENQUEUE`` or ``PUBLISH``.

    *write* also returns the number of its transaction, or None when it wrote nothing. When the answer to the commit is
    lost the database is asked, for up to *away* seconds while it is not there. Raises :class:`InDoubt` when it does
    not say.
    """
    written: list[tuple[T, int | None]] = []

    def noted(transaction: Transaction) -> T:
        written[:] = [write(transaction)]
        return written[0][0]

    for _ in range(2):
        try:
            return use(noted, kind)
        except CommitUncertain:
            value, number = written[0]
            if number is None or settle(use, number, value, away):
                return value
    raise DatabaseUnavailable("the connection was lost twice, before the transaction took effect.")


def settle(use: Use, number: int, written: Any = None, away: float = 0.0) -> bool:
    """Whether the transaction of that *number* took effect; *written* is for the error. Raises :class:`InDoubt`."""
    begun = clock.monotonic()
    back: float | None = None
    while True:
        try:
            done = use(lambda t: committed(t, number), READ)
            if done is not None:
                return done
            back = back or clock.monotonic()
            if clock.monotonic() - back > _PATIENCE:
                use(lambda t: t.call("FBTASKS_PRODUCER.KILL_OWN_CONNECTION", number), UPDATE)
        except DatabaseUnavailable as error:
            if clock.monotonic() - begun >= away:
                raise InDoubt(f"the database cannot be asked: {error}", number, written) from error
            clock.sleep(_LOOK_WHILE_AWAY)
        else:
            if clock.monotonic() - back > _LONGEST:
                raise InDoubt("the database does not end the transaction.", number, written)
            clock.sleep(_LOOK)


def committed(transaction: Transaction, number: int) -> bool | None:
    """Whether the transaction of that number, of a kind with NO AUTO UNDO, took effect. None: it has not ended.

    Holds until the database is swept, which forgets rollbacks.
    """
    change, active = transaction.rows("transaction_end", number, number)[0]
    if change == 0 and active:
        return None
    # None: the database has not come to this number, having lost it; 0 of a dead engine; negative: rolled back.
    return change is not None and change > 0
