"""The stack of a running task as text, read from another thread of its process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from itertools import dropwhile, islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fbtasks.system.showing import sendable, shorten
from fbtasks.tasks.remote_error import MACHINERY, PACKAGE

if TYPE_CHECKING:
    from asyncio import Task

_LONGEST: Final = 30_000
"""Characters of a stack."""
_MOST: Final = 500
_AWAITS: Final = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}
"""What coroutines and generators wait for, by what the names of their attributes begin with."""


def stack_of(thread: int | None, job: Task[Any] | None) -> str:
    """Returns the stack of a task in a *thread*, or in a *job* of an event loop that runs in it; outermost call first.

    It begins where the task's own code does. Empty: the task is in neither.
    """
    coroutine = None if job is None else job.get_coro()
    if job is None or getattr(coroutine, "cr_running", False):
        frame = sys._current_frames().get(thread or 0)
        frames = [each for each, _ in traceback.walk_stack(frame)][::-1] if frame is not None else []
    else:
        frames = [*islice(_awaiting(job), _MOST)]  # jobs may wait for each other
    shown = [*dropwhile(lambda each: not each.f_code.co_filename.startswith(PACKAGE), frames)]
    own = [*dropwhile(lambda each: each.f_code.co_filename.startswith(MACHINERY), shown)]
    summary = traceback.StackSummary.extract((each, each.f_lineno) for each in own or shown or frames)
    return shorten(sendable("".join(summary.format())), _LONGEST, "\n  ... (cut here) ...\n")


def _awaiting(job: Any) -> Iterator[FrameType]:
    """Yields the frames of a job that waits, and of the jobs that it waits for: that of each coroutine in turn."""
    while hasattr(job, "get_coro"):
        waits = job.get_coro()
        while (kind := next((kind for kind in _AWAITS if getattr(waits, f"{kind}_frame", None)), None)) is not None:
            yield getattr(waits, f"{kind}_frame")
            waits = getattr(waits, _AWAITS[kind])
        job = getattr(job, "_fut_waiter", None)  # private: where a release of Python has it not, less is shown
