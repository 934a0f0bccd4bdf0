"""The progress that tasks report, packed for their workers, and in the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fbtasks.firebird.session import Session, Transaction
from fbtasks.states import State
from fbtasks.tasks.call import Said, TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload, json_value, show_json

BATCH = 200
"""Rows that maintenance deletes in one transaction."""


def packed(word: str, meta: bytes) -> bytes:
    """Packs what a task reports to its worker."""
    return b"%b\n%b" % (word.encode(), meta)  # JSON is written without line breaks


class Progress(NamedTuple):
    """How far a task has come that runs, as it says."""

    id: int
    claim_id: int
    word: str
    """Its state meanwhile."""
    meta: bytes
    """The details, in JSON."""

    @classmethod
    def of(cls, said: Said) -> Progress:
        """Unpacks *said*."""
        word, _, meta = said.data.rpartition(b"\n")
        return cls(said.id, said.claim_id, word.decode("utf-8", "replace"), meta)


def put(transaction: Transaction, items: Iterable[Progress]) -> None:
    """Notes how far tasks have come; what belongs to a claim that has ended is dropped."""
    for item in items:
        transaction.call("FBTASKS_PROGRESS.PUT_PROGRESS", *item)


def of_task(session: Session, task: int) -> tuple[str, bytes] | None:
    """Returns what a task that runs has said last: its state, and the rest in JSON. None: nothing."""
    rows = session.read("FBTASKS_PROGRESS_API.READ_PROGRESS", task)
    return (rows[0][0], bytes(rows[0][1])) if rows else None


def describe(session: Session, task: TaskRow) -> tuple[str, Any]:
    """Returns what a task that runs has said last, for people and in JSON."""
    said = of_task(session, task.id) if task.state is State.RUNNING else None
    if said is None:
        return "", None
    payload = Payload(JSON_TYPE, said[1])
    return f"{said[0]} {show_json(payload)}", {"state": said[0], "info": json_value(payload)}
