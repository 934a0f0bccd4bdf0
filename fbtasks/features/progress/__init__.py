"""Progress that a task reports while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Duty, Every, Feature, Told, Worker

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import TaskRow


class Progress(Feature):
    """Progress: what a task says of itself while it runs."""

    name = "progress"
    schema = Path(__file__).with_name("schema")

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Writes what tasks say, and forgets it."""
        from fbtasks.features.progress.duty import ProgressNotes, prune

        yield ProgressNotes(worker.turn)
        yield Every("forgetting the progress of tasks that have ended", 60.0, prune, at_start=False)

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns what a task that runs has said last: a word, and what there is to say."""
        from fbtasks.features.progress.store import describe

        return Told(facts={"progress": describe(session, task)})

    def sheets(self) -> Sequence[Sheet]:
        """Returns what tells of a task how far it has come."""
        from fbtasks.features.progress.sheets import ProgressSheet

        return [ProgressSheet()]
