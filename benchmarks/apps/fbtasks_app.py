"""fbtasks, in a queue of its own of the database that the environment names."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

from benchmarks.apps import body
from fbtasks import FBTasks

BROKER: Final = "BENCH_BROKER"
QUEUE: Final = "BENCH_QUEUE"
TASK: Final = "BENCH_TASK"
"""The variable with the name of the task that a producer enqueues."""
_FOREVER: Final = timedelta(days=36_500)
_UNLIMITED: Final = 1_000_000


def make_app(url: str, queue: str) -> FBTasks:
    """The benchmark's app: the queue *queue* alone, and maintenance that deletes nothing of other apps."""
    app = FBTasks(
        "fbtasks-bench",
        url,
        default_queue=queue,
        queues=[queue],
        result_expires=_FOREVER,
        failed_expires=_FOREVER,
        unknown_task_timeout=_FOREVER,
        crash_limit=_UNLIMITED,
    )
    for function in (body.noop, noop_async, body.stamp, pause):
        app.task(name=function.__name__, ignore_result=True, max_retries=0)(function)
    for function in (body.noop, noop_async):
        app.task(name=f"kept_{function.__name__}", max_retries=0)(function)
    return app


async def noop_async() -> None:
    """The same body in an event loop."""
    body.noop()


def pause(number: float) -> None:
    """Takes 5 ms."""
    time.sleep(0.005)
    body.stamp(number)


app = make_app(os.environ[BROKER], os.environ[QUEUE]) if QUEUE in os.environ else None
"""The app as a worker and a producer import it, whose environment says where they work."""


class Producer:
    """Enqueues for ``benchmarks.apps.producer``."""

    def __init__(self) -> None:
        assert app is not None
        self.app = app
        self.noop = self.app.tasks[os.environ[TASK]]

    def setup(self, install: bool) -> None:
        """The queue is there."""

    def noops(self, count: int) -> None:
        """Enqueues no-op tasks one by one."""
        for _ in range(count):
            self.noop.delay()

    def bulk(self, count: int) -> None:
        """Enqueues no-op tasks all at once."""
        self.noop.delay_many([()] * count)

    def stamp(self, sent: float) -> None:
        """Enqueues a task that notes when it ran."""
        self.app.tasks["stamp"].delay(sent)

    def close(self) -> None:
        """Ends its connections."""
        self.app.close()
