"""A dashboard: what the queue holds and has done, for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fbtasks.feature import Duty, Every, Feature, Worker


class Web(Feature):
    """A dashboard, and what workers write down for it."""

    name = "web"
    schema = Path(__file__).with_name("schema")

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Writes down what becomes of tasks, unless the app has that off, and forgets what is old."""
        from fbtasks.features.web.duty import LOOK, SELDOM, UPKEEP, Depths, Statistics, Upkeep

        is_on = self.app.settings.statistics
        if is_on:
            yield Statistics(worker)
            yield Every("counting what waits", LOOK, Depths(), at_start=False)
        yield Every("joining and forgetting counters", UPKEEP if is_on else SELDOM, Upkeep(), at_start=False)
