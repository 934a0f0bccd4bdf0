"""Begins to work with a database as soon as it is there: after a power cut a worker may start before its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import SHUT_DOWN_LOOK, Database
from fbtasks.errors import DatabaseError, DatabaseShutDown
from fbtasks.firebird.driver.translate import server_is_away
from fbtasks.timing import Backoff

_FIRST: Final = 0.2
_LAST: Final = 5.0
"""Seconds between two attempts to reach a server: the least, and the most."""


def when_it_is_there(
    database: Database,
    begin: Callable[[], object],
    *,
    who: str,
    say: Callable[[str], object],
    wait: Callable[[float], bool],
) -> bool:
    """Calls *begin*, again and again while the server of *database* is away, or that is shut down for maintenance.

    *say* is called once with an error and that *who* waits, and once at the end of the wait. *wait* is called with
    seconds, and returns False when *who* is to end meanwhile; then so does this function. Any other error of *begin*,
    such as an :class:`AuthenticationError`, is raised.
    """
    backoff = Backoff(_FIRST, _LAST)
    began = clock.monotonic()
    said: set[bool] = set()
    while True:
        try:
            begin()
        except DatabaseError as error:
            is_shut_down = isinstance(error, DatabaseShutDown)
            if not is_shut_down and not server_is_away(error, database.url):
                raise
            pause = SHUT_DOWN_LOOK if is_shut_down else backoff.next()
            if is_shut_down not in said:
                said.add(is_shut_down)
                often = f"looks every {pause:g} s" if is_shut_down else "tries again every few seconds"
                say(f"{error} {who} waits for that, and {often}.")
        else:
            if said:
                say(f"The database is there after {clock.monotonic() - began:.1f} s.")
            return True
        if not wait(pause):
            return False
