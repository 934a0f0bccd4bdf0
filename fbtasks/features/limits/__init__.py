"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fbtasks.feature import Duty, Every, Feature, Worker

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.tasks.call import Claim, Outcome
    from fbtasks.tasks.definition import Task


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"

    def receives(self, task: Task[..., Any]) -> bool:
        """Whether it has limits."""
        return task.gates is not None

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Puts it before its limits, when it was enqueued without them."""
        from fbtasks.features.limits.gating import gated

        return gated(self.app, session, claim)

    def duties(self, worker: Worker) -> Iterable[Duty]:  # noqa: ARG002
        """Forgets what nothing needs."""
        from fbtasks.features.limits.duty import Leftovers

        yield Every("looking for limits that nothing needs any more", 600.0, Leftovers().turn)
