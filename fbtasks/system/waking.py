"""Wakes a thread or an event loop that waits for other threads and for descriptors."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

_MOST: Final = 86_400.0
"""Seconds of the longest single wait: what is asked of the system in milliseconds must not grow too large for it."""
_Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""One that needs no descriptor of its own, so that a process that has used up its descriptors still waits."""


class Waker:
    """A descriptor that becomes readable when it is woken.

    What the waiting thread is to see is written before :meth:`wake`, and read after :meth:`clear`.
    """

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
        with suppress(OSError):  # nothing to read, or closed meanwhile
            self._reader.recv(4096)
        self.woken = False

    def select(self, seconds: float, others: Iterable[int] = ()) -> set[int]:
        """Waits until woken, until one of the descriptors *others* is readable, or for *seconds*.

        Returns the descriptors that are readable. It stays woken until :meth:`clear`.
        """
        with _Selector() as selector:
            for descriptor in (self.fileno(), *others):
                selector.register(descriptor, selectors.EVENT_READ)
            return {key.fd for key, _ in selector.select(min(max(0.0, seconds), _MOST))}

    def wait(self, seconds: float) -> None:
        """Waits until woken, or for *seconds*; then it is not woken any more."""
        with suppress(OSError, ValueError):  # closed meanwhile
            self.select(seconds)
        self.clear()

    def close(self) -> None:
        """Closes the descriptors."""
        self._reader.close()
        self._writer.close()
