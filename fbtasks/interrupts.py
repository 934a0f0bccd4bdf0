"""Stopping a task that runs: an exception raised inside it from outside.

In the main thread of a process a signal does it, which also ends a wait in the operating system. In any other thread
it is CPython's ``PyThreadState_SetAsyncExc``, which takes effect when the thread next runs Python code.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fbtasks.errors import SoftTimeLimitExceeded, TimeLimitExceeded

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

T = TypeVar("T")
SOFT: Final = "soft"
STOP: Final = "stop"


class TaskStopped(BaseException):
    """Raised inside a task that is to end at once: its time is over, or it was cancelled. Not to be caught."""


class Interrupts:
    """Knows which tasks run, and raises inside them. This one lets every task run to its end."""

    @contextmanager
    def window(self, task: int) -> Iterator[None]:  # noqa: ARG002  # nothing depends on it here
        """For the block, *task* may be interrupted in this thread."""
        yield

    async def watched(self, task: int, coroutine: Coroutine[Any, Any, T]) -> T:  # noqa: ARG002
        """What *coroutine*, which runs *task*, returns; meanwhile it may be interrupted in its loop."""
        return await coroutine

    def meant(self, task: int, error: BaseException) -> BaseException:  # noqa: ARG002
        """What *error*, raised by *task*, stands for when an interruption caused it; else itself."""
        return error


class ThreadInterrupts(Interrupts):
    """Interrupts tasks in threads other than the main one, and coroutines in any loop by cancelling them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}
        self._jobs: dict[int, tuple[AbstractEventLoop, Task[Any]]] = {}
        self._reasons: dict[int, str] = {}

    @contextmanager
    def window(self, task: int) -> Iterator[None]:
        """For the block, *task* may be interrupted in this thread."""
        ident = threading.get_ident()
        with self._lock:
            self._threads[task] = ident
        try:
            yield
        finally:
            with self._lock:
                del self._threads[task]
                _set_async(ident, None)  # one that is still pending would hit the next task

    async def watched(self, task: int, coroutine: Coroutine[Any, Any, T]) -> T:
        """What *coroutine*, which runs *task*, returns; meanwhile it may be cancelled."""
        from asyncio import current_task, get_running_loop

        job = current_task()
        assert job is not None
        self._jobs[task] = get_running_loop(), job
        try:
            return await coroutine
        finally:
            del self._jobs[task]

    def interrupt(self, task: int, kind: str) -> None:
        """Raises inside *task*, if it runs; from any thread."""
        job = self._jobs.get(task)
        if job is not None:  # its thread may wait in the loop, where no exception would reach it
            self._reasons[task] = kind
            job[0].call_soon_threadsafe(job[1].cancel)
            return
        with self._lock:
            ident = self._threads.get(task)
            if ident is not None:
                _set_async(ident, SoftTimeLimitExceeded if kind == SOFT else TaskStopped)

    def meant(self, task: int, error: BaseException) -> BaseException:
        """The interruption that a cancellation stands for."""
        kind = self._reasons.pop(task, None)
        if kind is None:
            return error
        from asyncio import CancelledError

        if not isinstance(error, CancelledError):
            return error
        meant = SoftTimeLimitExceeded() if kind == SOFT else TaskStopped()
        return meant.with_traceback(error.__traceback__)


def _set_async(ident: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error)
    )


class SignalInterrupts(Interrupts):
    """Interrupts the one task in the main thread: SIGUSR1 for the soft limit, SIGUSR2 to stop it.

    *aimed_at* tells for which task the last signal of a kind was meant: the one that runs may be the next already.
    """

    def __init__(self, aimed_at: Callable[[str], int]) -> None:
        self._aimed_at = aimed_at
        self._task: int | None = None
        signal.signal(signal.SIGUSR1, self._soft)
        signal.signal(signal.SIGUSR2, self._stop)

    @contextmanager
    def window(self, task: int) -> Iterator[None]:
        """For the block, *task* may be interrupted."""
        self._task = task
        try:
            yield
        finally:
            self._task = None

    def _soft(self, _number: int, _frame: FrameType | None) -> None:
        if self._task is not None and self._task == self._aimed_at(SOFT):
            raise SoftTimeLimitExceeded

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._task is not None and self._task == self._aimed_at(STOP):
            self._task = None
            raise TaskStopped


class AlarmInterrupts(Interrupts):
    """Time limits for the solo pool: the alarm timer of the main thread. Elsewhere there are none.

    A worker has it stop the task that runs as well, at SIGUSR2; see :meth:`heed_halt`.
    """

    def __init__(self) -> None:
        self.limits: tuple[float | None, float | None] = (None, None)
        """Soft and hard limit, in seconds, of the task that runs next."""
        self._inside = self._halted = False

    def heed_halt(self) -> None:
        """From now on SIGUSR2 stops the task that runs, and all that would run after it. For the main thread."""
        signal.signal(signal.SIGUSR2, self._halt)

    def _halt(self, _number: int, _frame: FrameType | None) -> None:
        self._halted = True
        if self._inside:
            self._inside = False
            raise TaskStopped

    @contextmanager
    def window(self, task: int) -> Iterator[None]:  # noqa: ARG002  # there is one at a time
        """For the block, the limits hold, and the task may be stopped."""
        with self._alarm():
            self._inside = True
            try:
                if self._halted:
                    raise TaskStopped
                yield
            finally:
                self._inside = False

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        soft, hard = self.limits
        first = min((limit for limit in (soft, hard) if limit is not None), default=None)
        if first is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ring(_number: int, _frame: FrameType | None) -> None:
            nonlocal soft
            if soft is not None and soft == first and (hard is None or soft < hard):
                if hard is not None:
                    signal.setitimer(signal.ITIMER_REAL, hard - soft)
                soft = None
                raise SoftTimeLimitExceeded
            raise TimeLimitExceeded

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, first)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
