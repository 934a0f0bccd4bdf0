"""Freeing what the client library gave out, once, also when the thread is interrupted while it does that.

A task is interrupted by an exception that is raised between two steps of Python code: after a call of the library, and
before the driver has looked at its answer. Two things go wrong in the driver (2.1) then:

* An error that was not looked at stays in the thread's status vector. The library does not clear that for a call that
  succeeds, and the driver takes the error for that call's own: a statement that was cancelled and is freed then counts
  as not freed.
* The call that frees has been made, and the driver has not noted it.

In both cases it frees the same thing again, which by then is memory of something else.

The library answers with a warning where the end of the connection has freed the thing before, as it happens when a
program ends while its threads use the database. There is nothing to do about that, so it is not shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fbtasks.firebird.driver.checking import flags

_ENDINGS: Final = {
    "iBlob_v3": {"cancel": "deprecatedCancel", "close": "deprecatedClose"},
    "iBlob": {"cancel": "cancel", "close": "close"},
    "iTransaction_v3": {"commit": "deprecatedCommit", "rollback": "deprecatedRollback"},
    "iTransaction": {"commit": "commit", "rollback": "rollback"},
    "iResultSet_v3": {"close": "deprecatedClose"},
    "iResultSet_v4": {"close": "close"},
    "iResultSet": {"close": "close"},
    "iStatement_v3": {"free": "deprecatedFree"},
    "iStatement": {"free": "free"},
}
"""The methods that free, by the driver's classes, with the library's functions that they call."""


def free_once() -> None:
    """Makes the driver free everything once."""
    from firebird.driver import interfaces

    if interfaces.iStatement.free.__module__ == __name__:
        return
    for kind, methods in _ENDINGS.items():
        for method, function in methods.items():
            setattr(getattr(interfaces, kind), method, _ending(function))


def _ending(function: str) -> Callable[[Any], None]:
    from firebird.driver import DatabaseError
    from firebird.driver.types import StateFlag

    def end(thing: Any) -> None:
        if thing._refcnt <= 0:
            return
        status, call = thing.status, getattr(thing.vtable, function)
        status.init()
        count, thing._refcnt = thing._refcnt, 0  # CPython interrupts after the next call at the earliest
        call(thing, status)
        if not flags(thing) & StateFlag.ERRORS.value:
            status.init()
            return
        try:
            thing._check()
        except DatabaseError:
            thing._refcnt = count
            raise

    return end
