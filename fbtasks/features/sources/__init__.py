"""Sources of work in the database: changes of tables, events, and polled tables."""

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


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"
    brings_in = "subscriptions"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ADOPTED", "FEED", "LINE", "LOOK", "NEXT_OWNER", "OWNER", "WAITS_SINCE"})

    def deploy(self, session: Session) -> Deployed:
        """Brings triggers, handlers of events and polls in line with the code of the app."""
        from fbtasks.features.sources import managing
        from fbtasks.features.sources.showing import steps

        done = managing.bring_in_line(session, self.app.name, self.app.feeds())
        managing.hand_on_events(session)
        return Deployed(done.changes, steps(done.changes, done=True), problems=done.problems)

    # For operators, whose modules no other process imports.

    def hold_names(self, session: Session, holds: Collection[Hold]) -> Mapping[Hold, str]:
        """Returns what lanes are called."""
        from fbtasks.features.sources.store.subscriptions import names

        lanes = [hold for hold in holds if hold.stage < 0]
        found = names(session, {hold.owner for hold in lanes})
        gone = "a lane whose subscription is gone"
        return {hold: f"lane of {found[hold.owner]}" if hold.owner in found else gone for hold in lanes}

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns which tasks a held one has before it in its lane."""
        from fbtasks.features.sources.operations import describe

        return describe(session, task.id, holds[0]) if holds and holds[0].stage < 0 else Told()

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns what is wrong with subscriptions and polls, and which events have no handler."""
        from fbtasks.features.sources.operations import find_problems

        return find_problems(session, asked)
