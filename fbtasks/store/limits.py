"""What the database is told of queues: their limits, the places of those, and when they are open."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from fbtasks import clock
from fbtasks.firebird.session import Session, Transaction
from fbtasks.store.values import as_utc


class Policy(NamedTuple):
    """What the database is told of a queue, and how that stands at one moment."""

    queue: str
    max_length: int | None
    when_full: str | None
    windowed: bool
    app: str | None
    definition: str | None
    hash: str | None
    now: datetime
    free: int
    owed: int
    unfinished: int
    """Counted for queues with a limit alone."""
    shifts_until: datetime | None
    """Until when it is known when the queue is open."""
    opens: datetime | None
    """When it opened, if it is open, or opens next."""

    @property
    def places_are_right(self) -> bool:
        """Whether the free places and the tasks that have not ended add up to the limit, and nothing free is owed."""
        if self.max_length is None:
            return True
        return self.free - self.owed + self.unfinished == self.max_length and not (self.free and self.owed)

    @property
    def is_open(self) -> bool:
        """Whether its tasks may begin now."""
        return not self.windowed or (self.opens is not None and self.opens <= self.now)


def policies(session: Session) -> list[Policy]:
    """All queues of which something is told."""
    return [
        Policy(
            queue, max_length, when_full, bool(windowed), app, definition, digest, as_utc(now),
            free or 0, owed or 0, unfinished or 0,
            None if until is None else as_utc(until), None if opens is None else as_utc(opens),
        )
        for queue, max_length, when_full, windowed, app, definition, digest, now, free, owed, unfinished, until, opens
        in session.read("policies")
    ]  # fmt: skip


def policy_hash(session: Session, queue: str) -> str | None:
    """What tells the definition of a queue from others; None: no app has said anything of it."""
    found: str | None = session.read("policy_hash", queue)[0][0]
    return found


class Definition(NamedTuple):
    """What an app says of a queue."""

    queue: str
    app: str
    max_length: int | None
    when_full: str | None
    windowed: bool
    age_ms: int | None
    text: str
    hash: str


def set_policy(transaction: Transaction, definition: Definition, *, only_new: bool) -> bool:
    """Notes what an app says of a queue, which is locked then. False when that changes nothing.

    With *only_new* another definition stays as it is.
    """
    queue, app, max_length, when_full, windowed, age_ms, text, digest = definition
    row = (queue, app, max_length, when_full, int(windowed), age_ms, text, digest, int(only_new))
    return bool(transaction.value("set_policy", *row) == 1)


def lock_policy(transaction: Transaction, queue: str) -> None:
    """Locks what is told of a queue, so that its places are set by one transaction at a time."""
    transaction.execute("lock_policy", queue)


def set_places(transaction: Transaction, queue: str) -> int:
    """Makes the places of a queue what its limit says; the caller has it locked. Returns by how many they differed."""
    return int(transaction.value("set_places", queue))


def set_shifts(transaction: Transaction, queue: str, shifts: Iterable[tuple[datetime, datetime]]) -> None:
    """Says anew when a queue is open."""
    packed = "".join(f"{clock.to_ms(begin):015d}{clock.to_ms(end):015d}" for begin, end in shifts)
    transaction.execute("set_shifts", queue, packed)


def now(transaction: Transaction) -> datetime:
    """The database's clock."""
    moment: datetime = transaction.value("now")
    return as_utc(moment)
