"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fbtasks.feature import Feature

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session, Transaction
    from fbtasks.tasks.call import Claim, Outcome


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Gives it the results of the tasks that it follows."""
        from fbtasks.features.workflows.store import with_inputs

        return with_inputs(session, claim) if claim.fed else claim

    def failed_with(self, transaction: Transaction, task: int) -> Collection[int | None]:
        """Those that follow it."""
        from fbtasks.features.workflows import store

        return store.failed_with(transaction, task)
