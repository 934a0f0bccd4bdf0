"""Limits as the database has them: defined by apps, found by those who enqueue, changed by operators."""

from __future__ import annotations

from typing import Final, NamedTuple

from fbtasks.firebird.session import Session, Transaction
from fbtasks.limits import LimitDefinition
from fbtasks.store.codec import Limit

READS: Final = 1_000
"""Gates, or merged calls, that maintenance reads in one transaction."""


class Place(NamedTuple):
    """A gate: those behind it are looked at next."""

    limit: int = 0
    lane: int = -1


def set_limit(transaction: Transaction, app: str, definition: LimitDefinition, *, only_new: bool) -> bool:
    """Notes what *app* says of a limit. False when that changes nothing.

    With *only_new* another definition stays as it is.
    """
    it = definition
    row = (
        it.name, app, it.at_once, it.period, it.burst, int(it.in_order), int(it.stops), it.until, int(it.replaces),
        it.quiet_ms, it.most_ms, it.lasts_ms, it.text, it.hash, int(only_new),
    )  # fmt: skip
    return bool(transaction.value("set_limit", *row) == 1)


def find(session: Session, name: str) -> tuple[Limit, str] | None:
    """Returns a limit, and what tells its definition from others; None: no app has said anything of it."""
    for number, stage, digest in session.read("find_limit", name):
        return Limit(number, stage), digest
    return None


def use(transaction: Transaction, limit: Limit, queue: str) -> bool:
    """Notes that tasks of *queue* pass *limit*. False when that was known."""
    return bool(transaction.value("use_limit", limit.id, queue))


def forget_gates(transaction: Transaction, after: Place) -> tuple[Place | None, int]:
    """Deletes gates that no task needs, among the next ones behind *after*.

    Returns where to go on (None: these were the last), and how many are gone.
    """
    limit, lane, forgotten = transaction.rows("forget_gates", *after, READS)[0]
    return None if limit is None else Place(limit, lane), forgotten


def forget_merged(transaction: Transaction, after: int) -> tuple[int | None, int]:
    """Deletes what leads from merged calls to tasks that are forgotten, among the next ones with an id above *after*.

    Returns the id up to which it looked (None: to the end), and how many are gone.
    """
    last, forgotten = transaction.rows("forget_merged", after, READS)[0]
    return last, forgotten
