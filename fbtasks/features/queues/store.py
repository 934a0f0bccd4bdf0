"""What the database is told of queues: their limits, the places of those, and when they are open."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from fbtasks import timing as clock
from fbtasks.database.values import as_utc
from fbtasks.features.limits.definition import in_words
from fbtasks.firebird.session import Session, Transaction


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
    paused: bool
    limit: str | None
    """How many of its tasks run at once, and how often they begin, in words."""

    @property
    def places_are_right(self) -> bool:
        """Whether the free places and the tasks that have not ended add up to the limit, and nothing free is owed."""
        if self.max_length is None:
            return True
        return self.free - self.owed + self.unfinished == self.max_length and not (self.free and self.owed)

    @property
    def is_open(self) -> bool:
        """Whether its tasks may begin now."""
        return not self.paused and (not self.windowed or (self.opens is not None and self.opens <= self.now))


def policies(session: Session) -> list[Policy]:
    """All queues of which something is told."""
    return [
        Policy(
            queue, max_length, when_full, bool(windowed), app, definition, digest, as_utc(now),
            free or 0, owed or 0, unfinished or 0,
            None if until is None else as_utc(until), None if opens is None else as_utc(opens), bool(paused),
            in_words(at_once if set_at_once is None else set_at_once, period if set_period is None else set_period),
        )
        for (
            queue, max_length, when_full, windowed, app, definition, digest, now, free, owed, unfinished, until, opens,
            paused, set_at_once, at_once, set_period, period,
        ) in session.read("policies")
    ]  # fmt: skip


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
    return bool(transaction.call("FBTASKS_QUEUES.SET_POLICY", *row) == 1)


def has_limit(transaction: Transaction, queue: str) -> bool:
    """Whether a queue has a limit on what runs, which may say nothing."""
    return bool(transaction.value("has_limit", queue))


class Room(NamedTuple):
    """Why a queue's limit lets nothing in now."""

    running: int | None
    """How many of its tasks run, when that is as many as may at once."""
    opens: datetime | None
    """When its rate lets in the next one, when that is not now."""


def room(session: Session, queue: str) -> Room:
    """What the limit of a queue says now; nothing, when it lets tasks in."""
    for at_once, running, now, opens in session.read("queue_room", queue):
        is_full = at_once is not None and running >= at_once
        return Room(running if is_full else None, as_utc(opens) if opens is not None and opens > now else None)
    return Room(None, None)


def paused_names(session: Session) -> list[str]:
    """Returns the names of tasks that are paused."""
    return [name for (name,) in session.read("paused_names")]


def set_shifts(transaction: Transaction, queue: str, shifts: Iterable[tuple[datetime, datetime]]) -> None:
    """Says anew when a queue is open."""
    packed = "".join(f"{clock.to_ms(begin):015d}{clock.to_ms(end):015d}" for begin, end in shifts)
    transaction.call("FBTASKS_QUEUES.SET_SHIFTS", queue, packed)
