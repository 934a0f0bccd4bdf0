"""The signals that ask a worker to stop.

A thread of its own hears them. A handler in Python would wait for the main thread, which may be inside the engine or,
in the solo pool, inside a task; and what it logs could come in the middle of another line.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from functools import partial
from types import FrameType
from typing import Final

from fbtasks import timing as clock
from fbtasks.system.threads import LEFT_ALONE, Endless, answer, end_by, signals_to_read
from fbtasks.worker.loop import Loop
from fbtasks.worker.pools.solo import SoloExecutor

logger = logging.getLogger("fbtasks.worker")

AGAIN: Final = 1.0
"""Seconds after which a second signal is one. Before, it belongs to the first: Ctrl-C reaches a process group and may
be passed on in it, and a service manager may send SIGTERM and SIGHUP together."""
PASSED_ON: Final = 0.2
"""Seconds in which that may happen. What comes later, somebody has typed, who waits for an answer."""


class Signals:
    """Drains *loop* at the first signal, and stops it at the second.

    *solo* is the executor whose tasks run in the main thread: of these the loop cannot take care meanwhile.
    """

    def __init__(self, loop: Loop, solo: SoloExecutor | None, grace: float) -> None:
        self._loop = loop
        self._drain = loop.drain
        self._solo = solo
        self._grace = grace
        self._lock = threading.Lock()
        self._first: float | None = None
        self._second = self._closed = self._answered = False
        self._left: float | None = None
        self._heard = [n for n in LEFT_ALONE if n == signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN]
        """Without those that were ignored when the worker was started, as by nohup or by ``&`` in a script."""

    def hear(self) -> None:
        """Begins to listen. To be called in the main thread."""
        Endless(partial(self._listen, signals_to_read()), name="fbtasks-signals").start()
        for number in self._heard:
            answer(number, self._in_main_thread)
        if self._solo is not None:
            self._solo.heed_halt()

    def close(self) -> None:
        """Does nothing more about signals: the loop is being closed."""
        with self._lock:
            self._closed = True

    def leave(self) -> None:
        """The worker has ended: lets signals end the process as they do any other, if it is still there in a second."""
        self._left = clock.monotonic()

    def _in_main_thread(self, number: int, _frame: FrameType | None) -> None:
        if self._left is not None and clock.monotonic() - self._left > AGAIN:
            end_by(number)

    def _listen(self, read: int) -> None:
        poll = select.poll()
        poll.register(read, select.POLLIN)
        while True:
            patience = self._patience()
            numbers = os.read(read, 64) if poll.poll(None if patience is None else 1000 * patience) else b""
            with self._lock:
                if self._closed:
                    return
                for number in numbers:
                    if number in self._heard:
                        self._take(signal.Signals(number))
                if self._patience() == 0:
                    self._halt()

    def _patience(self) -> float | None:
        """Seconds that the task in the main thread still has; None without end."""
        if self._solo is None or self._first is None or self._second:
            return None
        return max(0.0, self._first + self._grace - clock.monotonic())

    def _take(self, number: signal.Signals) -> None:
        if self._first is None:
            self._first = clock.monotonic()
            logger.info("Signal %s: stopping.", number.name)
            self._drain.begin()
            if self._solo is not None and (claim := self._solo.running) is not None:
                self._drain.say_waiting([claim])
        elif self._second:
            pass
        elif (after := clock.monotonic() - self._first) <= AGAIN:
            if after > PASSED_ON and not self._answered:
                self._answered = True
                remedy = f"one more stops at once, {AGAIN:g} s after the first"
                logger.info("Signal %s: stopping already; %s.", number.name, remedy)
        else:
            logger.warning("Signal %s again: stopping at once.", number.name)
            self._drain.at_once = True
            self._halt()
        self._loop.wake(())

    def _halt(self) -> None:
        self._second = True
        if self._solo is not None:
            self._solo.halt()
