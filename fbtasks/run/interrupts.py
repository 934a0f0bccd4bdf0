"""Stopping a task that runs: an exception raised inside it from outside.

In the main thread of a process a signal does it, which also ends a wait in the operating system. In any other thread
it is CPython's ``PyThreadState_SetAsyncExc``, which takes effect when the thread next runs Python code. Coroutines are
cancelled in their event loop, which would log an exception that is raised inside itself, and go on.
"""

from __future__ import annotations

import ctypes
import math
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fbtasks import timing as clock
from fbtasks.errors import HeartbeatTimeout, SoftTimeLimitExceeded, TimeLimitExceeded
from fbtasks.run.stacks import stack_of
from fbtasks.system.threads import answer, answering

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

T = TypeVar("T")
SOFT: Final = "soft"
STOP: Final = "stop"
LOOK: Final = "look"
PING: Final = "ping"
"""The words of a worker about a running task: its soft limit is over; it is to stop; its stack is asked for; its
process is to answer, since the task does not stop."""
_SHORTEST: Final = 0.001
"""Seconds of the shortest alarm: one of none would be no alarm."""


class TaskStopped(BaseException):
    """Raised inside a task that is to end at once: its time is over, or it was cancelled. Not to be caught."""


_ERRORS: Final[dict[str, type[BaseException]]] = {SOFT: SoftTimeLimitExceeded, STOP: TaskStopped}


class Interrupts:
    """Knows which tasks run, and raises inside them. This one lets every task run to its end."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[AbstractEventLoop, Task[Any]]] = {}
        self._reasons: dict[int, BaseException] = {}
        """Why coroutines were cancelled, by their tasks."""

    def window(self, task: int) -> AbstractContextManager[None]:  # noqa: ARG002  # nothing depends on it here
        """For the block, *task* may be interrupted in this thread."""
        return nullcontext()

    async def watched(self, task: int, coroutine: Coroutine[Any, Any, T]) -> T:
        """What *coroutine*, which runs *task*, returns; meanwhile it may be interrupted in its loop."""
        from asyncio import current_task, get_running_loop

        job = current_task()
        assert job is not None
        self._jobs[task] = get_running_loop(), job
        try:
            value = await coroutine
            self._reasons.pop(task, None)  # it has caught that
            return value
        finally:
            del self._jobs[task]

    def _raise(self, task: int, error: BaseException) -> None:
        """Raises *error* inside *task*, which runs in this thread, as its signal handler does.

        Where the thread is inside an event loop it does not: the loop cancels the task's coroutine, or all that a plain
        function runs in a loop of its own.
        """
        loop, job = self._jobs.get(task) or (_running_loop(), None)
        if loop is None or _runs(loop, job):
            raise error
        loop.call_soon_threadsafe(self._cancel, task, error, job)

    def _cancel(self, task: int, error: BaseException, job: Task[Any] | None) -> None:
        """Cancels *job* for *error*, or all jobs of this event loop."""
        from asyncio import all_tasks

        for running in all_tasks() if job is None else (job,):
            if running.cancel():  # else it has ended, and a later run of the task would get the reason
                self._reasons[task] = error

    def stack(self, task: int) -> str:
        """Returns the stack of *task*; from any thread. Empty: its function is not being called."""
        job = self._jobs.get(task)
        return stack_of(self._thread(task), None if job is None else job[1])

    def _thread(self, task: int) -> int | None:  # noqa: ARG002
        """The thread in which *task*, or its event loop, runs; None: none."""
        return None

    def meant(self, task: int, error: BaseException) -> BaseException:
        """Returns the interruption that caused *error*, which *task* raised; else *error*."""
        reason = self._reasons.pop(task, None)
        if reason is None:
            return error
        from asyncio import CancelledError

        return reason.with_traceback(error.__traceback__) if isinstance(error, CancelledError) else error

    def run(self, task: int) -> AbstractContextManager[None]:  # noqa: ARG002  # see above
        """For the block, *task* is several calls, each in its own window: a stop between two of them is not lost."""
        return nullcontext()

    def begin_step(self, task: int, soft_after: float) -> None:  # see above
        """One of these calls begins, inside its window. Raises :class:`TaskStopped` when the task was stopped before.

        What says before the monotonic time *soft_after* that its soft limit is over was meant for the call before.
        """


def _running_loop() -> AbstractEventLoop | None:
    """The event loop that runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _runs(loop: AbstractEventLoop, job: Task[Any] | None) -> bool:
    """Returns True when the code of *job*, or of any job, is being run in *loop*, and not the loop's own code."""
    from asyncio import current_task

    current = current_task(loop)
    return current is not None and job in (current, None) and getattr(current.get_coro(), "cr_running", False)


