"""Eager mode: a call is run where it is made, through the same serialisation and the same decisions."""

from __future__ import annotations

import uuid
from typing import Any

from fbtasks import AsyncResult, FBTasks
from fbtasks import timing as clock
from fbtasks.errors import ResultTimeout, TaskNotFound
from fbtasks.queue.notify.outcomes import Wait
from fbtasks.run.runner import Runner
from fbtasks.states import State
from fbtasks.system.showing import count
from fbtasks.tasks.call import Call, Claim, Failed, FeatureOutcome, Input, Reason, Requeue, Stored, Succeeded


class EagerResult(AsyncResult[Any]):
    """The result of a call that has been run already. All that it answers it has in memory."""

    def __init__(self, id: str, app: FBTasks, outcome: Stored | None, snoozed: float = 0.0) -> None:
        """*snoozed*: for how many seconds the task would have waited now. Then it has no outcome."""
        super().__init__(id, app)
        self._app = app
        self._snoozed = snoozed
        self._outcome: Stored | None = outcome

    def under(self, id: str) -> EagerResult:
        """Returns the same result under another *id*."""
        return EagerResult(id, self._app, self._outcome, self._snoozed)

    def revoke(self, *, terminate: bool = False) -> bool:  # noqa: ARG002  # it has ended
        """False: it has ended."""
        return False

    def cancel(self, *, terminate: bool = False) -> int:  # noqa: ARG002  # it has ended
        """0: it has ended."""
        return 0

    def forget(self) -> bool:
        """Drops the outcome. False when that was done before."""
        known, self._outcome = self._outcome is not None, None
        return known

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:  # noqa: ARG002  # nothing is waited for
        """The result, or the exception, as from a worker."""
        if self._snoozed:
            raise ResultTimeout(
                f"task {self.id} asked to be run again in {count(self._snoozed, 'second')}, and eager mode does not "
                "wait."
            )
        if self._outcome is None:
            raise TaskNotFound(f"the outcome of task {self.id!r} was forgotten.")
        return self._value(self._outcome) if propagate else self._value_or_error(self._outcome)

    async def aget(self, timeout: float | None = None) -> Any:
        """Returns the result as :meth:`get` does; it never waits."""
        return self.get(timeout)

    def _wait(self) -> Wait:
        wait = Wait(self.id)
        wait.stored, wait.unknown = self._outcome, self._outcome is None
        return wait

    def _stored(self) -> Stored | None:
        return self._outcome

    def _progress(self) -> None:
        return None

    def _state(self) -> tuple[State, int] | None:
        return None if self._outcome is None else (self._outcome.state, self._outcome.try_count)


def run_eagerly(app: FBTasks, call: Call, inputs: tuple[Input, ...] = ()) -> EagerResult:
    """Runs *call* here and now, with *inputs* as a step of a workflow. Retries follow at once, without their delays."""
    runner = Runner(app, eager=True)
    app.find_task(call.name)
    task_id = call.task_id or str(uuid.uuid4())
    tries = 0
    while True:
        claim = Claim(
            id=0, claim_id=0, name=call.name, queue=call.queue, priority=call.priority, try_count=tries,
            max_tries=call.max_tries, start=10 * clock.to_ms(clock.utcnow()), content_type=call.content_type,
            payload=call.payload, task_id=task_id, wanted=True, inputs=inputs,
        )  # fmt: skip
        ended = runner.serve(runner.run, claim)
        tries += 1
        match ended.finished.outcome:
            case Requeue(Reason.RETRY):
                continue
            case Requeue(Reason.SNOOZE, delay):
                return EagerResult(task_id, app, None, delay)
            case FeatureOutcome() as own:
                ran: EagerResult = own.run_eagerly(app)
                return ran.under(task_id)
            case Succeeded(content_type, result):
                stored = Stored(state=State.SUCCEEDED, try_count=tries, content_type=content_type or None,
                                result=result or None)  # fmt: skip
            case Failed(error_type, message, trace, args):
                stored = Stored(state=State.FAILED, try_count=tries, error_type=error_type, error_msg=message,
                                traceback=trace, result=args)  # fmt: skip
            case _:
                stored = Stored(state=State.CANCELLED, try_count=tries)
        return EagerResult(task_id, app, stored)
