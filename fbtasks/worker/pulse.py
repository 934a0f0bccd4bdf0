"""Heartbeats of a solo worker, from a process beside it: its own thread runs user code, which may take any time.

``python -m fbtasks.worker.pulse PARENT FD``. The process ends with its worker, and is silent while that is stopped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from fbtasks.config import Settings
from fbtasks.errors import DatabaseError
from fbtasks.store import workers
from fbtasks.store.database import Database
from fbtasks.store.session import Session
from fbtasks.worker import hosts
from fbtasks.worker.executors.process import reap
from fbtasks.worker.lifeline import follow_parent
from fbtasks.worker.membership import Membership, Rhythm


class Pulse:
    """The process, as its worker has it. Settings and password go to it over a socket."""

    def __init__(self, settings: Settings, membership: Membership) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "fbtasks.worker.pulse", str(os.getpid()), str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0
        )
        theirs.close()
        reap(self._process)
        self._pipe: Connection[object, object] = Connection(ours.detach())
        self._pipe.send((replace(settings, auto_migrate=False), membership.rhythm))
        self._serve(membership.worker_id)
        membership.registered = self._serve

    def _serve(self, worker_id: int) -> None:
        """As this worker it sends heartbeats from now on."""
        with suppress(OSError):  # it has died
            self._pipe.send(worker_id)

    def stop(self) -> None:
        """Ends the process."""
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> int:
    """Runs until the socket is closed."""
    worker, file = map(int, arguments)
    follow_parent(worker)
    os.set_inheritable(file, False)
    pipe: Connection[Any, Any] = Connection(file)
    settings, rhythm = pipe.recv()
    database = Database(settings)
    session: Session | None = None
    worker_id = 0
    while True:
        if pipe.poll(rhythm.heartbeat):
            try:
                worker_id = pipe.recv()
            except EOFError:
                break
            continue
        if hosts.is_stopped(worker):
            continue
        try:
            session = session or database.open()
            _beat(session, worker_id, rhythm)
        except DatabaseError:
            if session is not None:
                session.close()
            session = None
    if session is not None:
        session.close()
    return 0


def _beat(session: Session, worker_id: int, rhythm: Rhythm) -> None:
    session.run(
        lambda t: workers.heartbeat(t, worker_id, lease=rhythm.lease, draining=False, conflicts=0, grace=rhythm.grace)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