class ThreadInterrupts(Interrupts):
    """Interrupts tasks in threads other than the main one, and coroutines in any loop by cancelling them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}
        self._interrupted: set[int] = set()
        """Those of these tasks in whose threads an exception was raised, and may be pending."""
        self._runs: dict[int, float] = {}
        """For tasks of several calls: before when the soft limit of the present one cannot be over."""
        self._stopped: set[int] = set()
        """Those of them that were told to stop."""

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
                if task in self._interrupted:  # never without need: CPython 3.11 spins upon it in a thread with a trace
                    self._interrupted.discard(task)
                    _set_async(ident, None)  # one that is still pending would hit the next task

    def _thread(self, task: int) -> int | None:
        return self._threads.get(task) or (threading.main_thread().ident if task in self._jobs else None)

    @contextmanager
    def run(self, task: int) -> Iterator[None]:
        """For the block, *task* is several calls."""
        self._runs[task] = 0.0
        try:
            yield
        finally:
            with self._lock:
                del self._runs[task]
                self._stopped.discard(task)

    def begin_step(self, task: int, soft_after: float) -> None:
        """One of these calls begins."""
        with self._lock:
            self._runs[task] = soft_after
            if task in self._stopped:
                raise TaskStopped

    def interrupt(self, task: int, kind: str) -> None:
        """Raises inside *task*, if it runs; from any thread."""
        job = self._jobs.get(task)
        if job is not None:  # its thread may wait in the loop, where no exception would reach it
            job[0].call_soon_threadsafe(self._cancel_if_meant, task, kind, job[1])
            return
        with self._lock:
            ident = self._threads.get(task)
            if self._is_meant(task, kind) and ident is not None:
                self._interrupted.add(task)
                _set_async(ident, _ERRORS[kind])

    def _is_meant(self, task: int, kind: str) -> bool:
        """Whether it is for what *task* does now: the call for which a soft limit was over may have ended."""
        if task in self._runs and kind == STOP:
            self._stopped.add(task)
        return kind == STOP or clock.monotonic() >= self._runs.get(task, 0.0)

    def _cancel_if_meant(self, task: int, kind: str, job: Task[Any]) -> None:
        """Cancels *job*, in its event loop."""
        with self._lock:
            if self._is_meant(task, kind):
                self._cancel(task, _ERRORS[kind](), job)


def _set_async(ident: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error)
    )


class SignalInterrupts(Interrupts):
    """Interrupts the one task in the main thread: SIGUSR1 for the soft limit, SIGUSR2 to stop it.

    *aimed_at* tells for which task the last signal of a kind was meant: the one that runs may be the next already.
    """

    def __init__(self, aimed_at: Callable[[str], int]) -> None:
        super().__init__()
        self._aimed_at = aimed_at
        self._task: int | None = None
        self._next = 0
        """The task whose window opens next."""
        self._soft_after = 0.0
        answer(signal.SIGUSR1, self._soft)
        answer(signal.SIGUSR2, self._stop)

    def _thread(self, task: int) -> int | None:
        return threading.main_thread().ident if task == self._task else None

    def window(self, task: int) -> SignalInterrupts:
        """For the block, *task* may be interrupted."""
        self._next = task
        return self  # a generator would take a microsecond, of each task

    def __enter__(self) -> None:
        self._task = self._next

    def __exit__(self, *_: object) -> None:
        self._task = None

    @contextmanager
    def run(self, task: int) -> Iterator[None]:  # noqa: ARG002  # there is one at a time
        """For the block, a task is several calls."""
        try:
            yield
        finally:
            self._soft_after = 0.0

    def begin_step(self, task: int, soft_after: float) -> None:
        """One of these calls begins."""
        self._soft_after = soft_after
        if self._aimed_at(STOP) == task:  # no other task runs here after one that was stopped
            raise TaskStopped

    def _soft(self, _number: int, _frame: FrameType | None) -> None:
        if self._task is None or clock.monotonic() < self._soft_after:
            return
        if self._task == self._aimed_at(SOFT):
            self._raise(self._task, SoftTimeLimitExceeded())

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if (task := self._task) is not None and task == self._aimed_at(STOP):
            self._task = None
            self._raise(task, TaskStopped())


class AlarmInterrupts(Interrupts):
    """Time limits for the solo pool: the alarm timer of the main thread. Elsewhere there are none.

    A worker has it stop the task that runs as well, at SIGUSR2; see :meth:`heed_halt`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limits: tuple[float | None, float | None, float | None] = (None, None, None)
        """Soft and hard limit of the task that runs next, and for how long it may be silent, in seconds."""
        self.beaten = 0.0
        """When it said last that it is at work, on the monotonic clock."""
        self._halted = False
        self._task: int | None = None
        """The task that may be stopped."""

    def beat(self, _task: int) -> None:
        """The task says that it is at work."""
        self.beaten = clock.monotonic()

    def heed_halt(self) -> None:
        """From now on SIGUSR2 stops the task that runs, and all that would run after it. For the main thread."""
        answer(signal.SIGUSR2, self._halt)

    def _halt(self, _number: int, _frame: FrameType | None) -> None:
        self._halted = True
        if (task := self._task) is not None:
            self._task = None
            self._raise(task, TaskStopped())

    @contextmanager
    def window(self, task: int) -> Iterator[None]:
        """For the block, the limits hold, and the task may be stopped."""
        with self._alarm(task):
            self._task = task
            try:
                if self._halted:
                    raise TaskStopped
                yield
            finally:
                self._task = None

    @contextmanager
    def _alarm(self, task: int) -> Iterator[None]:
        soft, hard, quiet = self.limits
        if (soft is hard is quiet is None) or threading.current_thread() is not threading.main_thread():
            yield
            return
        begun = self.beaten = clock.monotonic()
        program = signal.getsignal(signal.SIGALRM)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        rings_at = begun + left if left > 0 else math.inf
        """When the alarm of the program rings, which had the timer: pytest-timeout sets one, for example."""

        def arm() -> None:
            moments = [begun + limit for limit in (soft, hard) if limit is not None]
            if quiet is not None:
                moments.append(self.beaten + quiet)
            if callable(program):
                moments.append(rings_at)
            left = min(moments, default=math.inf) - clock.monotonic()
            if left < math.inf:
                signal.setitimer(signal.ITIMER_REAL, max(left, _SHORTEST))

        def ring(number: int, frame: FrameType | None) -> None:
            nonlocal soft, rings_at
            now = clock.monotonic()
            error: BaseException | None = None
            if callable(program) and now >= rings_at:
                rings_at = now + interval if interval > 0 else math.inf
                arm()  # a limit that is over as well rings next
                program(number, frame)
            elif hard is not None and now >= begun + hard:
                error = TimeLimitExceeded()
            elif quiet is not None and now >= self.beaten + quiet:
                error = HeartbeatTimeout()
            else:
                if soft is not None and now >= begun + soft:
                    soft, error = None, SoftTimeLimitExceeded()
                arm()
            if error is not None:
                self._raise(task, error)

        try:
            with answering((signal.SIGALRM,), ring):
                arm()
                try:
                    yield
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            if rings_at < math.inf:
                signal.setitimer(signal.ITIMER_REAL, max(rings_at - clock.monotonic(), _SHORTEST), interval)
