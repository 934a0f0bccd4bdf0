"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fbtasks.feature import Feature

if TYPE_CHECKING:
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
