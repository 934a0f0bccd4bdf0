"""Schedules in dashboards: when each ticks, in words too, its next ticks, and the tasks that it has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fbtasks.errors import ConfigurationError
from fbtasks.features.schedules import operations as service
from fbtasks.features.schedules import store as schedules
from fbtasks.features.schedules.operations import ScheduleRow
from fbtasks.features.schedules.ticking import coming, in_words
from fbtasks.queue import results
from fbtasks.sheet import (
    Act,
    Called,
    Detail,
    Field,
    Line,
    Private,
    Ref,
    Sheet,
    Spark,
    TaskRef,
    behind,
    given,
    needed,
    task_cells,
)
from fbtasks.system.checks import json_argument

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session

_TICKS: Final = 5
"""Next ticks that are shown."""


def _run(app: FBTasks, key: str, _: Mapping[str, str]) -> str:
    return f"{key}: enqueued task {service.run(app.database, [key])[key]}."


def _each(change: Callable[..., list[str]], done: str, otherwise: str, app: FBTasks, key: str, _: object) -> str:
    return f"{key}: {done if change(app.database, [key]) else otherwise}."


def _set_cron(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    return _said(service.change(app.database, key, cron=needed(values, "cron"), tz=given(values, "tz")))


def _set_every(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    return _said(service.change(app.database, key, every=service.seconds("every", needed(values, "every"))))


def _set_call(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    args, kwargs = given(values, "args"), given(values, "kwargs")
    if args is kwargs is None:
        raise ConfigurationError("args and kwargs are empty: fill in one of them.")
    service.change(
        app.database,
        key,
        args=None if args is None else json_argument(args, [], "args"),
        kwargs=None if kwargs is None else json_argument(kwargs, {}, "kwargs"),
    )
    return f"{key}: its arguments are set."


def _reset(app: FBTasks, key: str, _: Mapping[str, str]) -> str:
    return _said(service.reset(app.database, key))


def _said(row: ScheduleRow) -> str:
    return f"{row.name}: {row.when}."


class ScheduleSheet(Sheet):
    """Schedules of all apps, by their names."""

    name = "schedules"
    title = "Schedules"
    empty = "There are no schedules: no worker of an app with periodic tasks has started yet."
    actions: Mapping[str, Act] = {
        "run": Act(label="Run now", do=_run),
        "pause": Act(label="Pause", do=partial(_each, service.pause, "paused", "paused already")),
        "resume": Act(label="Resume", do=partial(_each, service.resume, "resumed", "neither paused nor failed")),
        "set-cron": Act(
            label="Set a cron expression",
            do=_set_cron,
            fields=[
                Field(name="cron", label="Minute, hour, day of the month, month, day of the week; or @daily"),
                Field(name="tz", label="Time zone"),
            ],
        ),
        "set-every": Act(
            label="Set an interval",
            do=_set_every,
            fields=[Field(name="every", label="Seconds, or such as 15m, 2h, 1d")],
        ),
        "set-call": Act(
            label="Set the arguments",
            do=_set_call,
            fields=[
                Field(name="args", label="Positional arguments, a JSON list (empty: as they are)", kind="args"),
                Field(name="kwargs", label="Keyword arguments, a JSON object (empty: as they are)", kind="kwargs"),
            ],
        ),
        "reset": Act(label="Reset", do=_reset, ask="Let {key} go by what the code says again?"),
        "remove": Act(
            label="Remove",
            do=partial(_each, service.remove, "gone", "not there"),
            ask="Delete the schedule {key}? What it has enqueued stays. An app that still defines it makes it anew.",
        ),
    }

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the schedules."""
        rows = {row.name: row for row in schedules.read(session)}
        names = behind(sorted(rows), after, most)
        sparks = schedules.sparks(session, names[0], names[-1]) if names else {}
        return [_line(service.show(rows[name]), sparks.get(rows[name].id)) for name in names]

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns when a schedule ticks next, what was set, and what became of the last tasks that it has made."""
        found = next((each for each in schedules.read(session) if each.name == key), None)
        if found is None:
            return None
        row = service.show(found)
        said = "an operator" if found.set_paused else "its app"
        facts = {
            "In words": row.when if row.cron is None else f"{in_words(row.cron)} ({row.tz})",
            "Queue": row.queue,
            "Priority": row.priority,
            "Missed ticks": row.missed,
            "Set by operators": row.set or None,
            "Paused by": said if row.state == "paused" else None,
            "Error": Private(row.error),
        }
        moments = [] if row.next is None else coming(found.timing, row.next, _TICKS)
        ticks = [{"Tick": tick, "On its clock": f"{tick:%a %Y-%m-%d %H:%M:%S %Z}"} for tick in moments]
        runs = [_run_of(session, task) for task in found.tasks]
        spark = schedules.sparks(session, key, key).get(found.id)
        return Detail(line=_line(row, spark), facts=facts, tables={"Next ticks": ticks, "Last runs": runs})

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns the schedule that has made a task, if it is one of its last."""
        names = [name for (name,) in session.read("schedule_of_task", f"{task:019d};")]
        return {"Schedule": Ref(self.name, names[0], names[0])} if names else {}


def _line(row: ScheduleRow, spark: Spark | None) -> Line:
    wrong: dict[str, str | Private] = {
        "failed": Private(row.error, "it stands still"),
        "orphaned": "its app defines it no longer",
    }
    can = {
        "run": True,
        "pause": row.state != "paused",
        "resume": row.state in ("paused", "failed"),
        "set-cron": True,
        "set-every": True,
        "set-call": True,
        "reset": bool({*row.set} - {"paused"}),
        "remove": True,
    }
    return Line(
        key=row.name,
        cells={
            "Schedule": Ref("schedules", row.name, row.name),
            "When": row.when,
            "State": row.state,
            "Next": row.next,
            "Last": row.last,
            "Runs": spark,
            "Call": Called(row.task, row.args, row.kwargs),
            "App": row.app,
        },
        wrong=wrong.get(row.state, ""),
        actions=[name for name, possible in can.items() if possible],
        values={
            "cron": row.cron or "",
            "tz": row.tz or "",
            "every": "" if row.every is None else f"{row.every:g}",
        },
    )


def _run_of(session: Session, task: int) -> dict[str, object]:
    row = results.find(session, task)
    if row is None:
        return {"Task": TaskRef(task), "State": "no longer kept"}
    return {
        **task_cells(row.id, row.name, row.state, row.finish_time or row.claim_time or row.start_time),
        "Error": Private(row.error_msg, row.error_type or ""),
    }
