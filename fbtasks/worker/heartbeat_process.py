"""Heartbeats of a solo worker, from a process beside it: its own thread runs user code, which may take any time.

``python -m fbtasks.worker.heartbeat_process PARENT FD STATUS``. The process ends with its worker, and sends nothing
while that is stopped.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from fbtasks.config import Settings
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import Session
from fbtasks.queue.register import hosts
from fbtasks.queue.register.registration import Registration
from fbtasks.system import sockets
from fbtasks.timing import Backoff
from fbtasks.worker.connection import FIRST, LAST
from fbtasks.worker.lease import SOON, Lease
from fbtasks.worker.pools.child.lifeline import die_with_parent
from fbtasks.worker.pools.child_status import ChildStatus
from fbtasks.worker.pools.processes import Process, starting


class HeartbeatProcess:
    """The process, as its worker has it. Settings and password go to it over a socket."""

    def __init__(self, settings: Settings, lease: Lease, database: bytes) -> None:
        with starting(), ExitStack() as undo:
            ours, theirs = sockets.pair()
            undo.enter_context(ours)
            with theirs:
                status = ChildStatus(0)
                undo.callback(status.close)
                status.database, status.shared.worker_id = database, lease.worker_id
                files = (theirs.fileno(), status.file)
                self._process = Process("fbtasks.worker.heartbeat_process", (os.getpid(), *files), files)
            undo.pop_all()
        self._pipe: Connection[object, object] = Connection(ours.detach())
        self._pipe.send((replace(settings, auto_migrate=False), lease.rhythm))
        lease.companion = status

    def stop(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.kill(patience=5)
        self._process.close()


def main(arguments: list[str]) -> int:
    """Runs until the socket is closed."""
    worker, *files = map(int, arguments)
    die_with_parent(worker)
    for file in files:
        os.set_inheritable(file, False)
    pipe: Connection[Any, Any] = Connection(files[0])
    status = ChildStatus(0, files[1])
    settings, rhythm = pipe.recv()
    registration, backoff = Registration("worker", rhythm), Backoff(FIRST, LAST)
    database = Database(settings)
    database.known.keep(lambda: status.database)
    database.take_note()  # the worker has said it
    session: Session | None = None
    pause = rhythm.heartbeat
    while not pipe.poll(pause):
        if hosts.is_stopped(worker):
            continue
        registration.monitor.begin()
        try:
            session = session or database.open()
            registration.heartbeat(partial(session.run, point="heartbeat"), status.shared.worker_id)
            status.shared.stalled_until = registration.monitor.stalled_until
            pause = rhythm.heartbeat
            backoff.reset()
        except DatabaseError:
            if session is not None:
                session.close()
            session = None
            registration.monitor.connection_lost()
            backoff.last = LAST if registration.monitor.overdue else SOON
            pause = backoff.next()
    if session is not None:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
