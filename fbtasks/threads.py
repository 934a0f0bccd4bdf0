"""Threads that work behind a program's own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LEFT_ALONE: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
"""The signals that ask a program to end, as far as this system has them."""


@contextmanager
def deferred() -> Iterator[None]:
    """For the block, signals that ask to end wait in this thread; and in what the block starts, until it takes them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_ALONE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Background(threading.Thread):
    """A daemon thread that takes no signal that asks to end: the kernel gives these to the program's own threads."""

    def start(self) -> None:
        """Starts it. What it starts itself does not take them either."""
        self.daemon = True
        with deferred():
            super().start()
