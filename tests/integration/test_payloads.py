"""Payloads: of any size up to the limit, unreadable ones, and signed ones of cloudpickle."""

import textwrap

import pytest
from support.draining import drain
from support.sql import one

from fbtasks import ConfigurationError, ContentDisallowed, FBTasks, SerializationError
from fbtasks.queue import codec

pytestmark = pytest.mark.emptied


AROUND = len('[[""],{}]')
SIZES = [2_000, 2_001, 30_000, 30_001, codec.INLINE, codec.INLINE + 1, 65_534, 65_535, 131_068, 10_000_000]
"""Bytes at which a payload or a result comes to its worker or its caller in another way."""


def test_payloads_and_results_of_any_size(app):
    echo = app.task(name="echo")(lambda text: text)
    texts = ["x" * size for whole in SIZES for size in (whole - AROUND, whole - 2)]
    results = [echo.delay(text) for text in texts]
    drain(app)
    for result, text in zip(results, texts, strict=True):
        assert result.get(timeout=10) == text
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 0


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
    forged = stranger.send_task("proj.apply", (Trap(), 2))
    project.run("worker", "-A", "proj", "-c", "1", "--burst")
    with pytest.raises(ContentDisallowed, match="another signing_key"):
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
