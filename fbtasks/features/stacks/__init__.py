"""The stacks of running tasks, on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Duty, Feature, Worker

if TYPE_CHECKING:
    from fbtasks.sheet import Sheet


class Stacks(Feature):
    """Stacks: where a running task is, on request."""

    name = "stacks"
    schema = Path(__file__).with_name("schema")

    def sheets(self) -> Sequence[Sheet]:
        """Returns what dashboards show of a running task."""
        from fbtasks.features.stacks.sheets import StackSheet

        return [StackSheet(self.app)]

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Answers those who ask."""
        from fbtasks.features.stacks.duty import Answers

        yield Answers(worker)
