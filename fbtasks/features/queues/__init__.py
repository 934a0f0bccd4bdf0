"""Queues: how much they may hold, when their tasks may run, and how those age."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.feature import Duty, Every, Feature, Worker


class Queues(Feature):
    """Queues: how much they may hold, when their tasks may run, and how those age."""

    name = "queues"

    def duties(self, worker: Worker) -> Iterable[Duty]:  # noqa: ARG002
        """Keeps places and hours right."""
        from fbtasks.features.queues.duty import audit

        yield Every("looking after the places and the hours of queues", 60.0, audit)
