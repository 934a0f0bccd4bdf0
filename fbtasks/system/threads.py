"""Threads that work behind a program's own, and the signals that a process answers."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fbtasks.timing import Quiet, sleep

LEFT_ALONE: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
"""The signals that ask a program to end, as far as this system has them."""
AGAIN: Final = 1.0
"""Seconds after which a loop that has raised is begun anew."""

logger = logging.getLogger(__name__)
Handler = Callable[[int, FrameType | None], Any]
_wakeup: tuple[int, int] | None = None
"""The descriptor to which signals are written for :func:`signals_to_read`, and the one before it."""
_forking = threading.local()


class _Answer(partial[Any]):
    """A handler of ours. A subclass of partial, since that adds no line to a traceback."""

    former: Any
    """The handler of the signal before the first of ours."""


def answer(number: int, handler: Handler) -> None:
    """Sets *handler* for a signal, and unblocks it where the program was started with it blocked.

    To be called in the main thread. A process inherits which signals are blocked, as it does which are ignored. A
    process that is forked from this one does not inherit the handler.
    """
    before = signal.getsignal(number)
    ours = _Answer(handler)
    ours.former = before.former if isinstance(before, _Answer) else before
    signal.signal(number, ours)
    unblock((number,))


@contextmanager
def answering(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """For the block, *handler* answers these signals."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            answer(number, handler)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def signals_to_read() -> int:
    """Returns a descriptor from which the numbers of the signals that have a handler can be read as they come.

    To be called in the main thread. Signals of processes that are forked from this one are not written there.
    """
    global _wakeup
    read, write = os.pipe()
    os.set_blocking(write, False)
    _wakeup = write, signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _before_fork() -> None:
    """Has signals to a child wait until they do what they are to do there."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    _forking.ours = {number: ours for number, ours in handlers.items() if isinstance(ours, _Answer)}
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _forking.ours)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forked() -> None:
    """In the child: signals do what they did before our handlers, with which nothing would end it."""
    for number, ours in _forking.ours.items():
        signal.signal(number, signal.SIG_DFL if ours.former is None else ours.former)
    if _wakeup is not None:
        written, former = _wakeup
        now = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(former if now == written else now, warn_on_full_buffer=False)
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)


def unblock(numbers: Iterable[int]) -> None:
    """Lets these signals through to this thread."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def end_by(number: int, _frame: FrameType | None = None) -> None:
    """Ends this process by a signal, as one without a handler ends by it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # it goes on: the kernel does not end process 1 of a container so


def end_by_signals() -> None:
    """Makes process 1 of a container end by the signals that ask for it, until it has handlers of its own.

    The kernel drops a signal to process 1 that has no handler; every other process ends by it.
    """
    if os.getpid() == 1:
        for number in LEFT_ALONE:
            if signal.getsignal(number) == signal.SIG_DFL:
                answer(number, end_by)


def _ends(handler: Any) -> bool:
    return handler.func is end_by if isinstance(handler, _Answer) else handler == signal.SIG_DFL


def processor_time(thread: int) -> float:
    """Seconds of processor that a thread of this process has used; 0.0 when that cannot be known."""
    fields = _facts(thread)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def is_busy(thread: int) -> bool:
    """Whether a thread of this process computes or waits for the disk at this moment, as far as that can be known."""
    return _facts(thread)[:1] in (["R"], ["D"])


def _facts(thread: int) -> list[str]:
    try:
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def leaving() -> Iterator[None]:
    """For the block, in the main thread, signals that would end the process raise :class:`SystemExit`: it cleans up."""
    ending = [number for number in LEFT_ALONE if _ends(signal.getsignal(number))]
    with answering(ending, lambda number, _: sys.exit(128 + number)):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """For the block, signals that ask to end wait in this thread; and in what the block starts, until it takes them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_ALONE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Background(threading.Thread):
    """A daemon thread that takes no signal that asks to end: the kernel gives these to the program's own threads."""

    def start(self) -> None:
        """Starts it. What it starts itself does not take them either."""
        self.daemon = True
        with deferred():
            super().start()


class Endless(Background):
    """A background thread for a loop that the process cannot do without: begun anew when it raises."""

    def __init__(self, loop: Callable[[], object], name: str) -> None:
        super().__init__(name=name)
        self._loop = loop

    def run(self) -> None:
        """Logs what the loop raises, once a minute at most."""
        quiet = Quiet()
        while True:
            try:
                self._loop()
            except Exception:
                if quiet.over():
                    logger.exception("The thread %s goes on after an error", self.name)
                sleep(AGAIN)
            else:
                return
