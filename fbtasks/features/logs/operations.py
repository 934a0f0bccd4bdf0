"""What is kept of the log of a task, for operators."""

from __future__ import annotations

from fbtasks.database.database import Database
from fbtasks.errors import TaskNotFound
from fbtasks.features.logs import store
from fbtasks.features.logs.store import LogOfTry
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.system.showing import command_line, count


def get_log(database: Database, task_id: str, number: int | None = None) -> list[LogOfTry]:
    """Returns what is kept of the tries of a task, or of the try *number* alone.

    Raises :class:`TaskNotFound` for a task of which nothing is known.
    """

    def read(session: Session) -> list[LogOfTry]:
        task = results.find_id(session, task_id)
        if task is not None:
            task = results.answering(session, task)
            found = store.of_task(session, task, number)
            if found or results.state(session, task) is not None:
                return found
        raise TaskNotFound(f"there is no task {task_id!r}, and no log of one. See: fbtasks inspect failed")

    return database.use(read)


def describe(session: Session, task: int) -> tuple[str, int | None]:
    """Returns how many lines are kept of a task, for people and in JSON."""
    tries, lines = store.size(session, task)
    look = command_line("fbtasks inspect logs {}", task)
    return (f"{count(lines, 'line')}: {look}", lines) if tries else ("", None)
