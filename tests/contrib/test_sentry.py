"""Sentry: which failures reach it, once each, from which process, with what."""

import json
import re

import pytest
from support.variants import slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import json, logging, os
    import sentry_sdk
    from sentry_sdk.transport import Transport
    from fbtasks.contrib import sentry

    class AtTheEnd(Transport):
        kept = []

        def capture_envelope(self, envelope):
            self.kept.append({**envelope.get_event(), "pid": os.getpid()})

        def flush(self, timeout, callback=None):
            with open("events", "a") as file:
                while self.kept:
                    file.write(json.dumps(self.kept.pop(0), default=str) + "\\n")

    sentry_sdk.init("https://key@sentry.invalid/1", transport=AtTheEnd, send_default_pii=PII)
    sentry.install(app)

    @app.task(max_retries=1, autoretry_for={OSError: 0})
    def flaky(order):
        sentry_sdk.set_tag("order", order)
        raise OSError("no paper")

    @app.task(queue="other")
    async def late(order):
        raise LookupError("no such order")

    @app.task
    def good(order):
        logging.error("an error of its own")

    @app.task(batch=3, wait=0.01)
    def several(requests):
        return [ValueError(f"no {request.args[0]}") for request in requests]

    @app.task(transactional=True, bind=True, on_failure=lambda *_: 1 / 0)
    def refused(self):
        self.connection.execute_immediate("ROLLBACK")

    @app.task
    def unserialisable():
        return {1}

    @app.task(time_limit=0.2)
    def hangs():
        import time
        time.sleep(60)

    @app.task
    def dies():
        os._exit(3)
"""


def run(project, pii, pool, *calls):
    """Runs a worker for *calls*. Returns the ids of their tasks and the events, in the order of the tasks' names."""
    with project.producer(SOURCE.replace("PII", str(pii))) as app:
        ids = [app.send_task(f"proj.{name}", *given).id for name, *given in calls]
    project.run("worker", "-A", "proj", "-c", "1", "--pool", pool, "--burst")
    found = [json.loads(line) for line in (project.folder / "events").read_text().splitlines()]
    return ids, sorted(found, key=lambda event: (event["transaction"], event["timestamp"]))


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio", "solo"])
def test_a_failure_is_one_event_that_is_sent_before_the_process_ends(project, pool):
    calls = [("flaky", (17,)), ("good", (18,)), ("late", (19,))]
    ids, (flaky, good, late) = run(project, True, pool, *calls)
    assert [event["transaction"] for event in (flaky, good, late)] == ["proj.flaky", "proj.good", "proj.late"]
    (error,) = flaky["exception"]["values"]
    assert (error["type"], error["value"], error["mechanism"]) == (
        "OSError", "no paper", {"type": "fbtasks", "handled": False},
    )  # fmt: skip
    assert [frame["function"] for frame in error["stacktrace"]["frames"]] == ["flaky"]
    assert flaky["tags"] == {"task": "proj.flaky", "task_id": ids[0], "queue": "default", "order": 17}
    assert flaky["contexts"]["task"] == {
        "id": ids[0], "queue": "default", "try": 2, "args": [17], "kwargs": {},
    }  # fmt: skip
    assert good["logentry"]["message"] == "an error of its own"
    assert good["tags"] == {"task": "proj.good", "task_id": ids[1], "queue": "default"}
    assert late["exception"]["values"][0]["type"] == "LookupError"


def test_what_only_the_worker_sees_is_reported_as_its_line(project):
    run(project, False, "processes", ("refused",), ("several", (1,)), ("several", (2,)), ("unserialisable",))
    _, found = run(project, False, "processes", ("dies",), ("hangs",))  # whose processes are killed
    errors = [event for event in found if "exception" in event]
    assert [(event["transaction"], event["exception"]["values"][-1]["type"]) for event in errors] == [
        ("proj.refused", "TaskDefinitionError"),
        ("proj.refused:on_failure", "ZeroDivisionError"),
        ("proj.several", "ValueError"),
        ("proj.several", "ValueError"),
    ]
    assert not any("args" in event["contexts"]["task"] for event in errors)
    lines = [event for event in found if event not in errors]
    assert {event["logger"] for event in lines} == {"fbtasks.worker"}
    assert [(event["fingerprint"], re.sub(r"[\d.]+ s", "_", event["logentry"]["formatted"])) for event in lines] == [
        (["{{ default }}", f"proj.{name}"], f"Task {number} (proj.{name}) {said}")
        for number, name, said in [
            *((6, "dies", f"{word} (crash {n} of 3): its process ended with exit code 3 while it ran")
              for n, word in enumerate(("crashed", "crashed", "failed: it crashed"), 1)),
            (7, "hangs", "failed in _: TimeLimitExceeded: it was stopped at its time_limit of _"),
            (4, "unserialisable", "failed in _: SerializationError: task 'proj.unserialisable': result is a set, which "
             "JSON does not have. Pass simple values, or use serializer='cloudpickle' with a signing_key."),
        ]
    ]  # fmt: skip
