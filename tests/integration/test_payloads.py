"""Payloads: of any size up to the limit, unreadable ones, and signed ones of cloudpickle."""

import json
import textwrap
from contextlib import closing

import pytest
from support.draining import drain
from support.sql import execute, one

from fbtasks import ConfigurationError, ContentDisallowed, FBTasks, PayloadTooLarge, SerializationError
from fbtasks.queue import codec, results, tasks
from fbtasks.states import State

pytestmark = pytest.mark.emptied


@pytest.mark.parametrize(
    "size", [codec.INLINE - 2, codec.INLINE - 1, codec.INLINE + 1, 65_533, 65_534, 131_068, 10_000_000]
)
def test_payloads_and_results_of_any_size(app, size):
    echo = app.task(name="echo")(lambda text: text)
    text = "x" * size
    result = echo.delay(text)
    drain(app)
    assert result.get(timeout=10) == text
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 0


@pytest.mark.parametrize("size", [2_000, 2_001, 30_000, 30_001])
def test_a_claim_returns_payloads_of_up_to_30_000_bytes(app, size):
    take = app.task(name="t", ignore_result=True)(lambda text: None)
    payload = {"text": "x" * (size - len('[[],{"text":""}]'))}
    for _ in range(3):
        take.delay(**payload)
    with closing(app.database.open()) as session:
        claims = session.run(lambda t: tasks.claim(t, 1, "default", 5))
        read = [session.run(lambda t: tasks.payload(t, claim.id)) for claim in claims]  # noqa: B023
    expected = json.dumps([[], payload], separators=(",", ":")).encode()
    assert len(expected) == size
    assert [claim.payload for claim in claims] == [None if size > 30_000 else expected] * 3
    assert size <= 2_000 or read == [expected] * 3


def test_payload_limit(url):
    app = FBTasks("small", url, payload_limit=100)
    echo = app.task(name="echo")(lambda text: text)
    with pytest.raises(PayloadTooLarge, match="'echo'"):
        echo.delay("x" * 100)


def test_unreadable_payloads_fail_and_the_worker_goes_on(app, add):
    add.delay(1, 1)
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = x'ff00'")
    good = add.delay(1, 1)
    drain(app)
    assert good.get(timeout=1) == 2
    with app.database.session() as session:
        (failed,) = results.listing(session, State.FAILED, results.Filter())
    assert "cannot be read" in failed.error_msg


PICKLED = """
    from fbtasks import FBTasks
    app = FBTasks("pickled", serializer="cloudpickle", accept_content=["json", "cloudpickle"],
                  signing_key="a key of ours")

    @app.task
    def apply(function, value): return function(value), {1: {value}}
"""


@pytest.mark.acceptance
def test_cloudpickle_from_end_to_end(project, tmp_path):
    """Signed, it carries what JSON cannot; without the key or with another, nothing of it is unpickled."""
    (project.folder / "proj.py").write_text(textwrap.dedent(PICKLED))
    options = {"serializer": "cloudpickle", "accept_content": ["json", "cloudpickle"]}
    app = FBTasks("producer", project.url, signing_key="a key of ours", **options)
    offset = 40
    good = app.send_task("proj.apply", (lambda n: n + offset, 2))
    project.run("worker", "-A", "proj", "-c", "1", "--burst")
    assert good.get(timeout=5) == (42, {1: {2}})

    trace = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self):
            return open, (str(trace), "w")

    stranger = FBTasks("stranger", project.url, signing_key="another key", **options)
    for who, secret in ((stranger, "another signing_key"),):
        forged = who.send_task("proj.apply", (Trap(), 2))
        project.run("worker", "-A", "proj", "-c", "1", "--burst")
        with pytest.raises(ContentDisallowed, match=secret):
            app.AsyncResult(forged.id).get(timeout=5)
    project.write("@app.task\ndef apply(function, value): pass\n")  # a worker that was not told to accept it
    refused = app.send_task("proj.apply", (Trap(), 2))
    log = project.run("worker", "-A", "proj", "-c", "1", "--burst").stderr
    assert "is not accepted here" in log
    assert refused.failed()
    assert not trace.exists()
    with pytest.raises(ContentDisallowed):
        stranger.AsyncResult(good.id).get(timeout=5)
    with pytest.raises((ConfigurationError, SerializationError), match="signing_key"):
        FBTasks("keyless", project.url, **options).send_task("proj.apply", (1, 2))
    for opened in (app, stranger):
        opened.close()
