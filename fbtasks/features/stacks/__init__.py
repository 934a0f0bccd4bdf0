"""The stacks of running tasks, on request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fbtasks.feature import Duty, Feature, Worker


class Stacks(Feature):
    """Stacks: where a running task is, on request."""

    name = "stacks"
    schema = Path(__file__).with_name("schema")

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Answers those who ask."""
        from fbtasks.features.stacks.duty import Answers

        yield Answers(worker)
