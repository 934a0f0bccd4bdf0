"""Inserts definitions that several programs may bring in at one moment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from fbtasks.errors import AuthenticationError, DuplicateKey, EnqueueError
from fbtasks.firebird.session import INSERT, MOST_ATTEMPTS, Session, Transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
_FIRSTS: Final = 5


def write_first(
    session: Session, write: Callable[[Transaction], T], kind: bytes = INSERT, attempts: int = MOST_ATTEMPTS
) -> T:
    """Returns what *write* returns, which inserts a row unless it is there; again when another one was the first."""
    for _ in range(_FIRSTS):
        with suppress(DuplicateKey):  # the next time it finds it there
            return session.run(write, kind, attempts=attempts)
    return session.run(write, kind, attempts=attempts)


def check_known(what: str, found: str | None, wanted: str, bring_in: Callable[[], object]) -> None:
    """Calls *bring_in* when the definition of *what* is not *found*. Definitions are compared by their hashes.

    Another one that is there stays: that of a newer program, or one that workers have not brought in yet. Raises
    :class:`EnqueueError` when the database's user may not bring it in.
    """
    if found is None:
        try:
            bring_in()
        except AuthenticationError as error:
            raise EnqueueError(
                f"the {what} is not in the database yet, and this user may not bring it in. Run 'fbtasks migrate -A' "
                f"as the owner of the database, or start a worker: {error}"
            ) from error
    elif found != wanted:
        logger.warning(
            "The database has another definition of the %s than this program, and goes by that until a worker with "
            "this program's starts, or 'fbtasks migrate -A' brings it in.",
            what,
        )
