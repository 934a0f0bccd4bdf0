"""A look at the library's answer that costs one call of the library.

The driver (2.1) looks after each of its calls: one for a row that is fetched, several for each column of a statement
that is prepared. It makes sets of flags each time, in 5 us: that was a fifth of what a row costs. A status without
flags says that all went well, and to ask for them takes 1 us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

_thread = threading.local()


def check_quickly() -> None:
    """Makes the driver look at the flags alone where there are none."""
    from firebird.driver import interfaces

    if interfaces.iVersioned._check.__module__ != __name__:
        interfaces.iVersioned._check = _quick(interfaces.iVersioned._check)


def flags(thing: Any) -> int:
    """Returns the flags of the thread's status, which the driver's object *thing* has used, as ``StateFlag`` numbers.

    The driver has one status for each thread, as long as that lives.
    """
    try:
        ask = _thread.ask
    except AttributeError:
        status = thing.status
        ask = _thread.ask = partial(status.vtable.getState, status)
    return ask()  # type: ignore[no-any-return]  # the library's


def _quick(look: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns what does the same as the driver's *look*."""

    def check(thing: Any) -> None:
        if flags(thing):
            look(thing)

    return check
