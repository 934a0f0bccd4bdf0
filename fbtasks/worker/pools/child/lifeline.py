"""Ends a child process when its worker dies, or when it can serve no more."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Final, NoReturn

from fbtasks.system.descriptors import fill_standard
from fbtasks.system.threads import LEFT_ALONE, answer, unblock
from fbtasks.worker.logs.stream import identities, takes_more

BROKEN: Final = 70
"""The exit code of a child process that can run no more tasks (EX_SOFTWARE of ``sysexits.h``)."""
_STDERR: Final = 2
_AT_ONCE: Final = 4096
"""Bytes that a pipe which is ready to be written to takes without waiting (PIPE_BUF)."""
_SHORTEST: Final = b"fbtasks: a child process can run no more tasks and ends.\n"

_stderr = identities((_STDERR,))


def leave(why: str) -> NoReturn:
    """Ends this process at once, and says why on the standard error, with the exception that is being handled.

    For a process in which a task may have broken anything: the log and the exit handlers are not used, memory need not
    be left, and a standard error that nothing reads, or whose number stands for another file by now, is left alone.
    """
    try:
        _say_last(why)
    finally:
        os._exit(BROKEN)


def _say_last(why: str) -> None:
    if not _stderr or identities((_STDERR,)) != _stderr or not takes_more(_STDERR):
        return
    try:
        trace = "" if sys.exc_info()[1] is None else traceback.format_exc()
        text = f"fbtasks: child process {os.getpid()} can run no more tasks and ends: {why}\n{trace}"
        last = text.encode("utf-8", "backslashreplace")
    except BaseException:  # noqa: BLE001  # there is no memory left for more
        last = _SHORTEST
    os.write(_STDERR, last if len(last) <= _AT_ONCE else last[: _AT_ONCE - 4] + b"...\n")


def die_with_parent(parent: int) -> None:
    """Leaves the signals that ask to end to the worker, which decides when this process ends; and ends when it does.

    *parent* is the worker's process id: it may have ended before this process asked to be told. The worker starts this
    process with these signals deferred, so that one that reaches a whole group of processes does not end it before.
    """
    fill_standard()
    for number in LEFT_ALONE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            answer(number, lambda *_: None)  # a handler, not SIG_IGN: what tasks start gets the default back
    unblock(LEFT_ALONE)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
