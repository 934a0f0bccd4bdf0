"""update_state and result.info: how far a task has come that runs, through its worker."""

import json
import math
import re
import time

import pytest
from support.children import child_executor
from support.draining import drain
from support.duties import Turn
from support.programs import command_line
from support.sql import one, rows
from support.variants import slow

from fbtasks import ConfigurationError, FBTasks, PayloadTooLarge, SerializationError, TaskRevoked
from fbtasks.features.progress import store as progress
from fbtasks.features.progress.duty import WAITS, ProgressNotes
from fbtasks.features.progress.store import Progress, packed
from fbtasks.queue import tasks
from fbtasks.tasks.call import Claim, Finished, Reason, Requeue, Said, Succeeded
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied

SOURCE = """
    import asyncio, time
    from pathlib import Path

    @app.task(bind=True)
    def plain(self):
        for number in range(100_000):
            self.update_state({"done": number})
        self.update_state(state="LAST", meta={"done": [1.5, "ä"]}, task_id=self.request.id)
        while not Path("go").exists():
            time.sleep(0.02)
        return "end"

    @app.task(bind=True)
    async def coroutine(self):
        self.update_state(meta=7)
        while not Path("go").exists():
            await asyncio.sleep(0.02)
"""
LAST = b'{"done":[1.5,"\\u00e4"]}'


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio"])
def test_children_tell_their_worker_once_a_second(pool, project, monkeypatch, wait_for):
    with child_executor(project, monkeypatch, SOURCE, pool, places=2) as executor:
        wait_for(lambda: executor.collect() or executor.free() >= 2)
        begun = time.monotonic()
        for number, name in enumerate(("plain", "coroutine"), 1):
            claim = Claim(number, 99, f"proj.{name}", "q", content_type="application/json", payload=b"[[],{}]")
            assert executor.submit([claim]) == []
        said = []

        def both():
            assert executor.collect() == []
            said.extend(executor.take_said())
            return {
                Said(1, 99, "progress", packed("LAST", LAST)),
                Said(2, 99, "progress", packed("PROGRESS", b"7")),
            } <= set(said)

        wait_for(both)
        assert len(said) <= 2 * (time.monotonic() - begun + 1)
        (project.folder / "go").touch()
        ended = []
        wait_for(lambda: ended.extend(executor.collect()) or len(ended) == 2)
        assert all(isinstance(each.outcome, Succeeded) for each in ended)
        assert executor.take_said() == []


@pytest.mark.acceptance
def test_info_while_it_runs_and_afterwards(project, wait_for):
    with project.producer(SOURCE) as app:
        project.worker("-c", "1")
        result = app.send_task("proj.plain")
        assert result.info is None
        wait_for(lambda: result.info == {"done": [1.5, "ä"]})
        assert (result.result, result.state, result.status, result.ready()) == (result.info, "LAST", "LAST", False)
        (project.folder / "go").touch()
        assert result.get(timeout=30) == "end"
        assert (result.info, result.result, result.state) == ("end", "end", "SUCCESS")
        with app.database.session() as session:
            assert session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", 200) == 1
        assert one(app, "SELECT COUNT(*) FROM QUEUE_PROGRESS") == 0


@pytest.fixture
def claim(app):
    app.task(name="t")(lambda: None).delay()
    with app.database.session() as session:
        (claim,) = session.run(lambda t: tasks.claim(t, 1, "default", 1))
        yield session, claim


def test_it_belongs_to_one_claim(app, claim):
    session, claim = claim
    result = app.AsyncResult(claim.id)
    for claim_id, meta in ((claim.claim_id, b"1"), (claim.claim_id + 1, b"2"), (claim.claim_id, b'{"a":3}')):
        session.run(lambda t: progress.put(t, [Progress(claim.id, claim_id, "AT", meta)]))  # noqa: B023
    assert (result.info, result.state) == ({"a": 3}, "AT")
    assert session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", 200) == 0
    session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Requeue(Reason.RETRY, 0, "again"))]))
    assert (result.info, result.state) == (None, "RETRY")
    assert [each.id for each in session.run(lambda t: tasks.claim(t, 2, "default", 1))] == [claim.id]
    assert (result.info, result.state) == (None, "STARTED")  # what the former claim said is not shown
    assert session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", 200) == 1


