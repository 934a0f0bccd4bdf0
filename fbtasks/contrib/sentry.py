"""Sentry: failures of tasks as events."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.scope import add_global_event_processor, should_send_default_pii
from sentry_sdk.utils import event_from_exception

from fbtasks.tasks.remote_error import own_trace

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.run.invocation import Raised
    from fbtasks.tasks.request import Request


def install(app: FBTasks) -> None:
    """Reports what fails for good in *app* to Sentry, from the process that runs it. Retries are not reported.

    ``sentry_sdk.init()`` may be called before or after it, where the app is defined: child processes import that.
    Failures that only the worker sees, such as a time limit or a process that died, are lines of its log, which
    Sentry's integration of logging reports.
    """
    app.middleware(_Reporting())
    add_global_event_processor(_of_worker)


class _Reporting:
    """The middleware."""

    def observe_run(self, request: Request) -> Generator[None, tuple[Sequence[Raised], Sequence[Raised]], None]:
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, request)
            _, failed = yield
            for each in failed:
                if each.traceback:  # else the worker's line has all there is
                    _describe(scope, each.request)
                    _report(each.error)


def _describe(scope: sentry_sdk.Scope, request: Request) -> None:
    """Says in *scope* what runs."""
    scope.set_transaction_name(request.task, source="task")
    scope.set_tag("task", request.task)
    scope.set_tag("task_id", request.id)
    scope.set_tag("queue", request.queue)
    context: dict[str, Any] = {"id": request.id, "queue": request.queue, "try": request.retries + 1}
    if should_send_default_pii():
        context |= {"args": request.args, "kwargs": dict(request.kwargs)}
    scope.set_context("task", context)


def _report(error: BaseException) -> None:
    """Reports *error* with the frames of the task: those of the worker have its arguments among their variables."""
    raised = type(error), error, own_trace(error)[0]
    options = sentry_sdk.get_client().options
    event, hint = event_from_exception(raised, client_options=options, mechanism={"type": "fbtasks", "handled": False})
    sentry_sdk.capture_event(event, hint=hint)


def _of_worker(event: Any, hint: dict[str, Any]) -> Any:
    """Drops what Sentry makes of the worker's line about a failure that was reported where the task ran."""
    record = hint.get("log_record")
    if record is None or record.name != "fbtasks.worker" or not hasattr(record, "task_name"):
        return event
    if record.exc_text:
        return None
    return {**event, "transaction": record.task_name, "fingerprint": ["{{ default }}", record.task_name]}
