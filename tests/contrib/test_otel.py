"""Traces: one from the program that enqueues to the process that runs the task, in each pool."""

import json
import time

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from support.draining import drain
from support.sql import one as value
from support.variants import slow

from fbtasks import EnqueueError, current_request
from fbtasks.contrib import otel
from fbtasks.tasks.middleware import Middlewares
from fbtasks.testing import eager

SOURCE = """
    import logging
    from opentelemetry import baggage, trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    from fbtasks.contrib import otel

    provider = TracerProvider()
    spans = open("spans", "a")
    exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    otel.install(app)

    @app.task(bind=True, max_retries=1, autoretry_for={OSError: 0})
    def outer(self):
        if not self.request.retries:
            raise OSError("no paper")
        logging.warning("in a span")
        inner.delay(baggage.get_baggage("tenant"))

    @app.task
    async def inner(tenant):
        with trace.get_tracer("own").start_as_current_span(f"own {tenant}"):
            pass
"""


class Traced:
    """An app of the test's own that is traced, and what it has sent."""

    def __init__(self, app):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        otel.install(app, provider)

    def spans(self):
        """Those that have ended since the last call, in the order in which they began."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)
        self.exporter.clear()
        return found


@pytest.mark.acceptance
@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio", "solo"])
def test_one_trace_from_the_request_to_the_tasks(project, pool):
    """Each process has an exporter with a thread, which writes what is left when the process ends."""
    with project.producer(SOURCE) as app:
        traced = Traced(app)
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        with traced.tracer.start_as_current_span("GET /order"):
            result = app.send_task("proj.outer")
        context.detach(token)
        request, sent = traced.spans()
    log = project.run("worker", "-A", "proj", "-c", "1", "--pool", pool, "--burst", "--log-format", "json").stderr
    spans = [json.loads(line) for line in (project.folder / "spans").read_text().splitlines()]
    assert sent.parent.span_id == request.context.span_id
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{request.context.trace_id:032x}"}
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    names[f"0x{sent.context.span_id:016x}"] = sent.name
    assert sorted(
        (each["name"], each["kind"], names[each["parent_id"]], each["status"]["status_code"]) for each in spans
    ) == [
        ("own acme", "SpanKind.INTERNAL", "process proj.inner", "UNSET"),
        ("process proj.inner", "SpanKind.CONSUMER", "send proj.inner", "UNSET"),
        ("process proj.outer", "SpanKind.CONSUMER", "send proj.outer", "ERROR"),
        ("process proj.outer", "SpanKind.CONSUMER", "send proj.outer", "UNSET"),
        ("send proj.inner", "SpanKind.PRODUCER", "process proj.outer", "UNSET"),
    ]
    failed, good = sorted(
        (span for span in spans if span["name"] == "process proj.outer"), key=lambda span: span["start_time"]
    )
    assert failed["attributes"] == {
        "messaging.system": "fbtasks", "messaging.destination.name": "default", "messaging.operation.name": "process",
        "messaging.operation.type": "process", "messaging.message.id": result.id, "fbtasks.task": "proj.outer",
        "fbtasks.try": 1, "error.type": "builtins.OSError",
    }  # fmt: skip
    assert failed["status"]["description"] == "tried again after OSError: no paper"
    assert failed["events"][0]["attributes"]["exception.message"] == "no paper"
    lines = [*map(json.loads, log.splitlines())]
    ends = [(each["task_name"], each["task_try"], each["trace_id"]) for each in lines if "Task " in each["message"]]
    trace_id = good["context"]["trace_id"][2:]
    assert ends == [("proj.outer", 1, trace_id), ("proj.outer", 2, trace_id), ("proj.inner", 1, trace_id)]
    (said,) = (each for each in lines if each["message"] == "in a span")
    assert {name: said[name] for name in ("trace_id", "span_id", "task_id", "task_try")} == {
        "trace_id": trace_id, "span_id": good["context"]["span_id"][2:],
        "task_id": result.id, "task_try": 2,
    }  # fmt: skip


@pytest.fixture
def traced(app):
    return Traced(app)


@pytest.mark.emptied
def test_what_a_span_of_a_call_says(app, traced):
    app.task(name="mine", queue="other", transactional=True)(lambda: None)
    result = app.tasks["mine"].apply_async(headers={"own": "x"})
    (sent,) = traced.spans()
    assert sent.attributes == {
        "messaging.system": "fbtasks", "messaging.destination.name": "other", "messaging.operation.name": "send",
        "messaging.operation.type": "send", "messaging.message.id": result.id, "fbtasks.task": "mine",
    }  # fmt: skip
    assert app.send_task("unknown", (), queue="third")
    assert [span.attributes["messaging.destination.name"] for span in traced.spans()] == ["third"]
    with pytest.raises(EnqueueError):
        app.send_task("unknown", (), headers=5)
    assert [span.status.status_code for span in traced.spans()] == [StatusCode.ERROR]
    drain(app, ["other"])
    (run,) = traced.spans()
    assert (run.parent.span_id, run.status.status_code) == (sent.context.span_id, StatusCode.UNSET)
    with eager(app):
        app.tasks["mine"].delay()
    outer, inner = traced.spans()
    assert (inner.name, inner.parent.span_id) == ("process mine", outer.context.span_id)


@pytest.mark.emptied
def test_what_is_linked_and_not_a_child(app, traced):
    one = app.task(name="one")(lambda: baggage.get_baggage("tenant"))
    app.task(name="batch", batch=3, wait=0.01, max_retries=0)(lambda requests: [None, OSError(), ValueError("no")])
    headers = {}
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    with traced.tracer.start_as_current_span("long ago") as before:
        propagate.inject(headers)
    context.detach(token)
    traced.spans()
    sent = {"old": time.time() - 3700, "young": time.time() - 3500, "forged": "x"}
    results = {}
    for what, when in sent.items():
        app.middlewares, kept = Middlewares(), app.middlewares  # the call of a program that ended meanwhile
        results[what] = one.apply_async(headers={**headers, "fbtasks-sent": str(when)}, task_id=what)
        app.middlewares = kept
    drain(app)
    assert {result.get(timeout=5) for result in results.values()} == {"acme"}
    runs = {span.attributes["messaging.message.id"]: span for span in traced.spans()}
    assert {what: run.parent and run.parent.span_id for what, run in runs.items()} == {
        "old": None, "young": before.context.span_id, "forged": before.context.span_id,
    }  # fmt: skip
    assert [link.context.span_id for link in runs["old"].links] == [before.context.span_id]
    assert runs["young"].links == ()

    app.tasks["batch"].delay_many([(1,), (2,), (3,)])
    calls = traced.spans()
    drain(app)
    (run,) = traced.spans()
    assert (run.parent, run.attributes["messaging.batch.message_count"]) == (None, 3)
    assert [link.context.span_id for link in run.links] == [call.context.span_id for call in calls]
    assert run.status.description == "failed: OSError: "
    assert [event.attributes["exception.type"] for event in run.events] == ["OSError", "ValueError"]


@pytest.mark.emptied
def test_without_a_tracer_a_call_is_as_it_was(app):
    otel.install(app)
    task = app.task(name="t")(lambda: dict(current_request().headers))
    result = task.delay()
    assert value(app, "SELECT CAST(PAYLOAD AS VARCHAR(50)) FROM QUEUE_TASK") == "[[],{}]"
    drain(app)
    assert result.get(timeout=5) == {}
