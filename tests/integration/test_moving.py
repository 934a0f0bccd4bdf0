"""Waiting tasks are moved into another queue: in their state, with their time, limits and places."""

import json

import pytest
from support.draining import drain
from support.sql import execute, held, one, rows

from fbtasks import ConfigurationError
from fbtasks.queue.operations.moving import moving

pytestmark = pytest.mark.emptied


def move(app, queue="mial", to="mail", **options):
    """Moves, and returns how many were moved, what is left, and whether the other queue was full."""
    with moving(app.database, queue, to, app=app, **options) as found:
        return sum(found.run()), found.left().tasks, found.is_full


def states(app, queue="mail"):
    found = rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_TASK WHERE QUEUE = ? GROUP BY STATE ORDER BY STATE", queue)
    return dict(found)


@pytest.fixture
def mail(app):
    """Makes the queue known."""
    app.queue("mail")
    return app.task(name="mail", queue="mial")(lambda n=0: n)


def test_ready_scheduled_parked_and_held_tasks_run_in_the_other_queue(app, mail):
    app.limit("one", at_once=1)
    limited = app.task(name="limited", queue="mial", limits="one")(lambda n: n)
    parked = app.send_task("late", (3,), queue="mial")
    drain(app, ["mial"])
    results = [mail.delay(1), limited.delay(4), limited.delay(5)]
    soon, later = mail.apply_async((6,), countdown=0.2), mail.apply_async((7,), countdown=3600)
    starts = dict(rows(app, "SELECT ID, START_TIME FROM QUEUE_TASK"))
    assert states(app, "mial") == {0: 1, 1: 2, 3: 1, 4: 2}
    assert move(app) == (6, {}, False)
    assert states(app) == {0: 1, 1: 2, 3: 1, 4: 2}
    assert dict(rows(app, "SELECT ID, START_TIME FROM QUEUE_TASK")) == starts
    app.task(name="late")(lambda n: n)
    soon_at = "UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 SECOND TO START_TIME) WHERE ID = ?"
    execute(app, soon_at, int(soon.id))
    drain(app, ["mail"])
    assert [each.get(1) for each in (*results, parked, soon)] == [1, 4, 5, 3, 6]
    assert later.status == "PENDING"
    assert states(app) == {1: 1}


def test_a_line_keeps_its_order_and_a_batch_its_calls(app):
    app.queue("mail")
    seen = []
    ordered = app.task(name="ordered", queue="mial", ordered=True)(lambda n: seen.append(n))
    batch = app.task(name="batch", queue="mial", batch=3, wait=60)(lambda calls: [len(calls)] * len(calls))
    for n in (1, 2, 3):
        ordered.delay(n)
    first = [batch.delay(n) for n in range(2)]
    assert move(app)[0] == 5
    ordered.apply_async((4,), queue="mail")
    first.append(batch.apply_async((2,), queue="mial"))
    assert move(app)[0] == 1
    drain(app, ["mail"])
    assert seen == [1, 2, 3, 4]
    assert [each.get(1) for each in first] == [3, 3, 3]


def test_a_unique_task_stands_for_calls_in_both_queues(app):
    app.queue("mail")
    seen = []
    once = app.task(name="once", queue="mial", unique=True)(lambda n: seen.append(n))
    first = once.delay(1)
    move(app)
    second = once.apply_async((1,), queue="mail")
    drain(app, ["mail"])
    assert second.duplicate
    assert (first.status, seen) == ("SUCCESS", [1])


def test_places_are_given_back_and_taken(app):
    """Of a queue that is full by then, no task is dropped and none is put beyond what it may hold."""
    app.queue("mial", max_length=5, when_full="reject")
    app.queue("mail", max_length=3, when_full="drop_oldest")
    task = app.task(name="mail", queue="mial")(lambda n: n)
    for n in range(5):
        task.delay(n)
    task.apply_async((9,), queue="mail")
    assert move(app) == (2, {"ready": 3}, True)
    assert states(app) == {0: 3}
    task.delay(5)
    task.delay(6)
    assert states(app, "mial") == {0: 5}
    drain(app, ["mail"])
    assert move(app) == (3, {"ready": 2}, True)
    drain(app, ["mail"])
    assert move(app) == (2, {}, False)
    drain(app, ["mail"])
    free = dict(rows(app, "SELECT QUEUE, COUNT(*) FROM QUEUE_PLACE WHERE NO_ >= 0 GROUP BY QUEUE"))
    assert free == {"mial": 5, "mail": 3}
    app.queue("open")
    task.delay(1)
    assert move(app, to="open") == (1, {}, False)
    drain(app, ["open"])
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PLACE WHERE NO_ >= 0") == 8


