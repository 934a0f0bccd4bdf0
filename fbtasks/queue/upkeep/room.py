"""The room of deleted rows in the file of the database."""

from __future__ import annotations

from typing import Final

from fbtasks.firebird.session import Transaction

READS: Final = 2_000
"""Rows of each table that are read in one transaction."""


def collect(transaction: Transaction, positions: bytes | None, reads: int = READS) -> bytes | None:
    """Reads on in the tables whose rows are deleted by their keys, so that the engine gives back the room of those.

    *positions* is what the last call returned; None: from the beginning. Returns None when all were read to their ends.
    """
    found = transaction.call("FBTASKS_WORKER.COLLECT", positions, reads)
    return None if found is None else bytes(found)
