"""The triggers of subscriptions: made, activated, taken away, and looked at; and the rows that were there before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from fbtasks.database.values import as_utc
from fbtasks.errors import ConflictError
from fbtasks.features.sources.store import triggers
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.subscriptions import Row
from fbtasks.features.sources.store.triggers import trigger_name as trigger_name
from fbtasks.firebird.session import Session, Transaction


class Trigger(NamedTuple):
    """A trigger as the database has it."""

    table: str
    active: bool
    hash: str
    """The SHA-256 of its source."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that may go on executing what it prepared before a trigger was as it is."""

    id: int
    user: str
    since: datetime
    program: str | None
    pid: int | None
    address: str | None


def put(transaction: Transaction, subscription: int, text: str, *, active: bool) -> None:
    """Makes or replaces the trigger, with the rights that it needs. It is seen, and fires, from the commit on."""
    transaction.script(text)
    for statement in triggers.grants(subscription):
        transaction.script(statement)
    if not active:
        activate(transaction, subscription, active=False)


def activate(transaction: Transaction, subscription: int, *, active: bool) -> None:
    """Decides whether statements that are prepared from the commit on fire the trigger.

    Its rights stay, for those prepared before.
    """
    transaction.script(f"ALTER TRIGGER {trigger_name(subscription)} {'ACTIVE' if active else 'INACTIVE'}")


def drop(session: Session, subscription: int) -> None:
    """Drops the trigger and its rights: a statement prepared before that still fires it would fail from then on."""
    session.sql(f"DROP TRIGGER {trigger_name(subscription)}")


def found(session: Session) -> dict[int, Trigger]:
    """The triggers that there are, by the subscriptions in their names."""
    rows = session.read("source_triggers", trigger_name(0).removesuffix("0"))
    start = len(trigger_name(0)) - 1
    return {int(name[start:]): Trigger(*rest) for name, *rest in rows if name[start:].isdecimal()}


def older_writers(session: Session, rows: Iterable[Row]) -> list[Connection]:
    """The connections that are older than a trigger of *rows*: what they prepared before goes on without it.

    Without the session's own, and as far as its user may see them.
    """
    moments = [row.active_time for row in rows if row.active_time is not None]
    if not moments:
        return []
    found = session.read("source_connections", max(moments).replace(tzinfo=None))
    return [Connection(number, user, as_utc(since), *rest) for number, user, since, *rest in found]


def disconnect(session: Session, connections: Iterable[Connection]) -> None:
    """Ends connections: what they have not committed is rolled back."""
    for each in connections:
        session.run(lambda t, number=each.id: t.execute("source_disconnect", number))  # type: ignore[misc]


def note_existing(session: Session, subscription: int, capture: Capture) -> int:
    """Notes the rows for which the condition of *capture* holds, before all changes that were noted. Returns how many.

    No row is locked. Until all are noted nothing of the subscription is given out: a change that was noted meanwhile
    is handled after the row that it changed. It is one transaction, of which nothing is left when it fails.
    """
    with session.transaction_beside() as transaction:  # not watched: it takes as long as the table is large
        while True:
            transaction.begin()
            try:
                transaction.rows(
                    "dispatch_lock", subscription, more=" "
                )  # by itself: the next statement sees what this waited for
                count = transaction.sql(triggers.existing(subscription, capture))[0][0]
                transaction.commit()
            except ConflictError:
                transaction.rollback()
                continue
            return int(count)
