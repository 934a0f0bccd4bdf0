"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fbtasks.feature import Duty, Every, Feature, Worker

if TYPE_CHECKING:
    from fbtasks.firebird.session import Transaction
    from fbtasks.tasks.call import Finished, Stale
    from fbtasks.tasks.definition import Task


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"

    def declare(self, task: Task[..., Any]) -> bool:
        """Has a task that a source feeds called for what that brings."""
        if task.subscription is not None:
            from fbtasks.features.sources.run import FedInvocation

            task.invocation = FedInvocation(task, task.subscription)
        return False

    def before_finish(self, transaction: Transaction, slot: int, items: Sequence[Finished]) -> list[Stale]:
        """Writes what is left of runs."""
        from fbtasks.features.sources.store import rests

        return rests.put(transaction, slot, items)

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Polls tables, hands on events, and looks whether all is deployed."""
        from fbtasks.features.sources.duty import Polling, forget_events
        from fbtasks.features.sources.undeployed import Undeployed

        if polling := Polling(self.app, worker):
            yield polling
        yield Every("forgetting events, or handing them on", 600.0, forget_events, feeds=True)
        yield Undeployed(self.app, worker)
