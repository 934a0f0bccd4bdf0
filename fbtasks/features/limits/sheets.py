"""Limits in dashboards: what each lets in, which tasks it has let in, which wait, and the keys that are closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fbtasks.features.limits import operations as service
from fbtasks.features.limits import store as admission
from fbtasks.features.limits.definition import QUEUE
from fbtasks.features.limits.store import Closed, Load, Passing, Row
from fbtasks.queue.results import Filter, listing
from fbtasks.sheet import (
    MOST,
    SHOWN,
    Act,
    Detail,
    Field,
    Line,
    Private,
    Ref,
    Sheet,
    TaskRef,
    behind,
    counted,
    given,
    needed,
    task_cells,
    whole_number,
)
from fbtasks.states import State

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session

_CLOSED: Final = 100
"""Closed keys of a limit, and tasks behind each, that are counted."""


def _set_at_once(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    needed(values, "at_once")
    return _said(service.change(app.database, key, at_once=whole_number(values, "at_once")))


def _set_rate(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    rate, burst = given(values, "rate"), whole_number(values, "burst")
    if burst is None:
        needed(values, "rate")
    return _said(service.change(app.database, key, rate=rate, burst=burst))


def _reset(app: FBTasks, key: str, _: Mapping[str, str]) -> str:
    return _said(service.reset(app.database, key))


def _said(row: service.LimitRow) -> str:
    return f"{row.name}: {service.lets_in(row)}."


def _resume(app: FBTasks, key: str, values: Mapping[str, str]) -> str:
    needed(values, "task")
    opened = service.resume(app.database, key, task=whole_number(values, "task"))
    return f"{key}: goes on behind task {', '.join(map(str, opened))}, which stays failed."


class LimitSheet(Sheet):
    """Limits of all apps, by their names; behind them those that no app defines."""

    name = "limits"
    title = "Limits"
    empty = "There are no limits: no worker of an app with limits has started yet, and no such task was called."
    actions: Mapping[str, Act] = {
        "set-at-once": Act(
            label="Set how many run",
            do=_set_at_once,
            fields=[Field(name="at_once", label="Tasks at once", kind="number")],
        ),
        "set-rate": Act(
            label="Set the rate",
            do=_set_rate,
            fields=[
                Field(name="rate", label="Rate, such as 10/s or 100/m"),
                Field(name="burst", label="Burst after a pause", kind="number"),
            ],
        ),
        "reset": Act(label="Reset", do=_reset, ask="Let {key} go by what the code says again?"),
        "resume": Act(
            label="Resume a key",
            do=_resume,
            ask="Go on with the key of {key} that this task has closed? The task stays failed.",
            fields=[Field(name="task", label="The failed task", kind="number")],
        ),
    }

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the limits."""
        loads, closed = admission.loads(session, MOST + 1), admission.closed(session, _CLOSED + 1)
        limits = _limits(session, loads)
        return [_line(key, *limits[key], loads, closed) for key in behind([*limits], after, most)]

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns what a limit has let in, what waits for it, and its closed keys."""
        loads, closed = admission.loads(session, MOST + 1), admission.closed(session, _CLOSED + 1)
        number, row = _limits(session, loads).get(key, (None, None))
        if number is None:
            return None
        said = service.says(admission.said_twice(session).get(number))
        facts = {f"The app {app} says": words for app, words in said.items()}
        if row is not None and row.name.startswith(QUEUE):
            queue = row.name.removeprefix(QUEUE)
            inside, waiting = (_of_queue(session, state, queue) for state in (State.RUNNING, State.READY))
        else:
            found = admission.passing(session, number, SHOWN)
            inside, waiting = ([_passing(each) for each in found if each.is_in == is_in] for is_in in (True, False))
        keys = [
            {
                "Failed task": TaskRef(each.task),
                "Key": _key(each.lane),
                "Failed": each.since,
                "Waiting": counted(each.waiting, _CLOSED),
            }
            for each in closed
            if each.limit == number
        ]
        tables: dict[str, Sequence[Mapping[str, object]]] = {
            "Closed keys": keys[:SHOWN],
            "Let in": inside,
            "Waiting, in order": waiting,
        }
        return Detail(line=_line(key, number, row, loads, closed), facts=facts, tables=tables)

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns the limits that a task passes."""
        found = [Ref(self.name, name, name) for (name,) in session.read("limits_of_task", task)]
        return {"Limits": found} if found else {}


def _limits(session: Session, loads: Mapping[int, Load]) -> dict[str, tuple[int, Row | None]]:
    """Returns the numbers and the rows of all limits, by their keys in the order of the list."""
    rows = admission.read(session)
    found: dict[str, tuple[int, Row | None]] = {row.name: (row.id, row) for row in rows}
    for number in service.undefined(rows, loads):
        found.setdefault(f"(not defined) {number}", (number, None))
    return found


def _line(key: str, number: int, row: Row | None, loads: Mapping[int, Load], closed: Sequence[Closed]) -> Line:
    load = loads.get(number, Load())
    found = service.show(row, load, closed)
    wrong = "tasks wait for it, and no app defines it" if row is None else ""
    if found.closed:
        wrong = f"a key is closed since task {found.closed[0].task} failed"
    can = {
        "set-at-once": found.kind in ("at_once", "queue"),
        "set-rate": found.kind in ("rate", "queue"),
        "reset": bool(found.set),
        "resume": bool(found.closed),
    }
    return Line(
        key=key,
        cells={
            "Limit": Ref("limits", key, key),
            "Lets in": None if row is None else service.lets_in(found),
            "App": found.app,
            "State": found.state,
            "In": counted(load.inside, MOST, more=load.partly),
            "Waiting": counted(load.waiting, MOST, more=load.partly),
            "Keys": counted(load.keys, MOST, more=load.partly),
            "Closed keys": counted(len(found.closed), _CLOSED) or None,
        },
        wrong=wrong,
        actions=[name for name, possible in can.items() if possible],
        values={
            "at_once": str(found.at_once or ""),
            "rate": found.rate or "",
            "burst": str(found.burst or ""),
            "task": str(found.closed[0].task) if found.closed else "",
        },
    )


def _key(lane: int) -> Private:
    """Returns what stands for a key, of which the database has a hash; empty: the limit counts all calls."""
    return Private(f"{lane:016x}" if lane else "")


def _passing(each: Passing) -> dict[str, object]:
    return {**task_cells(each.id, each.name, each.state, each.since), "Key": _key(each.lane)}


def _of_queue(session: Session, state: State, queue: str) -> list[dict[str, object]]:
    found = listing(session, state, Filter(queue=queue, limit=SHOWN))
    return [task_cells(each.id, each.name, state, each.claim_time or each.raise_time) for each in found]
