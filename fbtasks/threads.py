"""Threads that work behind a program's own."""

from __future__ import annotations

import signal
import threading

LEFT_ALONE = (signal.SIGINT, signal.SIGTERM)


class Background(threading.Thread):
    """A daemon thread that takes no SIGINT and no SIGTERM: the kernel gives them to the program's own threads."""

    def start(self) -> None:
        """Starts it. What it starts itself does not take them either."""
        self.daemon = True
        if not hasattr(signal, "pthread_sigmask"):
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_ALONE)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
