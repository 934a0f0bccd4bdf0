"""Threads that work behind a program's own, and the signals that a process answers."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


def answer(number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
    """Sets *handler* for a signal, and unblocks it where the program was started with it blocked.

    To be called in the main thread. A process inherits which signals are blocked, as it does which are ignored.
    """
    signal.signal(number, handler)
    unblock((number,))


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
                signal.signal(number, end_by)


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
    before = {number: signal.getsignal(number) for number in LEFT_ALONE}
    ending = [number for number in LEFT_ALONE if before[number] in (signal.SIG_DFL, end_by)]
    try:
        for number in ending:
            answer(number, lambda number, _: sys.exit(128 + number))
        yield
    finally:
        for number in ending:
            signal.signal(number, before[number])


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