def test_an_operator_sees_what_a_task_said_that_runs(app, claim, url, monkeypatch, capsys):
    monkeypatch.setenv("FBTASKS_URL", url)
    session, claim = claim
    inspect = ("inspect", "task", str(claim.id))

    def shown(*options):
        capsys.readouterr()
        assert command_line(*inspect, *options) == 0
        return capsys.readouterr().out

    assert "PROGRESS" not in shown()
    session.run(lambda t: progress.put(t, [Progress(claim.id, claim.claim_id, "AT", b'{"done":[1,"\\u00e4"]}')]))
    assert re.search(r'^PROGRESS +AT {"done": \[1, "ä"\]}$', shown(), re.MULTILINE)
    assert json.loads(shown("--json"))["progress"] == {"state": "AT", "info": {"done": [1, "ä"]}}
    session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Requeue(Reason.RETRY, 0, "again"))]))
    assert json.loads(shown("--json"))["progress"] is None


def test_the_last_that_each_task_has_said_is_written_soon(app, claim):
    session, claim = claim
    notes = ProgressNotes(Turn())
    assert notes.due() == math.inf
    before = time.monotonic()
    notes.told(Said(claim.id, claim.claim_id, "progress", packed("A", b"1")))
    due = notes.due()
    notes.told(Said(claim.id, claim.claim_id, "progress", packed("B", b"2")))
    assert before + WAITS <= notes.due() == due <= time.monotonic() + WAITS
    notes.do(session)
    assert rows(app, "SELECT WORD FROM QUEUE_PROGRESS") == [("B",)]
    assert notes.due() == math.inf


def test_info_of_what_did_not_succeed(app):
    bad = app.task(name="bad", max_retries=0)(lambda: {}["missing"]).delay()
    gone = app.task(name="gone")(lambda: None).delay()
    assert gone.revoke()
    assert bad.info is None
    drain(app)
    for found in (bad.info, bad.result, bad.get(timeout=5, propagate=False)):
        assert isinstance(found, KeyError)
        assert found.args == ("missing",)
    assert isinstance(gone.get(propagate=False, timeout=5), TaskRevoked)
    assert isinstance(gone.result, TaskRevoked)
    with pytest.raises(KeyError):
        bad.get(5, True)


def test_where_there_is_no_worker(tmp_path):
    app = FBTasks("eager", f"firebird://{tmp_path}/none.fdb")

    @app.task(name="says", bind=True)
    def says(self, fail=False):
        self.update_state({"half": True})
        if fail:
            raise KeyError
        return "done"

    assert says() == "done"
    with eager(app):
        assert says.delay().info == "done"
        failed = says.delay(fail=True)
        assert isinstance(failed.result, KeyError)
        assert isinstance(failed.get(propagate=False), KeyError)
    app.close()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"meta": object()}, SerializationError, "the progress of 't': meta"),
        ({"meta": "x" * 8001}, PayloadTooLarge, "meta: 8,003 bytes when serialised; the most is 8,000. Store"),
        ({"meta": {1}}, SerializationError, "It is always JSON"),
        ({"state": "SUCCESS"}, ConfigurationError, "state 'SUCCESS' is said of a task that does not run"),
        ({"state": ""}, ConfigurationError, "1 to 50 printable"),
        ({"task_id": "17"}, ConfigurationError, "task_id '17' is not the task that runs here"),
    ],
)
def test_what_cannot_be_said(app, given, error, message):
    task = app.task(name="t", bind=True)(lambda self: self.update_state(**given))
    with pytest.raises(error, match=message):
        task()


def test_a_row_that_another_transaction_holds_is_left(app, claim):
    session, claim = claim
    session.run(lambda t: progress.put(t, [Progress(claim.id, claim.claim_id, "A", b"1")]))
    notes = ProgressNotes(Turn())
    with app.connect() as connection:
        connection.execute_immediate("UPDATE QUEUE_PROGRESS SET WORD = 'X'")
        notes.told(Said(claim.id, claim.claim_id, "progress", packed("B", b"2")))
        notes.do(session)
        assert notes.due() == math.inf
        connection.rollback()
    assert rows(app, "SELECT WORD FROM QUEUE_PROGRESS") == [("A",)]
