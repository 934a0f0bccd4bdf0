"""One worker from its start to its end: signals, executor, consumer."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType
from typing import Any

from fbtasks.app import FBTasks
from fbtasks.store import robust
from fbtasks.store.migrate import check_identity
from fbtasks.worker.consumer import Consumer, WorkerOptions
from fbtasks.worker.executors import ChildOptions, make_executor
from fbtasks.worker.pulse import Pulse

logger = logging.getLogger("fbtasks.worker")


def work(app: FBTasks, app_path: str, options: WorkerOptions, level: str, children: ChildOptions | None = None) -> None:
    """Runs a worker until a signal ends it, or, in a burst, until nothing is due.

    When the schema is migrated meanwhile, the process replaces itself by a new one with the same command line. Raises
    :class:`ForeignDatabaseError` before anything is claimed when the database is a copy, and at its end
    :class:`DatabaseReplaced` when its file was deleted or replaced.
    """
    consumer = Consumer(app, make_executor(options.pool, app_path, app, options.concurrency, level, children), options)
    previous: dict[signal.Signals, Any] = {}
    robust.leave_when_stuck()
    app.database.keep_file()
    pulse = None
    try:
        previous = _install(consumer)
        consumer.start()
        with app.database.session() as session:
            check_identity(session)
        consumer.open()
        if options.pool == "solo":
            # User code in this very process may hold it up for as long as it likes; another one says that it lives.
            pulse = Pulse(app.settings, consumer.membership, app.database.file)
        consumer.run()
    finally:
        if pulse is not None:
            pulse.stop()
        signal.set_wakeup_fd(-1)
        consumer.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
        app.close()
    if consumer.replaced is not None:
        raise consumer.replaced
    if consumer.outdated:
        logger.info("Starting afresh.")
        os.execv(sys.executable, [sys.executable, "-m", "fbtasks", *sys.argv[1:]])  # noqa: S606  # its own command line


def _install(consumer: Consumer) -> dict[signal.Signals, Any]:
    def stop(number: int, _frame: FrameType | None) -> None:
        logger.info("Signal %s: stopping.", signal.Signals(number).name)
        consumer.stop()

    signal.set_wakeup_fd(consumer.wake_fd, warn_on_full_buffer=False)
    return {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
