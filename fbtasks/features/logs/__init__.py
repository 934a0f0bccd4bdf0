"""What tasks log while they run, kept with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.errors import TaskDefinitionError
from fbtasks.feature import Duty, Every, Feature, Told, Worker
from fbtasks.features.logs.options import LoggedTask, keeps_logs

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import TaskRow
    from fbtasks.tasks.definition import Task


class Logs(Feature):
    """Logs: what tasks log while they run, kept with them."""

    name = "logs"
    schema = Path(__file__).with_name("schema")
    options = LoggedTask
    fed_options = LoggedTask

    def declare(self, task: Task[..., Any]) -> bool:
        """Checks that the lines of *task* are of one call at a time."""
        if task.options.batching is not None and getattr(task.options, "keep_logs", None):
            raise TaskDefinitionError(
                f"the task {task.name!r} has keep_logs=True and batch=: a batch is one run of several calls, whose "
                "lines cannot be told apart. Leave out one."
            )
        return False

    def runs(self) -> None:
        """Gathers what is logged, where the app has tasks that keep their log."""
        kept = [task for task in self.app.tasks.values() if keeps_logs(task)]
        if kept:
            from fbtasks.features.logs.gathering import gather, gather_still

            gather()
            for task in kept:
                if gather_still not in (begins := task.hooks["before_start"]):
                    task.hooks = {**task.hooks, "before_start": (gather_still, *begins)}

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Writes what tasks log, and forgets it."""
        from fbtasks.features.logs.duty import Forgetting, LogWriter

        yield LogWriter(worker.turn)
        forgetting = Forgetting(self.app.settings.result_expires)
        yield Every("forgetting what tasks have logged", 3600.0, forgetting.turn, at_start=False)

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns how many lines are kept of a task."""
        from fbtasks.features.logs.operations import describe

        return Told(facts={"logs": describe(session, task.id)})

    def sheets(self) -> Sequence[Sheet]:
        """Returns the tasks of which lines are kept."""
        from fbtasks.features.logs.sheets import LogSheet

        return [LogSheet()]
