"""Letting go of a connection that is lost.

The driver frees each statement, result and transaction by asking the server, and keeps what it could not free, to try
again when it is collected as garbage: by then the client library's side of it is gone, which prints errors that no
user can act on and may end the process. So what belongs to a lost connection is taken from the driver, and never freed
by it: a few hundred bytes for each lost connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any


def discard(connection: Any) -> None:
    """Closes a lost *connection* of the driver with all that belongs to it. Never raises."""
    _discard_cursor(connection._ic)
    managers = [connection._tra_main, connection._tra_qry, *connection._transactions]
    for manager in managers:
        for reference in list(manager._cursors):
            if (cursor := reference()) is not None:
                _discard_cursor(cursor)
        if manager._tra is not None:
            manager._tra._refcnt = 0
            manager._tra = None
    for reference in list(connection._statements):
        if (statement := reference()) is not None:
            discard_statement(statement)
    with suppress(Exception):
        connection.close()
    if connection._att is not None:
        connection._att._refcnt = 0
        connection._att = None


def discard_statement(statement: Any) -> None:
    """Lets go of a statement; its descriptions, which are of this side alone, are freed."""
    if statement._istmt is not None:
        statement._istmt._refcnt = 0
        statement._istmt = None
    with suppress(Exception):
        statement.free()


def silence_disposal() -> None:
    """Silences the driver when it collects cursors and statements whose connection was lost or closed.

    A statement that is collected as garbage takes itself off the list of its connection, which another thread may just
    be closing: then it is on no list.
    """
    from firebird.driver.core import Connection, Cursor, Statement

    for kind, name in ((Cursor, "__del__"), (Statement, "__del__"), (Connection, "_Connection__stmt_deleted")):
        dispose = getattr(kind, name)
        if not hasattr(dispose, "hushed"):
            setattr(kind, name, _quietly(dispose))


def _quietly(dispose: Callable[..., None]) -> Callable[..., None]:
    @wraps(dispose)
    def dispose_quietly(*things: Any) -> None:
        with suppress(Exception):
            dispose(*things)

    dispose_quietly.hushed = True  # type: ignore[attr-defined]
    return dispose_quietly


def _discard_cursor(cursor: Any) -> None:
    if cursor._result is not None:
        cursor._result._refcnt = 0
        cursor._result = None
    if cursor._stmt is not None:
        discard_statement(cursor._stmt)
        cursor._stmt = None
