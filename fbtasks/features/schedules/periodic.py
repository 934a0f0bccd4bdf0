"""``app.periodic`` and ``app.add_periodic``: schedules made of options and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fbtasks.errors import FBTasksError, TaskDefinitionError
from fbtasks.features.schedules.definition import Schedule, ScheduleOptions
from fbtasks.features.schedules.ticking import every_ms
from fbtasks.system import checks
from fbtasks.tasks.call import Call
from fbtasks.tasks.declare import options_of, refuse_unknown
from fbtasks.tasks.definition import Task
from fbtasks.tasks.options import task_name

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.features.schedules import Schedules

P = ParamSpec("P")
R = TypeVar("R")
_WINDOW = ("run_between", "days")


def decorator(schedules: Schedules, options: Mapping[str, Any]) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Returns the decorator of ``app.periodic(**options)``, for a task or for a function, which becomes one.

    Raises :class:`TaskDefinitionError` and :class:`ConfigurationError` for options that cannot be.
    """
    app = schedules.app
    refuse_unknown("option of periodic", options, ScheduleOptions, app.task_options, words="task option")
    own = {name: value for name, value in options.items() if name in options_of(ScheduleOptions)}
    rest = {name: value for name, value in options.items() if name not in own}
    if "tz" in own and any(name in rest for name in _WINDOW):  # it is the zone of both
        rest["tz"] = own["tz"]
        if own.get("cron") is None:
            del own["tz"]
    checked = ScheduleOptions(**own)

    def decorate(target: Callable[P, R]) -> Task[P, R]:
        task: Task[P, R]
        if isinstance(target, Task):
            if rest:
                raise TaskDefinitionError(
                    f"{', '.join(sorted(rest))} must be given to the task {target.name!r} itself: to @app.task, below "
                    "@app.periodic."
                )
            app.register(target)
            task = target
        else:
            of_task = {name: own[name] for name in ("queue", "priority") if own.get(name) is not None}
            task = app.task(target, **rest, **of_task)
        schedules.schedule(task, checked)
        return task

    return decorate


def make_schedule(task: Task[..., Any] | str, options: ScheduleOptions, app: FBTasks) -> Schedule:
    """Returns the schedule that *options* make of *task*, or of one that this app does not have.

    Raises :class:`TaskDefinitionError` for arguments that the task does not take, or that cannot be in the queue.
    """
    name = options.name or (task.name if isinstance(task, Task) else task_name("name", task))
    try:
        call = _call(task, options, app)
    except FBTasksError as error:
        raise TaskDefinitionError(f"the schedule {checks.shown(name)}: {error}") from error
    return Schedule(
        name,
        options.cron,
        None if options.every is None else every_ms("every", options.every),
        None if options.cron is None else options.tz or app.settings.zone_name,
        options.missed,
        options.paused,
        call,
    )


def _call(task: Task[..., Any] | str, options: ScheduleOptions, app: FBTasks) -> Call:
    if isinstance(task, Task):
        return task.call(options.args, options.kwargs, queue=options.queue, priority=options.priority)
    return app.call_by_name(task, options.args, options.kwargs, queue=options.queue, priority=options.priority)
