"""The queues that apps have defined, as the database has them: limits, places, and when they are open."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from fbtasks.database.values import as_utc
from fbtasks.features.queues.definition import describe_window
from fbtasks.firebird.session import Session
from fbtasks.queue.results import QueueRow
from fbtasks.system.showing import span


class Policy(NamedTuple):
    """What the database is told of a queue, and how that stands at one moment."""

    queue: str
    max_length: int | None
    when_full: str | None
    windowed: bool
    definition: str | None
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
        """Whether its tasks may begin now, unless it is paused."""
        return not self.windowed or (self.opens is not None and self.opens <= self.now)


def policies(session: Session) -> list[Policy]:
    """Returns all queues that an app has defined."""
    return [
        row._replace(
            windowed=bool(row.windowed), now=as_utc(row.now), free=row.free or 0, owed=row.owed or 0,
            unfinished=row.unfinished or 0, shifts_until=as_utc(row.shifts_until), opens=as_utc(row.opens),
        )
        for row in map(Policy._make, session.read("policies"))
    ]  # fmt: skip


def describe(session: Session, rows: dict[str, QueueRow]) -> None:
    """Puts what is told of queues into *rows*, and adds those of which something is told and that have no row."""
    told = {each.queue: each for each in policies(session)}
    for queue in {*rows, *told}:
        row, it = rows.get(queue) or QueueRow(queue=queue), told.get(queue)
        found = json.loads((it and it.definition) or "{}")
        age = found.get("age")
        window = describe_window(found) if it is not None and it.windowed else None
        facts = {"when_full": it and it.when_full, "window": window, "age": age}
        shown = {"WINDOW": window, "AGE": None if age is None else span(age)}
        rows[queue] = replace(
            row,
            max_length=it and it.max_length,
            is_open=it is None or it.is_open,
            opens=it and it.opens,
            facts={**row.facts, **facts},
            shown={**row.shown, **{title: text for title, text in shown.items() if text is not None}},
        )
