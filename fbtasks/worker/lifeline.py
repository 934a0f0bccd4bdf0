"""What ties a process to the worker that started it."""

from __future__ import annotations

import os
import signal
import sys


def follow_parent(parent: int) -> None:
    """Leaves SIGINT and SIGTERM to the worker, which decides when this process ends; and ends when the worker does.

    *parent* is the worker's process id: it may have ended before this process asked to be told.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: what tasks start gets the default back
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
