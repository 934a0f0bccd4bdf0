"""fbtasks inspect stack: where a running task is, as its worker says on request."""

import json
import math
import re

import pytest
from support.dashboards import browser, page
from support.duties import Worker
from support.registering import register
from support.sql import rows
from support.variants import slow

from fbtasks import FBTasksError
from fbtasks import timing as clock
from fbtasks.features.stacks import duty
from fbtasks.features.stacks.duty import LOOK, Answers
from fbtasks.features.stacks.operations import get_stack
from fbtasks.queue import tasks
from fbtasks.tasks.call import Said

SOURCE = """
    import asyncio, time
    from pathlib import Path

    def deep():
        while not Path("go").exists():
            time.sleep(0.02)

    @app.task
    def plain():
        deep()

    async def below():
        while not Path("go").exists():
            await asyncio.sleep(0.02)

    @app.task
    async def coroutine():
        await below()
"""


def begun(app, names, wait_for):
    """Calls tasks, and waits until they run."""
    results = [app.send_task(f"proj.{name}") for name in names]
    wait_for(lambda: all(each.state == "STARTED" for each in results))
    return results


@pytest.mark.acceptance
@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio"])
def test_a_worker_says_where_its_tasks_are(pool, project, wait_for):
    def answered(look):
        """What *look* is answered: a busy machine may take longer than an operator waits."""
        return wait_for(lambda: "has not answered" not in (text := look()) and text, 60)

    with project.producer(SOURCE) as app:
        worker = project.worker("-c", "3", "-P", pool)
        plain, coroutine = begun(app, ["plain", "coroutine"], wait_for)
        shown = answered(lambda: project.run("inspect", "stack", plain.id).stdout).splitlines()
        assert shown[0].startswith(f"Task {plain.id} (proj.plain) on worker {worker.pid}@")
        frames = [line for line in shown if line.startswith("  File")]
        assert [line.rpartition(" ")[2] for line in frames] == ["plain", "deep"]
        assert "proj.py" in frames[0]
        assert "deep()" in shown[2]
        found = json.loads(answered(lambda: project.run("inspect", "stack", coroutine.id, "--json").stdout))
        assert found.keys() == {"id", "name", "worker", "stack"}
        assert re.findall(r"in (\w+)\n", found["stack"])[:2] == ["coroutine", "below"]
        client = browser(app)
        assert f"/stacks/{plain.id}" in page(client, f"/tasks/{plain.id}").links
        assert "in deep" in answered(lambda: page(client, f"/stacks/{plain.id}").text)
        (project.folder / "go").touch()
        assert plain.get(timeout=30) is None
        assert "It does not run: it is succeeded." in page(client, f"/stacks/{plain.id}").text
        assert f"/stacks/{plain.id}" not in page(client, f"/tasks/{plain.id}").links
        failed = project.run("inspect", "stack", plain.id, check=False)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert f"task {plain.id} does not run: it is succeeded. See: fbtasks inspect active" in failed.stderr
        assert rows(app, "SELECT * FROM QUEUE_STACK") == []


@pytest.mark.acceptance
def test_who_cannot_answer_is_not_asked(project, wait_for):
    with project.producer(SOURCE) as app:
        worker = project.worker("-P", "solo")
        (plain,) = begun(app, ["plain"], wait_for)
        answer = get_stack(app.database, plain.id).stack
        assert "(the pool solo), and hears nothing meanwhile" in answer
        assert answer.endswith(f": py-spy dump --pid {worker.pid}")
        worker.kill()
        worker.wait()
        answer = get_stack(app.database, plain.id).stack
        assert answer.startswith(f"Nobody can say where it is: its worker {worker.pid}@")
        assert answer.endswith(": fbtasks worker -A MODULE -Q default")


@pytest.fixture
def running(own_app):
    """A task that runs, of a worker that the test plays."""
    result = own_app.task(name="t")(lambda: None).delay()
    worker = register(own_app)
    with own_app.database.session() as session:
        (claim,) = session.run(lambda t: tasks.claim(t, worker, "default", 1))
        yield session, Worker(id=worker), claim, result


def test_a_worker_that_says_nothing(own_app, running):
    *_, result = running
    answer = get_stack(own_app.database, result.id, 0.1).stack
    assert answer == "Its worker w@host has not answered in 0.1 s. It is busy, or its app has no feature stacks."
    assert rows(own_app, "SELECT * FROM QUEUE_STACK") == []


def test_the_answers_of_a_worker(own_app, running, monkeypatch):
    session, worker, claim, _ = running
    monkeypatch.setattr(duty, "PATIENCE", 600.0)
    worker.look = lambda task, feature: {(claim.id, "stacks"): 17}[task, feature]
    answers = Answers(worker)
    assert answers.due() == math.inf  # nobody asks
    first = session.call("FBTASKS_STACKS_ADMIN.ASK", claim.id)
    answers.heard()
    assert answers.due() == 0.0
    answers.do(session)
    assert clock.monotonic() < answers.due() < math.inf  # while its process is waited for
    second = session.call("FBTASKS_STACKS_ADMIN.ASK", claim.id)
    answers.told(Said(claim.id, claim.claim_id, "stacks", b"here\xff"))
    assert answers.due() == 0.0
    answers.do(session)
    for question in (first, second):
        assert session.read("stack_answer", question) == [("here\ufffd", 1)]
    assert answers.due() == math.inf
    answers.told(Said(claim.id, claim.claim_id, "stacks", b"unasked"))
    assert answers.due() == math.inf
    before = clock.monotonic()
    for patience, pid, said in ((0.0, 17, "Its process 17 has not answered"), (9.0, None, "It has not begun")):
        monkeypatch.setattr(duty, "PATIENCE", patience)
        worker.look = lambda *_: pid  # noqa: B023
        question = session.call("FBTASKS_STACKS_ADMIN.ASK", claim.id)
        answers.do(session)
        answers.do(session)
        assert session.read("stack_answer", question)[0][0].startswith(said)
    worker.events_arrive = lambda: False
    assert before + LOOK <= answers.due() <= clock.monotonic() + LOOK


def test_what_does_not_run(own_app):
    result = own_app.task(name="t")(lambda: None).delay()
    with pytest.raises(FBTasksError, match=f"task {result.id} does not run: it is ready"):
        get_stack(own_app.database, result.id)
