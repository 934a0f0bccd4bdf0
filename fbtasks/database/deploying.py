"""One process at a time deploys what the code of an app says, or migrates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fbtasks.errors import ConflictError
from fbtasks.firebird.session import Session


@contextmanager
def deploying(session: Session) -> Iterator[None]:
    """For the block: no other process deploys or migrates. The lock is held by a transaction of its own."""
    with session.transaction_beside() as transaction:
        while True:
            transaction.begin()
            with suppress(ConflictError):
                transaction.rows("FBTASKS_UPKEEP.DEPLOY_LOCK", more=" ")
                break
            transaction.rollback()
        yield
