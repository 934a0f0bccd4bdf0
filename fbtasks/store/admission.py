"""Limits as the database has them: defined by apps, found by those who enqueue, changed by operators."""

from __future__ import annotations

from typing import NamedTuple

from fbtasks.firebird.session import Session, Transaction
from fbtasks.store.codec import Limit


class Definition(NamedTuple):
    """What an app says of a limit."""

    name: str
    app: str
    at_once: int | None
    period: int | None
    burst: int | None
    in_order: bool
    stops: bool
    text: str
    hash: str


def set_limit(transaction: Transaction, definition: Definition, *, only_new: bool) -> bool:
    """Notes what an app says of a limit. False when that changes nothing.

    With *only_new* another definition stays as it is.
    """
    name, app, at_once, period, burst, in_order, stops, text, digest = definition
    row = (name, app, at_once, period, burst, int(in_order), int(stops), text, digest, int(only_new))
    return bool(transaction.value("set_limit", *row) == 1)


def find(session: Session, name: str) -> tuple[Limit, str] | None:
    """Returns a limit, and what tells its definition from others; None: no app has said anything of it."""
    for number, is_rate, digest in session.read("find_limit", name):
        return Limit(number, bool(is_rate)), digest
    return None


def use(transaction: Transaction, limit: Limit, queue: str) -> bool:
    """Notes that tasks of *queue* pass *limit*. False when that was known."""
    return bool(transaction.value("use_limit", limit.id, queue))
