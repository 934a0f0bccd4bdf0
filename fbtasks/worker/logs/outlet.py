"""Writing to a file that may have stopped taking what is written: a pipe or a terminal that nothing reads now.

A worker's loop logs, and a heartbeat that waits for a line of the log would cost the worker its tasks.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from fbtasks.system import sockets
from fbtasks.system.threads import Background

MOST: Final = 1 << 20
"""Bytes that wait for a file that takes no more."""
_PATIENCE: Final = 1.0
"""Seconds that a caller waits when these are used up, before lines are dropped."""
_FLUSH: Final = 2.0
"""Seconds that what waits may take at the end."""


class Outlet:
    """Writes to one descriptor, from any thread and in order, and waits for a second at most.

    What is not taken at once waits and is written by a thread; when too much waits, lines are dropped, and counted.
    """

    def __init__(self, descriptor: int, most: int = MOST) -> None:
        self._descriptor = descriptor
        self._most = most
        self._write = _immediate(descriptor)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        self._changed = threading.Condition()
        self._thread: Background | None = None

    def write(self, data: bytes) -> None:
        """Writes *data*, one or several lines, or has it wait. Raises :class:`OSError` when it cannot be written."""
        with self._changed:
            if not self._waiting:
                data = data[self._write(data) :]
            if data and self._has_room(data):
                self._put(data)

    def _has_room(self, data: bytes) -> bool:
        def room() -> bool:
            return self._size + len(data) <= self._most

        if not self._lost and not room():
            self._changed.wait_for(room, _PATIENCE)
        if self._lost or not room():
            self._lost += data.count(b"\n")
            return False
        return True

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._thread is None:
            self._thread = Background(target=self._drain, name="fbtasks-outlet")
            self._thread.start()
        self._changed.notify_all()

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            with suppress(OSError):
                write_all(self._descriptor, data)
            with self._changed:
                self._waiting.popleft()
                self._size -= len(data)
                if self._lost and self._size <= self._most // 2:
                    lost, self._lost = self._lost, 0
                    lines, them = ("line of the log is", "it") if lost == 1 else ("lines of the log are", "them")
                    self._put(b"fbtasks: %d %s lost: nothing took %s.\n" % (lost, lines.encode(), them.encode()))
                self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all is written, for two seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _FLUSH)


class Stream:
    """A text stream of which what is written goes through an outlet."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._outlet = Outlet(stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Writes it, or has it wait."""
        self._outlet.write(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Nothing: what waits is written as soon as it can be."""

    def finish(self) -> None:
        """Waits a moment for what has not been written."""
        self._outlet.flush()


def _immediate(descriptor: int) -> Callable[[bytes], int]:
    """What writes as many bytes to *descriptor* as it takes at once, and returns how many."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return lambda data: os.write(descriptor, data)
    try:
        send = _sender(descriptor, kind)
    except OSError:  # another user's: the thread writes everything
        return lambda _: 0

    def write(data: bytes) -> int:
        try:
            return send(data)
        except BlockingIOError:
            return 0

    return write


def _sender(descriptor: int, kind: int) -> Callable[[bytes], int]:
    if stat.S_ISSOCK(kind):
        connection = sockets.of_descriptor(os.dup(descriptor))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT)
    # Opened anew, since whether it waits is not to change for the other processes that have the old one.
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_APPEND)
    return lambda data: os.write(own, data)


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
