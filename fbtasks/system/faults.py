"""Named places around every commit where a test can have this process killed, to see that nothing is lost there.

Off unless the environment variable FBTASKS_FAULT names one, as ``claim.after`` or, for the third time it is reached,
``claim.after:3``. With ``claim.after:3:hang`` the process is not killed but hangs there until it gets SIGCONT. With
FBTASKS_FAULT_FILE this happens to the first process alone that creates the file of that name.
``before`` is just before the commit, ``after`` just after it. The points: enqueue, claim, finish, effect (a
transactional task's), heartbeat, rescue, promote, tick, cancel, register, migrate (each step of a migration); and
exchange, a commit that is a finish as well.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "FBTASKS_FAULT"
armed: bool = VARIABLE in os.environ
"""Looked at before :func:`reach` is called, so that a point costs nothing in production."""
_name, _times, _action, *_ = [*os.environ.get(VARIABLE, "").split(":"), "", ""]
_left = int(_times or 1)


def reach(point: str, moment: str) -> None:
    """Kills this process, or has it hang, when *point* and *moment* are what the environment names.

    A commit that is several points names them with spaces between.
    """
    global _left
    if _name not in [f"{each}.{moment}" for each in point.split()]:
        return
    _left -= 1
    if _left != 0 or not _is_first():
        return
    if _action == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
        signal.sigwait([signal.SIGCONT])
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_first() -> bool:
    if (path := os.environ.get("FBTASKS_FAULT_FILE")) is None:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
