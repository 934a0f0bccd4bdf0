"""One worker from its start to its end: signals, executor, consumer."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

from fbtasks.app import FBTasks
from fbtasks.store.migrate import check_identity
from fbtasks.worker.consumer import Consumer, WorkerOptions
from fbtasks.worker.executors import make_executor

logger = logging.getLogger("fbtasks.worker")


def work(app: FBTasks, app_path: str, options: WorkerOptions, level: str) -> None:
    """Runs a worker until a signal ends it, or, in a burst, until nothing is due.

    Raises :class:`ForeignDatabaseError` before anything is claimed when the database is a copy.
    """
    with app.database.session() as session:
        check_identity(session)
    consumer = Consumer(app, make_executor(options.pool, app_path, app, options.concurrency, level), options)
    consumer.open()
    # Only now: the client library installs handlers of its own when it first attaches.
    previous = _install(consumer)
    try:
        consumer.start()
        logger.info("Worker %s is ready.", options.name)
        consumer.run()
    finally:
        signal.set_wakeup_fd(-1)
        consumer.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
        app.close()


def _install(consumer: Consumer) -> dict[signal.Signals, Any]:
    def stop(number: int, _frame: FrameType | None) -> None:
        logger.info("Signal %s: stopping.", signal.Signals(number).name)
        consumer.drain()

    signal.set_wakeup_fd(consumer.wake_fd, warn_on_full_buffer=False)
    return {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
