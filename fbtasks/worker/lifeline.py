"""What ties a process to the worker that started it."""

from __future__ import annotations

import os
import signal
import sys

from fbtasks.threads import LEFT_ALONE


def follow_parent(parent: int) -> None:
    """Leaves the signals that ask to end to the worker, which decides when this process ends; and ends when it does.

    *parent* is the worker's process id: it may have ended before this process asked to be told. The worker starts this
    process with these signals deferred, so that one that reaches a whole group of processes does not end it before.
    """
    for number in LEFT_ALONE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: what tasks start gets the default back
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_ALONE)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
