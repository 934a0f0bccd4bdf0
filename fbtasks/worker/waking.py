"""What the worker's loop waits for: events of the database, wakes of other threads, and descriptors."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""One that needs no descriptor of its own, so that a worker that has used up its descriptors still waits."""


class Waker:
    """A pipe that wakes the loop."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        """Ends the wait; from any thread."""
        with suppress(BlockingIOError):  # the pipe is full of wakes already
            os.write(self._write, b"!")

    def wait(self, timeout: float, filenos: Iterable[int]) -> set[int]:
        """Waits for a wake or *filenos*. Returns which descriptors are readable."""
        with Selector() as selector:
            for fileno in (self._read, *filenos):
                selector.register(fileno, selectors.EVENT_READ)
            return {key.fd for key, _ in selector.select(timeout)}

    def clear(self) -> None:
        """Forgets the wakes so far."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._read)
        os.close(self._write)
