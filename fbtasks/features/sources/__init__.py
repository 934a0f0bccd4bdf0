"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.database import guests
from fbtasks.errors import ConfigurationError
from fbtasks.feature import Asked, Deployed, Duty, Every, Feature, Problem, Told, Worker
from fbtasks.features.sources.definition import SILENT_RULE, may_be_silent
from fbtasks.features.sources.feeds import Feed
from fbtasks.features.sources.store import raising
from fbtasks.features.sources.store.silence import silence
from fbtasks.features.sources.subscription import Source
from fbtasks.features.sources.task import FedTask, define_fed
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.system import checks
from fbtasks.tasks.call import Finished, Stale
from fbtasks.tasks.options import task_name

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import TaskRow


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"
    brings_in = "subscriptions"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ADOPTED", "FEED", "LINE", "LOOK", "NEXT_OWNER", "OWNER", "WAITS_SINCE"})

    def feeds(self) -> list[Feed]:
        """The tasks that a source feeds, as they are deployed."""
        app, found = self.app, []
        for task in app.tasks.values():
            if isinstance(task, FedTask) and task.subscription is not None:
                queue = task.options.queue or app.settings.default_queue
                found.append(Feed(app.name, task.name, queue, task.options.priority, task.subscription))
        return found

    def before_finish(self, transaction: Transaction, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes what is left of runs."""
        from fbtasks.features.sources.store import rests  # what only calls tasks does not pay for it

        return rests.put(transaction, slot, items)

    def define(self, source: type[Source], what: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
        """The decorator of a task that *source* feeds, with the options of ``app.on_change`` or its like."""
        return define_fed(self.app, source, what, options)

    def raise_event(self, event: str, data: Any, **options: Any) -> None:
        """Raises an event for all of its handlers: see ``app.raise_event``."""
        raising.raise_event(self.app, event, data, **options)

    def silence(self, connection: Any, names: Sequence[str]) -> None:
        """Silences the open transaction of *connection*, for the tasks *names*, or without any for all."""
        for name in names:
            if not may_be_silent(task_name("name", name)):
                raise ConfigurationError(
                    f"{checks.shown(name)} is not the name of one task: {SILENT_RULE} Give each name by itself, or "
                    "none to silence all."
                )
            meant = [known for known in self.app.tasks if known.endswith(f".{name}")]
            if meant and name not in self.app.tasks:
                raise ConfigurationError(f"no task is named {checks.shown(name)}. Did you mean {meant[0]!r}?")
        refuse_fork()
        silence(guests.transaction(connection, self.app.database), names)

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Polls tables, hands on events, and looks whether all is deployed."""
        from fbtasks.features.sources.deployment import Deployment
        from fbtasks.features.sources.duty import Polling, forget_events

        if polling := Polling(self.app, worker):
            yield polling
        yield Every("forgetting events, or handing them on", 600.0, forget_events, feeds=True)
        yield Deployment(self.app, worker)

    def begin(self, session: Session) -> Iterable[str]:
        """Leaves that to a duty, which goes on to say what is not deployed."""
        return ()

    def deploy(self, session: Session) -> Deployed:
        """Brings triggers, handlers of events and polls in line with the code of the app."""
        from fbtasks.features.sources import managing
        from fbtasks.features.sources.showing import steps

        done = managing.bring_in_line(session, self.app.name, self.feeds())
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

    def sheets(self) -> Sequence[Sheet]:
        """Returns the list of subscriptions."""
        from fbtasks.features.sources.sheets import SourceSheet

        return [SourceSheet(self.feeds)]

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns what is wrong with subscriptions and polls, and which events have no handler."""
        from fbtasks.features.sources.operations import find_problems

        return find_problems(session, asked, self.feeds())
