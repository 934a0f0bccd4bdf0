"""The tasks that are measured, and the app they belong to."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

from fbtasks.app import FBTasks

QUEUE_VARIABLE: Final = "FBTASKS_BENCH_QUEUE"
OUT_VARIABLE: Final = "FBTASKS_BENCH_OUT"
"""The file to which tasks append what they have to say."""
_FOREVER: Final = timedelta(days=36_500)
_UNLIMITED: Final = 1_000_000


def make_app(url: str | None, queue: str) -> FBTasks:
    """The benchmark's app: the queue *queue* alone, and maintenance that takes nothing of anybody's away."""
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
    for function in (noop, noop_async, mark, stamp, pause, numbered):
        app.task(name=function.__name__, ignore_result=True, max_retries=0)(function)
    for function in (noop, noop_async):
        app.task(name=f"kept_{function.__name__}", max_retries=0)(function)
    return app


def noop() -> None:
    """Does nothing."""


async def noop_async() -> None:
    """Does nothing, in an event loop."""


def mark(what: str) -> None:
    """Notes when it ran."""
    _say(f"{what} {time.monotonic():.6f}\n")


def stamp(sent: float) -> None:
    """Notes how long it was on its way; *sent* is the sender's monotonic time, which is the machine's."""
    now = time.monotonic()
    _say(f"{sent:.6f} {now - sent:.6f}\n")


def pause(number: int = 0) -> None:  # noqa: ARG001
    """Takes 5 ms."""
    time.sleep(0.005)


def numbered(number: int) -> None:
    """Notes its number."""
    _say(f"{number}\n")


_file = -1


def _say(text: str) -> None:
    global _file
    if _file < 0:
        _file = os.open(os.environ[OUT_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_file, text.encode())
