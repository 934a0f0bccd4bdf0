"""Headers of calls: whoever reads a payload takes one with headers, and one without."""

import json

import pytest
from support.draining import drain
from support.sql import execute, one

from fbtasks import EnqueueError, FBTasks, SerializationError, current_request
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied
GIVEN = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ä": "'\n"}


def test_each_run_sees_the_headers_of_its_call(app):
    seen, failures = [], []

    @app.middleware
    class Adding:
        def around_enqueue(self, call, next):
            return next(call.replace(headers={**call.headers, "by": call.task}))

    def note(*args):
        seen.append((args, dict(current_request().headers)))
        return len(seen)

    plain = app.task(name="plain", limits={"one": None})
    app.limit("one", at_once=1)
    plain = plain(note)

    @app.task(name="falls", bind=True, on_failure=lambda request, error: failures.append(request.headers))
    def falls(self):
        note(self.request.retries)
        self.retry(countdown=0, max_retries=1)

    batched = app.task(name="batched", batch=2, ignore_result=True)(
        lambda requests: seen.extend((request.args, request.headers) for request in requests)
    )
    plain.apply_async((1,), headers=GIVEN)
    drain(app)
    assert seen == [((1,), {**GIVEN, "by": "plain"})]
    seen.clear()
    (plain.s(2) | plain.s(3).set(headers={"a": "b"})).delay()
    app.enqueue_calls([app.call_by_name("plain", (4,), None, headers=GIVEN)])  # by a program that knows no limits
    drain(app)
    assert sorted(seen) == [
        ((1, 3), {"a": "b", "by": "plain"}), ((2,), {"by": "plain"}), ((4,), GIVEN),
    ]  # fmt: skip
    seen.clear()
    falls.apply_async(headers=GIVEN)
    batched.delay_many([(1,), (2,)], headers={"a": "b"})
    drain(app)
    of_falls = {**GIVEN, "by": "falls"}
    of_batched = {"a": "b", "by": "batched"}
    assert sorted(seen, key=str) == [((0,), of_falls), ((1,), of_batched), ((1,), of_falls), ((2,), of_batched)]
    assert failures == [of_falls]
    seen.clear()
    with eager(app):
        plain.apply_async((5,), headers={"a": "b"})
    assert seen == [((5,), {"a": "b", "by": "plain"})]


def test_headers_of_a_signed_call_are_signed_with_it(url):
    options = {"serializer": "cloudpickle", "accept_content": ["cloudpickle"], "signing_key": "k"}
    app = FBTasks("signed", url, **options)
    task = app.task(name="t")(lambda found: (found, dict(current_request().headers)))
    result, changed = task.apply_async(({1},), headers=GIVEN), task.apply_async(({1},), headers={"a": "xyz"})
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = REPLACE(PAYLOAD, 'xyz', 'abc') WHERE ID = ?", int(changed.id))
    drain(app)
    assert result.get(timeout=5) == ({1}, GIVEN)
    assert "signature does not hold" in str(changed.get(timeout=5, propagate=False))
    app.close()


def test_a_payload_with_headers_from_sql_and_what_a_program_refuses(app):
    seen = app.task(name="seen")(lambda: dict(current_request().headers))
    good, bad = seen.delay(), seen.delay()
    assert one(app, "SELECT CAST(PAYLOAD AS VARCHAR(50)) FROM QUEUE_TASK WHERE ID = ?", int(good.id)) == "[[],{}]"
    for result, headers in ((good, '{"a":"b"}'), (bad, '{"a":1}')):
        execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = ? WHERE ID = ?", f"[[],{{}},{headers}]", int(result.id))
    drain(app)
    assert good.get(timeout=5) == {"a": "b"}
    with pytest.raises(SerializationError, match="has strings alone"):
        bad.get(timeout=5)
    for headers in ([1], {"a": 1}, {1: "a"}, "a"):
        with pytest.raises(EnqueueError, match=r"^headers .* must be a dict of strings: \{'request-id': '4711'\}"):
            seen.apply_async(headers=headers)
    with pytest.raises(SerializationError, match=r"^task 'seen': headers\['a'\] is a string that holds a lone surr"):
        seen.apply_async(headers={"a": "\ud800"})


def test_inspect_task_shows_them(project):
    project.write("@app.task\ndef t(n): pass\n")
    project.python("import proj; proj.t.apply_async((7,), headers={'a': 'b'}); proj.t.delay(8); proj.app.close()")
    found = [json.loads(project.run("inspect", "task", number, "--json").stdout) for number in ("1", "2")]
    assert [(each["args"], each["kwargs"], each["headers"]) for each in found] == [
        ([7], {}, {"a": "b"}), ([8], {}, {}),
    ]  # fmt: skip
    assert '[[7], {}, {"a": "b"}]' in project.run("inspect", "task", "1").stdout
