"""One worker from its start to its end: signals, executor, loop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from fbtasks import timing as clock
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.worker.heartbeat_process import HeartbeatProcess
from fbtasks.worker.logs import finish
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import ChildOptions, WorkerOptions
from fbtasks.worker.pools.children import ChildExecutor
from fbtasks.worker.pools.processes import interpreter, keep_children
from fbtasks.worker.pools.solo import SoloExecutor
from fbtasks.worker.signals import Signals

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")


def work(
    app: FBTasks,
    app_path: str,
    options: WorkerOptions,
    log: str,
    children: ChildOptions,
    watched: Callable[[Loop], None] | None = None,
) -> None:
    """Runs a worker until a signal ends it, or, in a burst, until nothing is due.

    *log* is how child processes are to log, as :meth:`LogOptions.argument` has it; *watched* is given the loop before
    it works. When the schema is migrated meanwhile, or *watched* says so, the process replaces itself by a new one with
    the same command line. Raises
    :class:`ForeignDatabaseError` before anything is claimed when the database is a copy, and at its end
    :class:`DatabaseReplaced` when it was replaced or restored, or its file deleted.
    """
    began = clock.monotonic()
    app.path = app_path
    solo = SoloExecutor(app) if options.pool == "solo" else None
    executor = solo or ChildExecutor(options.pool, app_path, app, options.concurrency, log, children)
    loop = Loop(app, executor, options)
    signals = Signals(loop, solo, options.grace)
    mutex_repair.exit_when_engine_hangs()
    keep_children()
    app.database.known.keep()
    heartbeats = None
    try:
        signals.hear()
        if not loop.start():
            return
        if solo is not None:
            # User code in this very process may hold it up for as long as it likes; another one says that it lives.
            heartbeats = HeartbeatProcess(app.settings, loop.lease, app.database.known.mark)
        if watched is not None:
            watched(loop)
        loop.run()
    finally:
        if heartbeats is not None:
            heartbeats.stop()
        try:
            loop.stop_executor()
        finally:
            signals.close()
            loop.close()
        app.close()
        if loop.lease.worker_id:
            span = _span(clock.monotonic() - began)
            logger.info("Worker %s has ended after %s. Tasks: %s.", options.name, span, loop.tally)
        signals.leave()
    if loop.drain.replaced is not None:
        raise loop.drain.replaced
    if loop.drain.outdated:
        logger.info("Starting afresh.")
        finish()
        start_afresh(children.folder)


def start_afresh(folder: str | None) -> NoReturn:
    """Replaces this process by a new one with the same command line, in *folder*, unless that is None."""
    if folder is not None:
        os.chdir(folder)
    os.execv(sys.executable, [*interpreter(), "-m", "fbtasks", *sys.argv[1:]])  # noqa: S606  # its own command line


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
