"""Ending a wait from another thread, be it a wait in a thread or in an event loop."""

from __future__ import annotations

import select
import socket
from contextlib import suppress


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
        with suppress(OSError, ValueError):
            select.select([self._reader], [], [], max(0.0, seconds))
        self.clear()

    def close(self) -> None:
        """Gives the descriptors back."""
        self._reader.close()
        self._writer.close()
