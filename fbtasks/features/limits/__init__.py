"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Asked, Deployed, Feature, Problem, Told

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.tasks.call import TaskRow


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ENQUEUING", "FEED", "FEED_BATCHES", "HAS_ROOM", "LINE", "OWNER", "ROOM", "TOOK"})

    def deploy(self, session: Session) -> Deployed:
        """Brings in what the app says of limits."""
        from fbtasks.features.limits.duty import sync_limits

        changed = sync_limits(session, self.app.name, self.app.limits.values())
        return Deployed(changed, [f"Limit {each}." for each in changed])

    # For operators, whose modules no other process imports.

    def hold_names(self, session: Session, holds: Collection[Hold]) -> Mapping[Hold, str]:
        """Returns the names of limits."""
        from fbtasks.features.limits import store

        found = [hold for hold in holds if hold.stage >= 0]
        names = store.names(session, {hold.owner for hold in found})
        return {hold: names.get(hold.owner, "a limit that no app defines") for hold in found}

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns what shuts the limit that a held task waits for, and that of its queue."""
        from fbtasks.features.limits.operations import describe

        return describe(session, holds, queue)

    def describe_queues(self, session: Session, rows: dict[str, QueueRow]) -> None:
        """Puts what their limits let in into *rows*."""
        from fbtasks.features.limits.operations import describe_queues

        describe_queues(session, rows)

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns the keys that are closed, and that tasks wait for limits that are not defined."""
        from fbtasks.features.limits.operations import find_problems

        return find_problems(session)
