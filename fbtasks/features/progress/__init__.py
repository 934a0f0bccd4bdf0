"""Progress: what a task says of itself while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fbtasks.feature import Duty, Every, Feature, Worker


class Progress(Feature):
    """Progress: what a task says of itself while it runs."""

    name = "progress"
    schema = Path(__file__).with_name("schema")

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Writes what tasks say, and forgets it."""
        from fbtasks.features.progress.duty import ProgressNotes, prune

        yield ProgressNotes(worker.turn)
        yield Every("forgetting the progress of tasks that have ended", 60.0, prune)
