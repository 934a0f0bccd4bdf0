"""Eager mode: a call is run where it is made, through the same serialisation and the same decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fbtasks import clock
from fbtasks.call import Call, Claim, Failed, Retry, Stored, Succeeded
from fbtasks.definition import Task
from fbtasks.result import AsyncResult
from fbtasks.runner import Runner
from fbtasks.states import State

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class EagerResult(AsyncResult[Any]):
    """The result of a call that has been run already."""

    def __init__(self, app: FBTasks, id: str, stored: Stored) -> None:
        super().__init__(app, id)
        self._outcome = stored

    def _stored(self) -> Stored:
        return self._outcome

    def get(self, timeout: float | None = None) -> Any:  # noqa: ARG002  # nothing is waited for
        """The result, or the exception, as from a worker."""
        return self._value(self._outcome)


def run_eagerly(app: FBTasks, call: Call, task: Task[..., Any] | None) -> EagerResult:
    """Runs *call* here and now. Retries follow at once, without their delays."""
    del task
    runner = Runner(app)
    app.find_task(call.name)
    tries = 0
    while True:
        claim = Claim(
            id=0, claim_id=0, name=call.name, queue=call.queue, priority=call.priority, try_count=tries,
            crash_count=0, max_tries=call.max_tries, start=10 * clock.to_ms(clock.utcnow()), expire_ms=None,
            content_type=call.content_type, payload=call.payload, task_id=call.task_id or "eager",
        )  # fmt: skip
        outcome = runner.run(claim).outcome
        tries += 1
        match outcome:
            case Retry():
                continue
            case Succeeded(content_type, result):
                stored = Stored(state=State.SUCCEEDED, try_count=tries, content_type=content_type or None,
                                result=result or None)  # fmt: skip
            case Failed(error_type, message, trace, args):
                stored = Stored(state=State.FAILED, try_count=tries, error_type=error_type, error_msg=message,
                                traceback=trace, result=args)  # fmt: skip
            case _:
                stored = Stored(state=State.CANCELLED, try_count=tries)
        return EagerResult(app, call.task_id or "eager", stored)
