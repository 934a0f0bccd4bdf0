"""The child's ends of the sockets and of the shared memory that lead to its worker."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fbtasks import timing as clock
from fbtasks.run.interrupts import TaskStopped
from fbtasks.run.invocation import RunResult
from fbtasks.run.reports import RunReports
from fbtasks.system import sockets
from fbtasks.worker.logs.stream import identities
from fbtasks.worker.pools.child.lifeline import leave
from fbtasks.worker.pools.child_status import ChildStatus
from fbtasks.worker.pools.wire import WORD_SIZE, Ended, Message, Reported, pack_message, unpack_word

_LOOK: Final = 1.0
"""Seconds between looks whether the way to the worker is still there; and between messages of what tasks say."""
_FULL: Final = 3
"""Looks in a row without memory before that is believed to last."""
_SPARE: Final = 1 << 20
"""Bytes of memory without which no process works."""


@contextmanager
def ending() -> Iterator[None]:
    """Ends this process when an exception escapes the block, so that its worker hears of it and no slot is lost."""
    try:
        yield
    except TaskStopped:  # it came when the task had just ended; its outcome does not count any more
        os._exit(1)
    except BaseException:  # noqa: BLE001  # whatever it is, this process is not to go on without a slot
        leave("an error outside of the tasks.")


def _is_memory_used_up() -> bool:
    try:
        bytearray(_SPARE)
    except MemoryError:
        return True
    return False


class Link:
    """The three ways that lead to the worker."""

    def __init__(self, pipe: int, tasks: int, status: int, slots: int) -> None:
        for file in (pipe, tasks, status):
            os.set_inheritable(file, False)
        self.pipe = sockets.of_descriptor(pipe)
        self.tasks = sockets.of_descriptor(tasks)
        self.status = ChildStatus(slots, status)
        self.reports = RunReports(self.status.beat)
        """What tasks say may be interrupted at any moment: so their threads leave it here, and others send it."""
        self.slots = slots
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._numbers = pipe, tasks
        self._files = identities(self._numbers)

    def check(self) -> None:
        """Ends this process when a task has closed the sockets, whatever their numbers stand for now."""
        if identities(self._numbers) != self._files:
            leave("a task has closed the file descriptors that lead to the worker.")

    @ending()
    def watch(self, heed: Callable[[str, int], None]) -> None:
        """Has *heed* do what the worker says about running tasks, until it closes the socket.

        From time to time it says what tasks say, and looks whether this process can still serve; ends it when it
        cannot. What waits for a socket that was closed would wait without end; and without memory a slot may be lost
        in a library that catches the error.
        """
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        full, words, next_look = 0, b"", clock.monotonic() + _LOOK
        while True:
            heard = poll.poll(max(0.0, 1000 * (next_look - clock.monotonic())))
            self.check()
            with suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
                if heard:
                    if not (data := self.pipe.recv(4096, socket.MSG_DONTWAIT)):
                        return
                    words += data
                    while len(words) >= WORD_SIZE:
                        heed(*unpack_word(words[:WORD_SIZE]))
                        words = words[WORD_SIZE:]
                if clock.monotonic() < next_look:
                    continue
                numbers = [*self.reports.runs]
                running = self.status.running()
                for number in numbers:
                    self._tell(number, ended=number not in running)
            next_look = clock.monotonic() + _LOOK
            full = full + 1 if _is_memory_used_up() else 0
            if full >= _FULL:
                leave("its memory is used up.")

    def _tell(self, number: int, *, ended: bool) -> None:
        with self._telling:  # what another thread has taken is said before the end of the run
            for feature, data in self.reports.take(number, ended=ended):
                self.say(Reported(number, feature, data))

    def say(self, message: Message) -> None:
        """Tells the worker; from any thread."""
        with self._lock:
            self.pipe.sendall(pack_message(message))

    def end(self, slot: int, result: RunResult) -> None:
        """Says what became of a task."""
        claim, outcome, elapsed, recorded = result.finished
        if self.reports.runs:
            self._tell(claim.id, ended=True)
        self.say(Ended(claim.id, outcome, elapsed, recorded))
        self.status.end(slot)
