"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fbtasks.database import guests
from fbtasks.errors import ConfigurationError
from fbtasks.feature import Duty, Every, Feature, Worker
from fbtasks.features.sources.definition import SILENT_RULE, may_be_silent
from fbtasks.features.sources.feeds import Feed
from fbtasks.features.sources.store.silence import silence
from fbtasks.features.sources.task import FedTask
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.system import checks
from fbtasks.tasks.call import Finished, Stale
from fbtasks.tasks.options import task_name


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ADOPTED", "FEED", "LINE", "LOOK", "NEXT_OWNER", "OWNER", "WAITS_SINCE"})

    def feeds(self) -> list[Feed]:
        """The tasks that a source feeds, as they are deployed."""
        settings, tasks = self.app.settings, self.app.tasks.values()
        return [
            Feed(task.name, task.options.queue or settings.default_queue, task.options.priority, task.subscription)
            for task in tasks
            if isinstance(task, FedTask) and task.subscription is not None
        ]

    def before_finish(self, transaction: Transaction, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes what is left of runs."""
        from fbtasks.features.sources.store import rests  # what only calls tasks does not pay for it

        return rests.put(transaction, slot, items)

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
        from fbtasks.features.sources.duty import Polling, forget_events
        from fbtasks.features.sources.undeployed import Undeployed

        if polling := Polling(self.app, worker):
            yield polling
        yield Every("forgetting events, or handing them on", 600.0, forget_events, feeds=True)
        yield Undeployed(self.app, worker)
