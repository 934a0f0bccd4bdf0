"""Ending a wait from another thread, be it a wait in a thread or in an event loop."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Final

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
        """What an event loop watches."""
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
        """Gives the descriptors back."""
        self._reader.close()
        self._writer.close()


def _wait_for(reader: socket.socket, seconds: float) -> None:
    if hasattr(select, "poll"):  # select() takes no descriptors from 1024 on
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.poll(seconds * 1000)
    else:
        select.select([reader], [], [], seconds)
