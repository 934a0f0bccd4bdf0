"""Why a task that waits does not run, in words, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime

from fbtasks.features.limits import store as admission
from fbtasks.features.limits.operations import kind_of
from fbtasks.features.limits.store import Gate, Wait
from fbtasks.features.queues import store as limits
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.operations.pausing import how_to_resume
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.system.showing import count
from fbtasks.tasks.call import TaskRow


def why_waiting(session: Session, row: TaskRow, waits: Sequence[Wait]) -> list[str]:
    """Returns what keeps a task from running, as far as it is more than its turn. Of one that runs or has ended: [].

    *waits* is what a held one has still to pass; nothing, when it has been let in by now.
    """
    state = row.state
    if state is State.SCHEDULED and row.start_time <= results.now(session):
        state = State.READY  # as soon as a worker looks at it
    match state:
        case State.READY:
            return [*_paused(session, row, "and it will be parked when its turn comes"), *_of_queue(session, row)]
        case State.HELD:
            return [*_held(session, row, waits), *_of_queue(session, row)]
        case State.PARKED:
            paused = _paused(session, row, "and it is parked")
            return [*(paused or _lacking(session, row) or _unknown(session, row)), *_of_queue(session, row)]
        case State.AWAITING:
            return [f"a step that it follows has not ended: fbtasks inspect workflow {row.id}"]
        case _:
            return []


def _paused(session: Session, row: TaskRow, so: str) -> list[str]:
    if row.name not in limits.paused_names(session):
        return []
    return [f"the task name {row.name} is paused, {so}. To go on: {how_to_resume(names=[row.name])}"]


def _lacking(session: Session, row: TaskRow) -> list[str]:
    """What it needs of features that a worker that took it lacked."""
    needed = [name for (name,) in session.read("extras", row.id)]
    lacking = [name for name in needed if name not in processes.features(session)]
    if lacking:
        return [
            f"it needs the feature {lacking[0]}, which no worker has, and it is parked. Start one of an app that has "
            f"it: fbtasks worker -A MODULE -Q {row.queue}"
        ]
    if needed and row.name in processes.task_names(session):
        return [
            f"a worker took it that lacks the feature {needed[0]}, and it is parked. One that has it takes it in a "
            "moment"
        ]
    return []


def _unknown(session: Session, row: TaskRow) -> list[str]:
    if row.name in processes.task_names(session):
        return [
            "a worker took it that does not know its name, and it is parked. One that knows it takes it in a moment"
        ]
    return [
        "no worker knows a task of this name, and it is parked. Start one of an app that has it: "
        f"fbtasks worker -A MODULE -Q {row.queue}"
    ]


def _of_queue(session: Session, row: TaskRow) -> Iterator[str]:
    """What keeps all tasks of its queue from running."""
    queue = row.queue
    policy = next((each for each in limits.policies(session) if each.queue == queue), None)
    if policy is not None and policy.paused:
        yield f"its queue {queue} is paused. To go on: {how_to_resume([queue])}"
    elif policy is not None and not policy.is_open:
        yield f"its queue {queue} is closed" + (
            "" if policy.opens is None else f" until {policy.opens:%Y-%m-%d %H:%M} UTC"
        )
    if not processes.serving(processes.workers(session))[queue]:
        yield f"no worker serves its queue {queue}. Start one: fbtasks worker -A MODULE -Q {queue}"
    elif policy is not None:
        running, opens = limits.room(session, queue)
        if running is not None:
            run = "runs" if running == 1 else "run"
            yield (
                f"{count(running, 'task')} of its queue {queue} {run}, as many as its limit lets in. To let in more: "
                f"fbtasks limits set queue:{queue} --at-once N"
            )
        elif opens is not None:
            yield _next_at(f"queue:{queue}", opens)


def _next_at(limit: str, moment: datetime) -> str:
    return f"{limit} lets in the next one at {moment:%Y-%m-%d %H:%M:%S} UTC"


def _held(session: Session, row: TaskRow, waits: Sequence[Wait]) -> list[str]:
    """What shuts the gate that a held task waits for."""
    if not waits:
        return []
    wait = waits[0]
    gate = admission.gate(session, wait.owner, wait.lane)
    return _at_lane(session, row, wait, gate) if wait.of_source else _at_limit(session, wait, gate)


def _at_lane(session: Session, row: TaskRow, wait: Wait, gate: Gate) -> list[str]:
    if gate.halted and gate.holder != row.id:
        what = f"its lane stands still since task {gate.holder} failed"
        return [f"{what}. Discard that task, or put it back: fbtasks retry {gate.holder}"]
    return [
        f"task {holder} of its lane has not ended: fbtasks inspect task {holder}"
        for holder in admission.let_in(session, wait.owner, wait.lane)
    ]


def _tasks(numbers: list[int], one: str, several: str) -> str:
    shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"task {shown}, {one}" if len(numbers) == 1 else f"tasks {shown}, {several}"


def _at_limit(session: Session, wait: Wait, gate: Gate) -> list[str]:
    limit = next((each for each in admission.read(session) if each.id == wait.owner), None)
    if limit is None:
        return ["no app defines the limit that it waits for. Cancel it, and call it anew"]
    if gate.halted:
        return [
            f"its key of {limit.name} is closed since task {gate.holder} failed. Retry that task, or pass it by: "
            f"fbtasks limits resume {shlex.quote(limit.name)} --task {gate.holder}"
        ]
    if gate.wakes is not None:
        return [_next_at(limit.name, gate.wakes)]
    if kind_of(limit) not in ("at_once", "ordered"):
        return []
    if running := admission.running(session, wait.owner, wait.lane):
        return [f"{limit.name} is taken by {_tasks(running, 'which runs', 'which run')}"]
    keeping = admission.keeping(session, wait.owner, wait.lane) if gate.used else []
    if keeping:
        who = _tasks(keeping, "which waits for another try, or is parked", "which wait for another try, or are parked")
        return [f"{limit.name} is taken by {who}"]
    if gate.used:
        return [f"{limit.name} is taken by a task that does not run now: it waits for another try, or for a worker"]
    return []
