"""Why a task does not run, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final

from fbtasks.database.database import Database
from fbtasks.errors import StatementRefused
from fbtasks.feature import Told
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.holds import Hold, holds
from fbtasks.queue.operations.pausing import how_to_resume, paused_names
from fbtasks.queue.operations.queues import QueueRow, described
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.system.checks import did_you_mean
from fbtasks.system.showing import command_line, count, with_app
from fbtasks.tasks.call import TaskRow, WorkerRow

_TO_RUN: Final = (State.READY, State.HELD, State.PARKED)
"""The states of tasks that wait for their queue as well."""


def hold_names(database: Database, session: Session, found: Collection[Hold]) -> dict[Hold, str]:
    """Returns what people are told of what holds tasks back."""
    names = dict.fromkeys(found, "a feature that this app does not have")
    for feature in database.features if found else ():
        names.update(feature.hold_names(session, found))
    return names


def look(database: Database, session: Session, row: TaskRow) -> tuple[list[str], list[str], dict[str, tuple[str, Any]]]:
    """Returns what a held task waits for, why one that has not ended does not run, and facts of features about it."""
    if row.state is State.SCHEDULED and row.start_time <= results.now(session):
        row = replace(row, state=State.READY)  # as soon as a worker looks at it
    held = holds(session, [row.id]).get(row.id, []) if row.state is State.HELD else []
    queue = QueueRow(queue=row.queue)
    workers = processes.workers(session) if row.state in (*_TO_RUN, State.RUNNING) else []
    if row.state in _TO_RUN:
        queue = replace(queue, workers=processes.serving(workers)[row.queue])
        queue = described(database, session, [queue])[row.queue]
    told = [feature.describe(session, row, held, queue) for feature in database.features]
    names = hold_names(database, session, held)
    facts = {name: fact for each in told for name, fact in each.facts.items()}
    dead = list(_dead(row, workers)) if row.state is State.RUNNING else []
    return [names[hold] for hold in held], dead + list(_why(session, row, queue, told)), facts


def tell(database: Database, task: str, app_path: str) -> str:
    """Says what is known of a task that has not ended, in a sentence without a full stop.

    A user of a server who may only enqueue is told the state. *app_path* is what names the app behind ``-A``.
    """

    def read(session: Session) -> str:
        number = results.find_id(session, task)
        found = None if number is None else results.state(session, number)
        if number is None or found is None:
            return (
                "the database knows no task of this id: it is not committed yet, was pruned, or succeeded with "
                "ignore_result; or it is a task of another user"
            )
        try:
            row = results.find(session, results.answering(session, number))
            if row is not None:
                return _told(row, *look(database, session, row)[:2])
        except StatementRefused:  # its user may not see more
            pass
        return f"it is {found[0].name.lower()}"

    return with_app(database.use(read), app_path)


def _told(row: TaskRow, waits_for: list[str], why: list[str]) -> str:
    if row.state is State.RUNNING and not why:
        since = "" if row.claim_time is None else f" since {row.claim_time:%Y-%m-%d %H:%M:%S} UTC"
        return f"it runs on worker {row.worker}{since}"
    said = f"it is {row.state.name.lower()}"
    if row.state is State.SCHEDULED:
        said += f" for {row.start_time:%Y-%m-%d %H:%M:%S} UTC"
    if waits_for:
        said += f" by {waits_for[0]}"
    if why and row.state is State.PARKED:  # which they say
        return "; ".join(why)
    if why:
        return f"{said}, and {'; '.join(why)}"
    where = f" in the queue {row.queue}" if row.state is State.READY else ""
    return f"{said}, and its turn{where} has not come" if row.state in (State.READY, State.HELD) else said


def _start(queue: str) -> str:
    return f"Start one: {command_line('fbtasks worker -A MODULE -Q {}', queue)}"


def _dead(row: TaskRow, workers: Collection[WorkerRow]) -> Iterator[str]:
    """Why a task that is claimed runs no longer: its worker is dead, and no other one has taken it back."""
    if any(worker.alive for worker in workers if worker.name == row.worker):
        return
    what = "its worker is not registered" if row.worker is None else f"its worker {row.worker} is dead"
    if left := sum(worker.alive for worker in workers):
        yield f"{what}. It runs again when another one has found that out ({count(left, 'worker')} left)"
    else:
        yield f"{what}, and no other one is alive to take it back. {_start(row.queue)}"


def _why(session: Session, row: TaskRow, queue: QueueRow, told: list[Told]) -> Iterator[str]:
    yield from (_parked(session, row) if row.state is State.PARKED else ())
    if row.state is State.READY and row.name in paused_names(session):
        yield _paused(row.name, "and it will be parked when its turn comes")
    for each in told:
        yield from each.why
    if row.state not in _TO_RUN:
        return
    if queue.paused:
        yield f"its queue {row.queue} is paused. To go on: {how_to_resume([row.queue])}"
    elif not queue.is_open:
        until = "" if queue.opens is None else f" until {queue.opens:%Y-%m-%d %H:%M} UTC"
        yield f"its queue {row.queue} is closed{until}"
    if not queue.workers:
        yield f"no worker serves its queue {row.queue}. {_start(row.queue)}"
    for each in told:
        yield from each.of_queue


def _paused(name: str, so: str) -> str:
    return f"the task name {name} is paused, {so}. To go on: {how_to_resume(names=[name])}"


def _parked(session: Session, row: TaskRow) -> Iterator[str]:
    """Why it is parked: its name is paused, or a worker that took it lacked a feature, or did not know its name."""
    if row.name in paused_names(session):
        yield _paused(row.name, "and it is parked")
        return
    needed = [name for (name,) in session.read("needs", row.id)]
    lacking = [name for name in needed if name not in processes.features(session)]
    known = processes.task_names(session)
    start = command_line("fbtasks worker -A MODULE -Q {}", row.queue)
    if lacking:
        yield (
            f"it needs the feature {lacking[0]}, which no worker has, and it is parked. Start one of an app that has "
            f"it: {start}"
        )
    elif row.name not in known:
        meant = did_you_mean(row.name, known)
        yield f"no worker knows a task of this name, and it is parked.{meant} Start one of an app that has it: {start}"
    elif lacked := [name for name in needed if row.error_msg == f"it needs the feature {name}"]:  # of codec.py
        yield (
            f"a worker took it that lacks the feature {lacked[0]}, and it is parked. One that has it takes it in a "
            "moment"
        )
    else:
        yield "a worker took it that does not know its name, and it is parked. One that knows it takes it in a moment"