def test_what_stays(app, mail):
    """A task of another name or of a source, a step that awaits others, and one that another transaction holds."""
    app.on_event("paid", name="paid", queue="mial", max_retries=3, default_retry_delay=3600, autoretry_for=(OSError,))(
        raising
    )
    with app.database.session() as session:
        app.features["sources"].deploy(session)
    app.raise_event("paid")
    drain(app, ["mial"])
    other = app.send_task("other", queue="mial")
    (mail.s() | mail.s()).delay()
    with held(app, "QUEUE_TASK", int(other.id)):
        assert move(app) == (1, {"ready": 1, "awaiting": 1, "sources": 1}, False)
    assert move(app, name="none") == (0, {}, False)
    assert move(app, name="other") == (1, {}, False)
    drain(app, ["mail"])
    assert move(app) == (1, {"sources": 1}, False), "the step is ready by now"


def raising(event):
    raise OSError


def test_many_are_moved_in_several_transactions(app, mail, monkeypatch):
    monkeypatch.setattr("fbtasks.queue.operations.moving._MOST", 3)
    mail.delay_many([(n,) for n in range(10)])
    with moving(app.database, "mial", "mail", app=app) as found:
        assert len(found) == 10
        assert list(found.run()) == [3, 3, 3, 1]


def test_what_another_transaction_holds_is_tried_again_while_others_go(app, mail, monkeypatch):
    monkeypatch.setattr("fbtasks.queue.operations.moving._MOST", 1)
    first, second = mail.delay(), mail.delay()
    with held(app, "QUEUE_TASK", int(first.id)) as release, moving(app.database, "mial", "mail", app=app) as found:
        steps = found.run()
        assert [next(steps), next(steps)] == [0, 1]
        release()
        assert list(steps) == [1]
    assert states(app) == {0: 2}
    assert second.status == "PENDING"


def test_a_queue_that_nobody_knows_is_refused(app, mail):
    mail.delay()
    with pytest.raises(ConfigurationError, match="unknown queue 'mall'"):
        move(app, to="mall")
    with pytest.raises(ConfigurationError, match="unknown queue 'mill'"):
        move(app, queue="mill")
    with pytest.raises(ConfigurationError, match="both 'mial'"):
        move(app, to="mial")
    assert states(app, "mial") == {0: 1}


def test_the_command(project, wait_for):
    """A worker that waits at its queue runs at once what was moved there."""
    source = """
    app.queue("mail")
    app.queue("small", max_length=1, when_full="reject")
    @app.task(queue="mial")
    def send(n): return n
    @app.task(queue="mial")
    def post(n): return n
    """
    with project.producer(source) as app:
        process = project.worker("-Q", "mail", "-c", "1", "-P", "threads")
        wait_for(lambda: "is ready" in project.logs())
        result = app.send_task("proj.send", (4,), queue="mial")
        app.send_task("proj.post", (4,), queue="mial")
        known = ("move", "-A", "proj", "--from", "mial")
        refused = project.run(*known, "--to", "mail", input="n\n", check=False)
        assert refused.returncode != 0
        assert "Move 2 waiting tasks from queue 'mial' to 'mail'?" in refused.stdout
        assert result.status == "PENDING"
        done = project.run(*known, "--to", "mail", "--task", "proj.send", "-y", "--json")
        assert json.loads(done.stdout) == {"from": "mial", "to": "mail", "count": 1, "left": {}}
        assert result.get(20) == 4
        app.send_task("proj.post", (4,), queue="mial")
        full = project.run(*known, "--to", "small", "-y", check=False)
        assert full.returncode == 1
        assert full.stdout == "1 task moved. Left in mial: 1 ready.\n"
        assert "the queue 'small' is full: 1 task moved, and 1 left" in full.stderr
        assert project.run(*known, "--to", "mail", "-y").stdout == "1 task moved.\n"
        assert project.run(*known, "--to", "mail").stdout == "0 tasks moved.\n", "nothing is asked where none waits"
        process.terminate()
        process.wait(30)
