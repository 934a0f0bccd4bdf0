"""OpenTelemetry: a span for each call that is enqueued and for each run of a task, in one trace.

Names of attributes follow the semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer, TracerProvider

from fbtasks import timing as clock
from fbtasks.system.showing import kind_of, name_of, show
from fbtasks.tasks.middleware import OutgoingCall
from fbtasks.tasks.request import Request
from fbtasks.version import VERSION

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.run.invocation import Raised

_SENT: Final = "fbtasks-sent"
"""The header that has the time of the call, in seconds since 1970."""
_LONG: Final = 3600.0
"""Seconds after which a run has a trace of its own: most backends have closed that of the call."""


def install(app: FBTasks, tracer_provider: TracerProvider | None = None) -> None:
    """Traces what *app* enqueues and runs, with the global provider or with another one.

    The context travels in the headers of calls, as the global propagator writes it. Install it before other middleware,
    so that what that does is inside of the spans.
    """
    app.middleware(_Tracing(app, trace.get_tracer("fbtasks", VERSION, tracer_provider)))


class _Tracing:
    """The middleware."""

    def __init__(self, app: FBTasks, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    def around_enqueue(self, call: OutgoingCall, next: Callable[[OutgoingCall], Any]) -> Any:
        task = self._app.known_task(call.task)
        queue = call.options.get("queue") or (task and task.options.queue) or self._app.settings.default_queue
        attributes = _attributes("send", call.task, queue)
        with self._tracer.start_as_current_span(
            f"send {call.task}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            headers: dict[str, str] = {}
            propagate.inject(headers)
            if headers:
                call = call.replace(headers={**call.headers, **headers, _SENT: f"{clock.wall():.3f}"})
            result = next(call)
            number = getattr(result, "id", None)  # there is none yet of a call that is written together with others
            if number is not None:
                span.set_attribute("messaging.message.id", number)
            return result

    def observe_run(self, request: Request) -> Generator[None, tuple[Sequence[Raised], Sequence[Raised]], None]:
        batch = _batch_of(request)
        attributes = {**_attributes("process", request.task, request.queue), "fbtasks.try": request.retries + 1}
        attributes |= {"messaging.batch.message_count": len(batch)} if batch else {"messaging.message.id": request.id}
        links: list[Link] = []
        context = propagate.extract({} if batch else request.headers)
        if batch or _is_old(request):
            links = [link for each in batch or [request] for link in _links(each)]
            context = trace.set_span_in_context(trace.INVALID_SPAN, context)
        token = attach(context)  # the baggage as well
        try:
            with self._tracer.start_as_current_span(
                f"process {request.task}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
            ) as span:
                retried, failed = yield
                raised = [each.error for each in (*failed, *retried)]
                for error in raised:
                    span.record_exception(error)
                if raised:
                    kind, what = name_of(type(raised[0])), "failed:" if failed else "tried again after"
                    span.set_attribute("error.type", kind)
                    span.set_status(StatusCode.ERROR, f"{what} {kind_of(kind)}: {show(raised[0])}")
        finally:
            detach(token)


def _attributes(operation: str, task: str, queue: str) -> dict[str, str | int]:
    return {
        "messaging.system": "fbtasks",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "fbtasks.task": task,
    }


def _batch_of(request: Request) -> list[Request]:
    """The calls of a batch; none of another run."""
    first = request.args[0] if request.args else None
    return first if isinstance(first, list) and first and isinstance(first[0], Request) else []


def _is_old(request: Request) -> bool:
    """Whether its call was made too long ago for the same trace. Any program may have written the header."""
    try:
        return clock.wall() - float(request.headers[_SENT]) > _LONG
    except (KeyError, ValueError):
        return False


def _links(request: Request) -> list[Link]:
    """The link to the call of *request*, where that was traced."""
    found = trace.get_current_span(propagate.extract(request.headers, Context())).get_span_context()
    return [Link(found)] if found.is_valid else []
