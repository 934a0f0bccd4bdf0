"""Queues with a limit that sources feed: what is above the limit waits in the log, and no writer is refused."""

import pytest
from support.feeding import change, handle, left, subscribe
from support.sql import execute, one, rows

from fbtasks import QueueFull
from fbtasks.features.queues import store as limits
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Claim, Failed, Finished, Succeeded

pytestmark = pytest.mark.emptied

NAME = "tests.handle"
UNFINISHED = "SELECT COUNT(*) FROM QUEUE_TASK"


@pytest.fixture
def load(app):
    app.queue("default", max_length=4, when_full="reject")
    app.connect().close()
    return app.task(name="load")(lambda: None)


@pytest.fixture
def session(app, load):
    with app.database.session() as session:
        yield session


def claim(session, most=10):
    return session.run(lambda t: tasks.claim(t, 1, "default", most))


def finish(session, *claims, outcome=None):
    items = [Finished(each, outcome or Succeeded(keep=False), 0.0) for each in claims]
    assert session.run(lambda t: tasks.finish(t, 1, 0, items)) == []


def running(session):
    return [Claim(id, claim_id) for id, claim_id in session.read("held_by", 1)]


def right(session):
    (found,) = limits.policies(session)
    return found.places_are_right


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_changes_become_tasks_as_far_as_there_is_room(app, session, load, ordering):
    subscribe(app, NAME, ordering=ordering, most=1)
    for lane in range(10):
        change(app, lane if ordering == "key" else 0)
    load.delay()
    done = 0
    for _ in range(20):
        claims = claim(session)
        assert one(app, UNFINISHED) <= 4
        assert right(session)
        done += sum(each.name == NAME for each in claims)
        finish(session, *claims)
    assert done == 10
    assert left(app) == (0, 0, 0, 0, 0)
    assert right(session)


def test_what_is_left_of_a_failed_run_has_its_place(app, session, load):
    subscribe(app, NAME, ordering="total", most=3)
    for _ in range(6):
        change(app)
    (run,) = claim(session)
    session.run(lambda t: t.rows("FBTASKS_SOURCES.PUT_REST", run.id, run.claim_id, b"[[1],{}]", b"[[2],{}]", None, 0))
    finish(session, run, outcome=Failed("E", "m"))
    assert right(session)
    (rest,) = claim(session)
    finish(session, rest, outcome=RELEASED)
    (rest,) = claim(session)
    finish(session, rest)
    (other,) = claim(session)
    finish(session, other)
    assert right(session)
    assert session.call("FBTASKS_OPERATOR.RETRY", run.id)
    (again,) = claim(session)
    finish(session, again)
    assert one(app, UNFINISHED) == 0
    assert right(session)


@pytest.mark.parametrize("direct", [1, 2])
def test_an_event_is_raised_whether_there_is_room_or_not(app, session, load, direct):
    handle(app, "paid", NAME, direct=direct, ordering="none" if direct == 2 else "key", most=1)
    load.delay_many([()] * 3)
    for _ in range(5):
        app.raise_event("paid")
    assert len(claim(session)) == 4
    finish(session, *running(session))
    done = [1]
    for most in (4, 0):  # without an order key they are handled beside each other
        claims = claim(session)
        assert len(claims) == most
        assert one(app, UNFINISHED) <= 4
        done += [1 for each in claims if each.name == NAME]
        finish(session, *claims)
    assert len(done) == 5
    assert right(session)


def test_an_event_with_a_start_time_is_not_held_back_and_counts(app, session, load):
    handle(app, "paid", NAME)
    load.delay_many([()] * 3)
    for _ in range(2):
        app.raise_event("paid", start=3600)
    assert one(app, UNFINISHED) == 5
    with pytest.raises(QueueFull):
        load.delay()


@pytest.mark.parametrize("ordering", ["total", "key"])
def test_a_held_task_has_its_turn_in_a_full_queue(app, session, load, ordering):
    subscribe(app, NAME, ordering=ordering, most=1)
    change(app)
    (failed,) = claim(session)
    finish(session, failed, outcome=Failed("E", "m", ""))
    change(app)
    (running,) = claim(session)
    assert session.call("FBTASKS_OPERATOR.RETRY", failed.id)
    change(app)
    load.apply_async(countdown=3600)
    load.apply_async(countdown=3600)
    assert not claim(session)
    finish(session, running)
    load.apply_async(countdown=3600)  # takes the place that was given back
    (again,) = claim(session)
    assert again.id == failed.id
    assert not claim(session)
    finish(session, again)
    load.apply_async(countdown=3600)
    assert not claim(session)
    assert not tasks.any_ready(session, ("default",)).ready  # what is left needs a place
    assert right(session)
    one_less = one(app, "SELECT MIN(ID) FROM QUEUE_TASK")
    execute(app, "DELETE FROM QUEUE_TASK WHERE ID = ?", one_less)
    assert tasks.any_ready(session, ("default",)).ready
    assert [each.name for each in claim(session)] == [NAME]
    assert right(session)


def test_what_a_source_has_brought_is_not_dropped(app, session, load):
    app.queue("others", max_length=3, when_full="drop_oldest")
    other = app.task(name="other", queue="others")(lambda: None)
    subscribe(app, NAME, queue="others", id=2)
    subscribe(app, NAME, queue="others", id=3, ordering="none", most=1)
    change(app, 1, id=2)
    change(app, id=3)
    brought = session.run(lambda t: tasks.claim(t, 1, "others", 10))
    finish(session, *brought, outcome=RELEASED)  # they are ready, and the oldest
    dropped = other.delay()
    other.delay()
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == [(int(dropped.id),)]
    execute(app, "UPDATE QUEUE_TASK SET STATE = 2 WHERE NAME = 'other'")
    with pytest.raises(QueueFull, match="none of them waits to be dropped"):
        other.delay()
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = ?", NAME) == 2
