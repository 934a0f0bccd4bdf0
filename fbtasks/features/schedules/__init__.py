"""Periodic tasks."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.feature import Duty, Feature, Worker


class Schedules(Feature):
    """Periodic tasks."""

    name = "schedules"

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Has schedules tick."""
        from fbtasks.features.schedules.duty import Ticks

        yield Ticks(worker.events_arrive)
