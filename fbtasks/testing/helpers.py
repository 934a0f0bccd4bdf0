"""Databases of tests, and what is enqueued in them or run in the test's own process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fbtasks import FBTasks
from fbtasks.database.migrate import adopt
from fbtasks.errors import FBTasksError
from fbtasks.firebird.session import SNAPSHOT, Session
from fbtasks.queue.results import Filter, call_of, listing
from fbtasks.states import State
from fbtasks.tasks.call import TaskRow
from fbtasks.tasks.serialize import Payload
from fbtasks.url import DatabaseURL
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor

_MOST: Final = 1_000_000
"""Tasks of one state that are listed."""


@contextmanager
def on_database(app: FBTasks, url: DatabaseURL | str) -> Iterator[FBTasks]:
    """For the block, *app* is on the database of *url*, whatever its code and FBTASKS_URL say. Yields it.

    Its connections are closed at the beginning and at the end.
    """
    before = app.settings.url
    app.use_database(url)
    try:
        yield app
    finally:
        app.use_database(before)


def make_database(path: Path, template: Path | None = None) -> str:
    """Makes an embedded database with an empty queue: a copy of *template*, or a new one. Returns its URL."""
    url = DatabaseURL(str(path))
    with on_database(FBTasks("tests"), url) as app:
        if template is None:
            app.database.migrate()
        else:
            shutil.copyfile(template, path)
            with app.database.session() as session:
                adopt(session)
    return str(url)


@contextmanager
def eager(app: FBTasks) -> Iterator[None]:
    """For the block, calls run at once where they are made; retries follow without their delays.

    So do the app's handlers of events that are raised.
    """
    before, app.always_eager = app.always_eager, True
    try:
        yield
    finally:
        app.always_eager = before


@dataclass(frozen=True, slots=True)
class EnqueuedTask:
    """A task that was enqueued and has not ended."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    priority: int
    eta: datetime | None
    """When it is due; None: at once."""
    headers: dict[str, str]
    unreadable: str | None = None
    """The reason why its payload cannot be read: it has no arguments and no headers here. None: it can."""


def enqueued(app: FBTasks, name: str | None = None) -> list[EnqueuedTask]:
    """Returns the tasks that were enqueued and have not ended, in the order of their ids; or those of *name* alone.

    Raises :class:`UnknownTaskError` for a name that the app does not know, unless there are tasks of that name.
    """
    wanted = Filter(name=name, limit=_MOST)

    def read(session: Session) -> list[EnqueuedTask]:
        with session.reading(SNAPSHOT):  # a worker may run them meanwhile
            rows = [row for state in State if state.live for row in list(listing(session, state, wanted))]
            return [_with_arguments(app, session, row) for row in sorted(rows, key=lambda row: row.id)]

    found = app.database.use(read)
    if name is not None and not found:
        app.find_task(name)
    return found


def _with_arguments(app: FBTasks, session: Session, row: TaskRow) -> EnqueuedTask:
    content_type, data = call_of(session, row.id) or ("", None)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    headers: dict[str, str] = {}
    unreadable = None
    try:
        if data is not None:
            args, kwargs, headers = app.serializer.load_call(Payload(content_type, data), task=row.name)
    except FBTasksError as error:
        unreadable = str(error)
    eta = row.start_time if row.start_time > row.raise_time else None
    return EnqueuedTask(row.id, row.name, tuple(args), kwargs, row.queue, row.priority, eta, headers, unreadable)


def drain(app: FBTasks, queues: Iterable[str] | None = None) -> None:
    """Runs all that is due in *queues* (default: the app's), in this process and thread, and records it.

    As a worker it first brings in what the app defines: limits, queues, schedules, triggers and handlers of events.
    Events that were raised before are handled then; changes are noted from when their triggers are there, which
    ``app.migrate()`` makes as well, and on a server alone. What is scheduled for later stays; what another transaction
    has locked is waited for. Outcomes are found as after any worker, with ``AsyncResult``. A Ctrl-C ends it, and the
    task that runs goes back to its queue. Raises :class:`ForeignDatabaseError` for a restored or moved copy of a
    database.
    """
    options = WorkerOptions(
        name=f"drain-{os.getpid()}",
        queues=tuple(queues if queues is not None else app.queues_served()),
        pool="solo",
        concurrency=1,
        burst=True,
    )
    loop = Loop(app, SoloExecutor(app, interruptible=True), options)
    try:
        loop.start()
        loop.run(listen=False)
    finally:
        loop.close()
