"""The solo pool: tasks run in the worker's own thread, one at a time, for debugging."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fbtasks.run.interrupts import AlarmInterrupts
from fbtasks.run.reports import RunReports
from fbtasks.run.runner import Runner
from fbtasks.run.transactional import TransactionalRunner
from fbtasks.tasks.call import RELEASED, Claim, Failed, Finished, Reason, Requeue, Said, Several, Succeeded, extra_of
from fbtasks.worker.pools.base import Executor

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class SoloExecutor(Executor):
    """Runs each claim inside ``submit``. All time limits are exceptions inside the task, in the main thread only."""

    def __init__(self, app: FBTasks, *, interruptible: bool = False) -> None:
        """*interruptible*: a Ctrl-C is for the program, and no outcome of the task that runs."""
        self._alarm = AlarmInterrupts()
        self._reports = RunReports(self._alarm.beat)
        self._runner = Runner(app, interrupts=self._alarm, reports=self._reports, interruptible=interruptible)
        self._worker_id = 0
        self._transactional = TransactionalRunner(self._runner, lambda: self._worker_id, 1)
        self._done: list[Finished] = []
        self._said: list[Said] = []
        self._halted = False
        self.running: Claim | None = None
        """What runs at this moment, for other threads."""

    def heed_halt(self) -> None:
        """Makes :meth:`halt` possible. For the main thread, in which the tasks run."""
        self._alarm.heed_halt()

    def halt(self) -> None:
        """Stops the task that runs, which is given back; from any thread."""
        self._halted = True
        if (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGUSR2)
        self._transactional.cancel_statement()  # an exception does not end it

    def serve(self, worker_id: int, database: bytes = b"") -> None:  # noqa: ARG002  # the worker's own
        """As this worker transactional tasks record their outcomes."""
        self._worker_id = worker_id

    def free(self) -> int:
        """One, until what it ran has been collected."""
        return 0 if self._done else 1

    def busy(self) -> list[Claim]:
        """Nothing ever runs between two calls."""
        return []

    def submit(self, claims: Sequence[Claim]) -> list[Claim]:
        """Runs the one claim to its end."""
        (claim,) = claims
        options = self._runner.app.tasks[claim.name].options
        self._alarm.limits = options.soft_time_limit, options.time_limit, options.heartbeat_timeout
        self.running = claim
        runner = self._transactional if options.transactional else self._runner
        finished = self._runner.serve(runner.run, claim).finished
        self.running = None
        for feature, data in self._reports.take(claim.id, ended=True):  # before, the worker is busy with the task
            self._said += [Said(part.id, part.claim_id, feature, data) for part in claim.parts]
        if self._halted and not finished.recorded and not isinstance(finished.outcome, Succeeded):
            finished = _given_back(finished)  # whatever it made of being stopped
        self._done.append(finished)
        return []

    def collect(self) -> list[Finished]:
        """Returns the claims that ``submit`` ran."""
        done, self._done = self._done, []
        return done

    def take_said(self) -> list[Said]:
        """Returns what the claims have said that ``submit`` ran."""
        said, self._said = self._said, []
        return said

    def stop(self, hurry: Callable[[], bool]) -> list[Finished]:  # noqa: ARG002  # nothing is waited for
        """Closes the transactional connection. Returns what ``submit`` ran and was not collected."""
        self._transactional.close()
        return self.collect()


def _given_back(finished: Finished) -> Finished:
    """Returns the outcome of a stopped task, which goes back to its queue; of a run of changes, the rest of it."""
    outcome = finished.outcome
    if isinstance(outcome, Several):
        ends = (each if isinstance(each, Succeeded) else RELEASED for each in outcome.outcomes)
        return finished._replace(outcome=Several(tuple(ends)))
    left = extra_of(outcome)
    if left is None or isinstance(outcome, Failed):
        return finished._replace(outcome=RELEASED)
    return finished._replace(outcome=Requeue(Reason.CONTINUE, extra=left))
