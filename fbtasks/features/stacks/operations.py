"""Asks where a running task is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.errors import FBTasksError
from fbtasks.firebird.session import Session
from fbtasks.queue.operations.tasks import get_task
from fbtasks.queue.operations.waiting import look
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.system.showing import ending
from fbtasks.tasks.call import TaskRow
from fbtasks.timing import Backoff

PATIENCE: Final = 10.0
"""Seconds for which an answer is waited for."""
_ENDED: Final = "It has ended meanwhile."


@dataclass(frozen=True, slots=True)
class Stack:
    """What is known of where a running task is."""

    id: int
    name: str
    worker: str | None
    stack: str
    """Its stack in Python, the outermost call first; or why there is none, as a sentence."""


def get_stack(database: Database, task_id: str, seconds: float = PATIENCE) -> Stack:
    """Returns where a running task is, as its worker says within *seconds*, or why that is not known.

    Raises :class:`TaskNotFound`, and :class:`FBTasksError` for a task that does not run.
    """
    row = get_task(database, task_id).row
    if row.state is not State.RUNNING:
        raise FBTasksError(f"task {row.id} does not run: it is {row.state.name.lower()}. See: fbtasks inspect active")
    with database.session() as session:
        return Stack(row.id, row.name, row.worker, ask(database, session, row, seconds))


def ask(database: Database, session: Session, row: TaskRow, seconds: float = PATIENCE) -> str:
    """Returns where a task that runs is, as its worker says within *seconds*, or why that is not known."""
    return _unable(session, row, look(database, session, row)[1]) or _ask(session, row, seconds)


def _unable(session: Session, row: TaskRow, why: list[str]) -> str:
    """Why nobody can answer: the worker is dead, or runs its tasks itself; empty: somebody can."""
    if why:
        return ending(f"Nobody can say where it is: {'; '.join(why)}")
    worker = next((each for each in processes.workers(session) if each.name == row.worker), None)
    if worker is not None and worker.pool == "solo":
        return (
            f"Its worker {worker.name} runs it in its own thread (the pool solo), and hears nothing meanwhile. On its "
            f"machine, from outside: py-spy dump --pid {worker.pid}"
        )
    return ""


def _ask(session: Session, row: TaskRow, seconds: float) -> str:
    question = session.call("FBTASKS_STACKS_ADMIN.ASK", row.id)
    if question is None:
        return _ENDED
    until, pauses = clock.monotonic() + seconds, Backoff(0.02, 0.2)
    try:
        while clock.monotonic() < until:
            clock.sleep(pauses.next())
            for answer, runs in session.read("stack_answer", question):
                if answer is not None:
                    return str(answer)
                if not runs:
                    return _ENDED
        return (
            f"Its worker {row.worker} has not answered in {seconds:g} s. It is busy, or its app has no feature stacks."
        )
    finally:
        session.call("FBTASKS_STACKS_ADMIN.TAKE_BACK", question)
