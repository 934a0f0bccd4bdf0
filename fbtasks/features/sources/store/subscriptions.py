"""The rows of subscriptions: read, written and deleted. Procedures do it, which keep related rows in line."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from fbtasks.database.values import as_utc
from fbtasks.errors import ConflictError, DuplicateKey
from fbtasks.features.sources.feeds import Feed
from fbtasks.firebird.session import Session, Transaction

Held = Literal["paused", "silent"]
KEPT: Final = timedelta(days=1)
"""How long an event is kept for a handler to come."""
BATCH: Final = 1_000
"""Rows of each kind that are deleted in one transaction."""
MANY: Final = 100
"""Halted lanes up to which :func:`backlogs` counts them."""
EVENTS: Final = 500
"""Kept events that are handed on, or forgotten, in one transaction."""


class Row(NamedTuple):
    """A row of QUEUE_SUBSCRIPTION."""

    id: int
    kind: str
    app: str
    name: str
    source: str
    queue: str
    priority: int
    ordering: str
    after_ms: int
    state: str
    held: Held | None
    ends: bool
    definition: str
    hash: str
    version: int
    active_time: datetime | None
    trigger_hash: str | None
    text_hash: str | None

    @property
    def is_live(self) -> bool:
        """Whether it is neither to go nor replaced."""
        return self.state != "dropped" and not self.ends


class Load(NamedTuple):
    """The changes and tasks of a subscription, counted."""

    taken: int
    """How many changes or events were made into tasks so far."""
    waiting: int
    """How many wait in the log."""
    lag: float | None
    """Seconds for which the oldest of these has waited."""
    halted: int
    """Lanes that stand still since a task failed."""
    behind: int
    """How many of those that wait do so behind these lanes."""
    ready: int
    running: int
    held: int
    """Tasks that wait for their turn behind another one."""
    failed: int


class Backlog(NamedTuple):
    """The backlog of a subscription, as far as that can be seen without counting it."""

    halted: int
    """Lanes that stand still since a task failed; :data:`MANY` and one more stands for all above."""
    behind: bool
    """Whether something waits behind these lanes."""
    lag: float | None
    """Seconds for which the oldest change or event has waited; None: none waits.

    That of 500 lanes, where more have something that waits.
    """
    goes_on: bool
    """Whether one waits in a lane that does not stand still."""


class Unhandled(NamedTuple):
    """An event that was raised without a handler, and is kept for one to come."""

    event: str
    since: datetime
    """When the first of those that are kept was raised."""
    lag: float
    """The seconds since then."""
    raised: int
    """How many of them are kept; 0: they were not counted."""


def names(session: Session, numbers: Collection[int]) -> dict[int, str]:
    """The names of the tasks of subscriptions, by the numbers of these."""
    some = ",".join(str(int(number)) for number in numbers)
    return dict(session.read("subscriptions_by_id", more=f" ID IN ({some})")) if some else {}


def read(session: Session) -> list[Row]:
    """All subscriptions, in the order in which they were made."""
    return [
        row._replace(ends=bool(row.ends), active_time=as_utc(row.active_time))
        for row in map(Row._make, session.read("subscriptions"))
    ]


def live(session: Session) -> list[Row]:
    """The subscriptions that are neither to go nor replaced."""
    return [row for row in read(session) if row.is_live]


def subscribe(
    transaction: Transaction,
    definition: Feed,
    source: str,
    former: int | None = None,
    succeeds: int | None = None,
    *,
    as_worker: bool = False,
) -> int:
    """Writes a new subscription, or a new version of *former*. Returns its id.

    *source* is the real name of the table. One that it *succeeds* ends when what it has is done. *as_worker*: the
    handler of an event or a poll, which a worker may write.
    """
    given = former, succeeds, definition.source.kind, definition.app, definition.name, source, *definition.values
    try:
        if as_worker:
            return int(transaction.value("FBTASKS_SOURCES.HANDLE", *given))
        return int(transaction.value("FBTASKS_SOURCES_OWNER.SUBSCRIBE", *given))
    except DuplicateKey as error:  # another process says something of the queue for the first time, too
        raise ConflictError(str(error)) from error


def erase(session: Session, subscription: int) -> bool:
    """Deletes what a dropped subscription has, in batches. Returns whether nothing remains."""
    while True:
        found = session.call("FBTASKS_SOURCES_OWNER.ERASE_SUBSCRIPTION", subscription, BATCH)
        if found is None:
            return True
        erased, remains = found
        if not erased:
            return not remains


def is_done(session: Session, subscription: int) -> bool:
    """Returns whether nothing waits or runs for a subscription."""
    return not session.read("subscription_busy", *[subscription] * 4)[0][0]


def loads(session: Session) -> dict[int, Load]:
    """Counts the changes and tasks of each subscription. Returns the counts by the ids."""
    return {number: Load(*rest) for number, *rest in session.read("subscription_loads")}


def backlogs(session: Session) -> dict[int, Backlog]:
    """Returns the backlogs of subscriptions to changes or events, by their ids. The cost does not grow with them."""
    return {number: Backlog(*rest) for number, *rest in session.read("subscription_backlogs")}


def waiting(session: Session, most: int) -> dict[int, int]:
    """Returns how many changes or events wait for each subscription, by its id, counted up to *most*."""
    return dict(session.read("subscription_waiting", most))


class Halted(NamedTuple):
    """A lane that stands still."""

    task: int
    """The task that failed."""
    since: datetime | None
    """None: that task is no longer there."""
    waiting: int
    """How many changes or events wait behind it."""


def halted(session: Session, subscription: int, most: int, counted: int) -> list[Halted]:
    """Returns up to *most* lanes that stand still; what waits behind each is counted up to *counted*, or a bit more."""
    found = session.read("subscription_halted", counted, counted, most, subscription)
    return [Halted(task, as_utc(since), waiting) for task, since, waiting in found]


def unhandled_events(session: Session, *, counted: bool = False) -> list[Unhandled]:
    """Returns the events that are kept and for which there is no subscription; *counted*: how many of each."""
    found = session.read("unhandled_events", counted)
    return sorted(Unhandled(event, as_utc(since), *rest) for event, since, *rest in found)


def prune_events(transaction: Transaction) -> int:
    """Gives some of the kept events to handlers that are there by now, and forgets some that found none within a day.

    Returns how many; where that is :data:`EVENTS`, there may be more.
    """
    return int(transaction.call("FBTASKS_SOURCES_UPKEEP.PRUNE_EVENTS", KEPT // timedelta(milliseconds=1), EVENTS))
