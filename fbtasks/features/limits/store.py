"""Limits as the database has them: defined by apps, found by those who enqueue, changed by operators."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

from fbtasks.database.values import as_utc
from fbtasks.features.limits.definition import LimitDefinition
from fbtasks.firebird.session import Session, Transaction
from fbtasks.states import State
from fbtasks.tasks.call import Owner


def find(session: Session, name: str) -> tuple[Owner, str] | None:
    """Returns a limit, and what tells its definition from others; None: no app has said anything of it."""
    for number, stage, digest in session.read("FBTASKS_LIMITS_API.FIND_LIMIT", name):
        return Owner(number, stage), digest
    return None


class Row(NamedTuple):
    """A limit as the database has it: as its app defines it, and as operators have set it."""

    id: int
    name: str
    app: str
    at_once: int | None
    period: int | None
    """Microseconds between two that begin."""
    burst: int | None
    set_at_once: int | None
    set_period: int | None
    set_burst: int | None
    in_order: bool
    stops: bool
    until: str | None
    batch: int | None
    wait_ms: int
    state: str

    @property
    def in_force(self) -> tuple[int | None, int | None, int | None]:
        """Tasks at once, microseconds between two that begin, and burst: as operators say, else as the code does."""
        return (
            self.at_once if self.set_at_once is None else self.set_at_once,
            self.period if self.set_period is None else self.set_period,
            self.burst if self.set_burst is None else self.set_burst,
        )


class Load(NamedTuple):
    """How many tasks a limit concerns."""

    inside: int = 0
    """Tasks that it has let in, and that have not given that back."""
    waiting: int = 0
    keys: int = 0
    partly: bool = False
    """Whether there are more, which were not counted."""


class Closed(NamedTuple):
    """A key that is closed since a task failed."""

    limit: int
    lane: int
    task: int
    since: datetime | None
    """None: that task is no longer there."""
    waiting: int


def read(reader: Session | Transaction) -> list[Row]:
    """Returns all limits that an app has defined, by their names."""
    read = reader.read if isinstance(reader, Session) else reader.rows
    found = (Row(*row) for row in read("limits"))
    rows = [row._replace(in_order=bool(row.in_order), stops=bool(row.stops)) for row in found]
    return sorted(rows, key=lambda row: row.name)


class SaidTwice(NamedTuple):
    """What apps say of a limit."""

    app: str
    """The one that has defined it last, which counts."""
    definition: LimitDefinition
    others: dict[str, LimitDefinition]
    """What others say of it, by their names."""


def said_twice(session: Session) -> dict[int, SaidTwice]:
    """Returns the limits of which several apps say something else, by their numbers."""
    return {
        number: SaidTwice(app, *LimitDefinition.read(text)) for number, app, text in session.read("limits_said_twice")
    }


def said_by_others(session: Session, app: str) -> dict[str, SaidTwice]:
    """Returns the limits of which apps other than *app* say something, by their names."""
    found = session.read("limits_of_others", app)
    return {name: SaidTwice(other, *LimitDefinition.read(text)) for name, other, text in found}


ALL: Final = 2**31 - 1
"""However many there are."""


def loads(session: Session, most: int = ALL) -> dict[int, Load]:
    """Returns how many tasks each limit concerns, defined or not, by its number: counted up to about *most* of each."""
    return {owner: Load(*found) for owner, *found in session.read("limit_loads", most)}


def closed(session: Session, most: int = ALL) -> list[Closed]:
    """Returns the keys that are closed since a task failed: up to *most* of a limit, and tasks behind each."""
    return [
        Closed(limit, lane, task, None if since is None else as_utc(since), waiting)
        for limit, lane, task, since, waiting in session.read("limit_closed", most, most)
    ]


class Passing(NamedTuple):
    """A task that a limit has let in, or that waits for it."""

    lane: int
    """The number of its key; 0: the limit counts all calls."""
    is_in: bool
    id: int
    name: str
    state: State
    since: datetime
    """When it was claimed, or enqueued."""


def passing(session: Session, limit: int, most: int) -> list[Passing]:
    """Returns the first *most* tasks that a limit has let in, and as many that wait for it: by keys, each in order."""
    return [
        Passing(lane, is_in, task, name, State(state), as_utc(since))
        for lane, is_in, task, name, state, since in session.read("limit_tasks", limit, most)
    ]


def names(session: Session, limits: Collection[int]) -> dict[int, str]:
    """Returns the names of limits by their numbers."""
    some = ",".join(str(int(number)) for number in limits)
    return dict(session.read("limits_by_id", more=f" ID IN ({some})")) if some else {}
