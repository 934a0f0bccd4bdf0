"""Runs tasks in the test's own process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fbtasks import FBTasks
from fbtasks.database.migrate import check_identity
from fbtasks.url import DatabaseURL
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor


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


def drain(app: FBTasks, queues: Iterable[str] | None = None) -> None:
    """Runs all that is due in *queues* (default: the app's), in this process and thread, and records it.

    As a worker it first brings in what the app defines: limits, queues, schedules, triggers and handlers of events.
    Events that were raised before are handled then; changes are noted from when their triggers are there, which
    ``app.migrate()`` makes as well. What is scheduled for later stays; what another transaction has locked is waited
    for. Outcomes are found as after any worker, with ``AsyncResult``. Raises :class:`ForeignDatabaseError` for a
    restored or moved copy of a database.
    """
    options = WorkerOptions(
        name=f"drain-{os.getpid()}",
        queues=tuple(queues if queues is not None else app.queues_served()),
        pool="solo",
        concurrency=1,
        burst=True,
    )
    loop = Loop(app, SoloExecutor(app), options)
    try:
        loop.start()
        with app.database.session() as session:
            check_identity(session)
        loop.open()
        loop.run(listen=False)
    finally:
        loop.close()
