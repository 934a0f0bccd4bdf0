"""What wakes a thread or an event loop that waits, from another thread."""

from __future__ import annotations

import math
import select
import socket
import threading
from contextlib import suppress
from typing import Final

from fbtasks import clock

_MOST: Final = 86_400.0
"""Seconds of the longest single wait: what is asked of the system in milliseconds must not grow too large for it."""


class Waker:
    """A descriptor that becomes readable when it is woken."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.woken = False
        """Whether it is readable."""

    def fileno(self) -> int:
        """The descriptor, for an event loop."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Ends the wait, or the next one. From any thread."""
        if not self.woken:
            self.woken = True
            with suppress(OSError):  # closed meanwhile
                self._writer.send(b"\0")

    def clear(self) -> None:
        """Makes the next wait one that waits."""
        with suppress(OSError):
            self._reader.recv(4096)
        self.woken = False

    def wait(self, seconds: float) -> None:
        """Waits until woken, or for *seconds*."""
        with suppress(OSError, ValueError):  # closed meanwhile
            _wait_for(self._reader, min(max(0.0, seconds), _MOST))
        self.clear()

    def close(self) -> None:
        """Closes the descriptors."""
        self._reader.close()
        self._writer.close()


def _wait_for(reader: socket.socket, seconds: float) -> None:
    if hasattr(select, "poll"):  # select() takes no descriptors from 1024 on
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.poll(seconds * 1000)
    else:
        select.select([reader], [], [], seconds)


class Alarm:
    """The moment for which other threads ask the one that waits here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung = False
        self.at = math.inf
        """The earliest moment asked for, in monotonic time."""

    def ask_for(self, moment: float) -> None:
        """Has the waiting thread wake at *moment*, if it would not before."""
        if moment < self.at:
            self.at = moment
            self.ring()

    def ring(self) -> None:
        """Ends the wait, or the next one."""
        with self._changed:
            self._rung = True
            self._changed.notify()

    def clear(self) -> None:
        """Forgets what was asked for."""
        self.at = math.inf

    def wait(self, until: float) -> None:
        """Waits until *until*, or until another moment is asked for."""
        with self._changed:
            if not self._rung:
                self._changed.wait(max(0.0, until - clock.monotonic()))
            self._rung = False
