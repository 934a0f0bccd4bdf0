"""What tasks say of themselves while they run, in the database."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.features.progress.said import Progress
from fbtasks.firebird.session import Session, Transaction

BATCH = 200
"""Rows that maintenance deletes in one transaction."""


def put(transaction: Transaction, items: Iterable[Progress]) -> None:
    """Notes how far tasks have come; what belongs to a claim that has ended is dropped."""
    for item in items:
        transaction.call("FBTASKS_PROGRESS.PUT_PROGRESS", *item)


def of_task(session: Session, task: int) -> tuple[str, bytes] | None:
    """What a task that runs has said last: a word, and what there is to say, in JSON. None: nothing."""
    rows = session.read("FBTASKS_PROGRESS_API.READ_PROGRESS", task)
    return (rows[0][0], bytes(rows[0][1])) if rows else None
