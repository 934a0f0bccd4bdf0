"""What tasks say of themselves while they run, in the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fbtasks.features.progress.said import Progress
from fbtasks.firebird.session import Session, Transaction
from fbtasks.states import State
from fbtasks.tasks.call import TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload, json_value, show_json

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


def describe(session: Session, task: TaskRow) -> tuple[str, Any]:
    """What a task that runs has said last, for people and in JSON."""
    said = of_task(session, task.id) if task.state is State.RUNNING else None
    if said is None:
        return "", None
    payload = Payload(JSON_TYPE, said[1])
    return f"{said[0]} {show_json(payload)}", {"state": said[0], "info": json_value(payload)}
