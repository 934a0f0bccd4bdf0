"""A stream that may have stopped taking what is written: a pipe or a terminal that nothing reads now.

A worker's loop logs, and a heartbeat that waits for a line of the log would cost the worker its tasks.
"""

from __future__ import annotations

import atexit
import os
import select
import stat
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.system.showing import count
from fbtasks.system.threads import Endless

MOST: Final = 10_000
"""Lines that wait for a stream that takes no more."""
_FINISH: Final = 2.0
"""Seconds that what waits may take at the end."""
_GATHER: Final = 0.005
"""Seconds for which lines are gathered before they are written."""
_WHOLE: Final = 4096
"""Bytes that a pipe takes in one piece (PIPE_BUF), however many processes write to it."""


class Stream:
    """A text stream that a thread writes to. What does not fit into its queue is dropped, and counted.

    Not a :class:`logging.handlers.QueueHandler`: so the handler of an application is left as it is, and formats each
    line where it was logged.
    """

    def __init__(self, stream: Any, most: int = MOST) -> None:
        self._stream = stream
        self._file = identities((stream.fileno(),))
        self._most = most
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._put = self._written = self._lost = 0
        """Lines."""
        Endless(self._run, name="fbtasks-log").start()
        atexit.register(self.finish)

    @classmethod
    def of(cls, stream: Any) -> Any:
        """*stream*, or one for it. A regular file takes what is written; without a descriptor nothing is known."""
        with suppress(OSError, ValueError, AttributeError):
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return cls(stream)
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Queues *text*. The handler's lock sees to it that one thread calls this."""
        if self._put - self._written >= self._most:
            self._lost += 1
            return
        if self._lost:
            text = f"fbtasks: {count(self._lost, 'line')} of the log lost: nothing read them.\n{text}"
            self._lost = 0
        self._put += 1
        self._queue.put(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))

    def _run(self) -> None:
        more = b""
        while True:
            data, many = more or self._next(), 1
            while (more := b"" if self._queue.empty() else self._queue.get()) and len(data) + len(more) <= _WHOLE:
                data, many = data + more, many + 1
            with suppress(OSError, ValueError):  # it is closed
                number = self._stream.fileno()
                if identities((number,)) == self._file:  # else a task has closed it: the number may be another file's
                    write_all(number, data)
            self._written += many

    def _next(self) -> bytes:
        """Waits for a line, and then for others: to wake this thread for each line costs more than to run a task."""
        line = self._queue.get()
        clock.sleep(_GATHER)
        return line

    def flush(self) -> None:
        """Nothing: what waits is written as soon as it can be."""

    def finish(self) -> None:
        """Waits a moment for what has not been written."""
        until = clock.monotonic() + _FINISH
        while self._written < self._put and clock.monotonic() < until:
            clock.sleep(0.01)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes *data*, however long that takes."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            takes_more(descriptor, None)


def takes_more(descriptor: int, milliseconds: int | None = 0) -> bool:
    """Whether *descriptor* takes more bytes now, or so soon; None waits for that without end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(milliseconds))


def identities(files: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Which files these descriptors stand for; nothing when one of them stands for none."""
    try:
        return tuple((status.st_dev, status.st_ino) for status in map(os.fstat, files))
    except OSError:
        return ()
