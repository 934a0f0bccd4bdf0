"""Requests to stop what this worker runs."""

from __future__ import annotations

from fbtasks.call import Cancelled
from fbtasks.firebird.session import Session
from fbtasks.worker.executors.base import Executor


class Cancellations:
    """Stops tasks on request."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.requested = False
        """Whether an event or a heartbeat has told of requests; set from any thread."""

    def heed(self, session: Session, worker_id: int) -> None:
        """Stops what is to be stopped."""
        if self.requested:
            self.requested = False
            for (task,) in session.read("stops", worker_id):
                self._executor.interrupt(task, Cancelled("cancelled on request"))
