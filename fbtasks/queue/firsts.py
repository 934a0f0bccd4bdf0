"""What several programs may write for the first time at one moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from fbtasks.errors import DuplicateKey
from fbtasks.firebird.session import INSERT, Session, Transaction

T = TypeVar("T")
_FIRSTS: Final = 5


def write_first(session: Session, write: Callable[[Transaction], T]) -> T:
    """Returns what *write* returns, which inserts a row unless it is there; again when another one was the first."""
    for _ in range(_FIRSTS):
        with suppress(DuplicateKey):  # the next time it finds it there
            return session.run(write, INSERT)
    return session.run(write, INSERT)
