"""Periodic tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.errors import TaskDefinitionError
from fbtasks.feature import Asked, Deployed, Duty, Feature, Problem, Worker
from fbtasks.features.schedules import periodic
from fbtasks.features.schedules.definition import Schedule, ScheduleOptions
from fbtasks.system import checks
from fbtasks.tasks.declare import refuse_unknown
from fbtasks.tasks.definition import Task

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session
    from fbtasks.sheet import Sheet


class Schedules(Feature):
    """Periodic tasks."""

    name = "schedules"
    schema = Path(__file__).with_name("schema")

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        super().bind(app)
        self.definitions: dict[str, Schedule] = {}
        """The app's schedules, by their names."""

    def decorator(self, unnamed: Sequence[Any], options: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Returns the decorator ``@app.periodic(**options)``."""
        if unnamed:
            raise TaskDefinitionError(
                f"app.periodic was given {checks.shown(unnamed[0])}. It must be said when the task is called, by name: "
                "@app.periodic(cron='*/5 * * * *') or @app.periodic(every=timedelta(hours=1))."
            )
        return periodic.decorator(self, options)

    def add(self, task: Task[..., Any] | str, options: Mapping[str, Any]) -> Schedule:
        """Makes a schedule of *task*, or of the task of that name."""
        refuse_unknown("option of a schedule", options, ScheduleOptions)
        if not isinstance(task, Task | str):
            raise TaskDefinitionError(f"{checks.shown(task)} is not a task: add_periodic() takes a task, or its name.")
        if isinstance(task, str):
            known = self.app.known_task(task)
            return self.schedule(task if known is None else known, ScheduleOptions(**options))
        return self.schedule(self.app.register(task), ScheduleOptions(**options))

    def schedule(self, task: Task[..., Any] | str, options: ScheduleOptions) -> Schedule:
        """Makes a schedule of *task* one of the app's. Raises :class:`TaskDefinitionError` when its name is taken."""
        schedule = periodic.make_schedule(task, options, self.app)
        other = self.definitions.setdefault(schedule.name, schedule)
        if other.hash != schedule.hash:
            raise TaskDefinitionError(
                f"two schedules are named {schedule.name!r}, one of {other.call.name!r} and one of "
                f"{schedule.call.name!r}. Give one of them a name= of its own."
            )
        return schedule

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Ticks schedules."""
        from fbtasks.features.schedules.duty import Ticks

        yield Ticks(worker.events_arrive)

    def deploy(self, session: Session) -> Deployed:
        """Brings in the schedules of the app."""
        from fbtasks.features.schedules.upkeep import sync_schedules

        changed = sync_schedules(session, self.app, self.definitions)
        return Deployed(changed, [f"Schedule {each}." for each in changed])

    def sheets(self) -> Sequence[Sheet]:
        """Returns the list of schedules."""
        from fbtasks.features.schedules.sheets import ScheduleSheet

        return [ScheduleSheet()]

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns which schedules stand still, or tick too late."""
        from fbtasks.features.schedules.operations import find_problems

        return find_problems(session)
