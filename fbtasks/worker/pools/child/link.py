"""The child's ends of the sockets and of the shared memory that lead to its worker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fbtasks.run.interrupts import TaskStopped
from fbtasks.run.invocation import RunResult
from fbtasks.system import sockets
from fbtasks.tasks.request import Reports
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


class ChildReports(Reports):
    """Sends the messages of running tasks to the worker.

    What a task says may be interrupted at any moment. So its thread only leaves it here, and another one sends it.
    """

    def __init__(self, status: ChildStatus) -> None:
        self._status = status
        self._said: dict[tuple[int, str], Reported] = {}

    def beat(self, number: int) -> None:
        """Notes it in the memory that both share."""
        self._status.beat(number)

    def say(self, number: int, feature: str, data: bytes) -> None:
        """Keeps the last until it is sent."""
        self._said[number, feature] = Reported(number, feature, data)

    def take(self) -> list[Reported]:
        """Takes the messages since the last call."""
        taken: list[Reported] = []
        while self._said:
            with suppress(KeyError):  # the run has just ended
                taken.append(self._said.popitem()[1])
        return taken

    def end(self, number: int) -> None:
        """The run has ended: what it said is of no use any more."""
        for key in [*self._said] if self._said else ():
            if key[0] == number:
                self._said.pop(key, None)


class Link:
    """The three ways that lead to the worker."""

    def __init__(self, pipe: int, tasks: int, status: int, slots: int) -> None:
        for file in (pipe, tasks, status):
            os.set_inheritable(file, False)
        self.pipe = sockets.of_descriptor(pipe)
        self.tasks = sockets.of_descriptor(tasks)
        self.status = ChildStatus(slots, status)
        self.reports = ChildReports(self.status)
        self.slots = slots
        self._lock = threading.Lock()
        self._numbers = pipe, tasks
        self._files = identities(self._numbers)

    def check(self) -> None:
        """Ends this process when a task has closed the sockets, whatever their numbers stand for now."""
        if identities(self._numbers) != self._files:
            leave("a task has closed the file descriptors that lead to the worker.")

    @ending()
    def watch(self) -> None:
        """Looks from time to time whether this process can still serve; ends it when it cannot.

        What waits for a socket that was closed would wait without end; and without memory a slot may be lost in a
        library that catches the error.
        """
        full = 0
        while True:
            time.sleep(_LOOK)
            self.check()
            with suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
                for said in self.reports.take():
                    self.say(said)
            full = full + 1 if _is_memory_used_up() else 0
            if full >= _FULL:
                leave("its memory is used up.")

    def say(self, message: Message) -> None:
        """Tells the worker; from any thread."""
        with self._lock:
            self.pipe.sendall(pack_message(message))

    def words(self) -> Iterator[tuple[str, int]]:
        """Yields the interruptions that the worker sends, until it closes the socket."""
        with self.pipe.makefile("rb") as file:
            while len(data := file.read(WORD_SIZE)) == WORD_SIZE:
                yield unpack_word(data)

    def end(self, slot: int, result: RunResult) -> None:
        """Says what became of a task."""
        claim, outcome, elapsed, recorded = result.finished
        self.reports.end(claim.id)
        self.say(Ended(claim.id, outcome, elapsed, recorded))
        self.status.end(slot)
