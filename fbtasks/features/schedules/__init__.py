"""Periodic tasks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Asked, Deployed, Feature, Problem

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session


class Schedules(Feature):
    """Periodic tasks."""

    name = "schedules"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"NEXT_TICK"})

    def deploy(self, session: Session) -> Deployed:
        """Brings in the schedules of the app."""
        from fbtasks.features.schedules.upkeep import sync_schedules

        changed = sync_schedules(session, self.app.name, self.app.schedules)
        return Deployed(changed, [f"Schedule {each}." for each in changed])

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns which schedules stand still, or tick too late."""
        from fbtasks.features.schedules.operations import find_problems

        return find_problems(session)
