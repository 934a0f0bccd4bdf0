"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.feature import Duty, Every, Feature, Worker


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"

    def duties(self, worker: Worker) -> Iterable[Duty]:  # noqa: ARG002
        """Forgets what nothing needs."""
        from fbtasks.features.limits.duty import Leftovers

        yield Every("looking for limits that nothing needs any more", 600.0, Leftovers().turn)
