"""Windows of queues and of tasks, and idle work, with workers in the test's process."""

from contextlib import closing
from datetime import UTC, timedelta

import pytest
from support.draining import drain
from support.loops import opened, running
from support.sql import NOW, execute, one, rows

from fbtasks import FBTasks
from fbtasks.features.queues import duty as queue_limits
from fbtasks.features.queues import store as limits
from fbtasks.queue import results, tasks
from fbtasks.queue.operations.queues import list_queues
from fbtasks.queue.operations.workers import get_health
from fbtasks.worker import fetcher

pytestmark = pytest.mark.emptied


def now_of(app):
    with app.database.session() as session:
        return results.now(session)


def open_now(app):
    """The options of a window that is open now, and for an hour at least, in UTC."""
    now = now_of(app)
    begin, end = now - timedelta(hours=2), now + timedelta(hours=2)
    return {"run_between": (f"{begin:%H:%M}", f"{end:%H:%M}")}


def closed_now(app):
    now = now_of(app)
    begin, end = now + timedelta(hours=2), now + timedelta(hours=4)
    return {"run_between": (f"{begin:%H:%M}", f"{end:%H:%M}")}


def opening(app):
    """When the window of closed_now() opens, to the minute."""
    now = now_of(app)
    return (now + timedelta(hours=2)).replace(second=0, microsecond=0)


def policy(app, queue="nightly"):
    with app.database.session() as session:
        return next(found for found in limits.policies(session) if found.queue == queue)


def look(app, *queues):
    with app.database.session() as session:
        return tasks.any_ready(session, queues)


def test_a_queue_runs_in_its_window_alone(app, url):
    due = opening(app)
    app.queue("nightly", **closed_now(app))
    add = app.task(name="add", queue="nightly")(lambda a, b: a + b)
    result = add.delay(1, 2)
    drain(app, ["nightly"])
    assert result.status == "PENDING"
    found = look(app, "nightly")
    assert not found.ready
    assert abs(timedelta(seconds=found.again) - (due - now_of(app))) < timedelta(seconds=90)
    with closing(FBTasks("test", url)) as later:
        later.queue("nightly", **open_now(app))
        later.task(name="add", queue="nightly")(lambda a, b: a + b)
        drain(later, ["nightly"])
    assert result.get(1) == 3


def test_a_worker_claims_when_its_queue_opens(app, monkeypatch):
    """Nothing but the opening has it look: no event arrives, and it polls once in an hour."""
    app.queue("nightly", **closed_now(app))
    result = app.task(name="add", queue="nightly")(lambda a, b: a + b).delay(1, 2)
    ((opens,),) = execute(
        app,
        "INSERT INTO QUEUE_SHIFT (QUEUE, OPEN_TIME, CLOSE_TIME) "
        f"VALUES ('nightly', DATEADD(3 SECOND TO {NOW}), DATEADD(1 HOUR TO {NOW})) RETURNING OPEN_TIME",
    )
    monkeypatch.setattr(fetcher, "POLL_LAST", 3600.0)
    with opened(app, queues=("nightly",)) as loop:
        loop._fetcher.claim(loop.connection.session)
        monkeypatch.setattr(loop._fetcher._poll, "_pause", 3600.0)
        with running(loop):
            assert result.get(30) == 3
    assert one(app, "SELECT CLAIM_TIME FROM QUEUE_HISTORY") >= opens


def test_a_task_outside_its_window_waits_for_the_opening_without_a_try(app):
    due = opening(app)
    late = app.task(name="late", **closed_now(app))(lambda: 1)
    soon = app.task(name="soon", **open_now(app))(lambda: 2)
    waits, runs = late.delay(), soon.delay()
    drain(app)
    assert runs.get(1) == 2
    assert waits.status == "PENDING"
    state, tries, start, worker = rows(app, "SELECT STATE, TRY_COUNT, START_TIME, WORKER_ID FROM QUEUE_TASK")[0]
    assert (state, tries, worker) == (1, 0, None)
    assert due <= start.replace(tzinfo=UTC) < due + timedelta(seconds=90)
    assert waits.revoke()
    assert waits.status == "REVOKED"


def test_when_a_queue_is_open_is_written_on(app, session):
    app.queue("nightly", run_between=("22:00", "06:00"), days="mon-fri", tz="Europe/Berlin")
    app.connect().close()
    ahead = policy(app).shifts_until - policy(app).now
    assert ahead > timedelta(days=30)
    execute(app, f"DELETE FROM QUEUE_SHIFT WHERE CLOSE_TIME > DATEADD(5 DAY TO {NOW})")
    queue_limits.audit(session)
    assert policy(app).shifts_until - policy(app).now > timedelta(days=30)
    for begin, end in rows(app, "SELECT OPEN_TIME, CLOSE_TIME FROM QUEUE_SHIFT ORDER BY 1"):
        window = app.features["queues"].definitions["nightly"].window
        assert window.is_open(begin.replace(tzinfo=UTC))
        assert window.is_open(end.replace(tzinfo=UTC) - timedelta(milliseconds=1))


def test_hours_that_changed_in_the_code_take_the_place_of_the_old_ones(app, session):
    app.queue("nightly", **open_now(app))
    app.connect().close()
    assert policy(app).is_open
    with closing(FBTasks("test", app.settings.url)) as later:
        later.queue("nightly", **closed_now(app))
        window = later.features["queues"].definitions["nightly"].window
        queue_limits.sync_queues(session, "test", later.features["queues"].definitions.values())
    assert not policy(app).is_open
    shifts = rows(app, "SELECT OPEN_TIME, CLOSE_TIME FROM QUEUE_SHIFT ORDER BY 1")
    assert len(shifts) > 30
    assert all(window.is_open(opens.replace(tzinfo=UTC)) for opens, _ in shifts)


def test_a_closed_queue_is_not_overdue(app):
    app.queue("nightly", **closed_now(app))
    app.task(name="add", queue="nightly")(lambda: None).delay()
    execute(
        app, f"UPDATE QUEUE_TASK SET RAISE_TIME = DATEADD(-9 HOUR TO {NOW}), START_TIME = DATEADD(-9 HOUR TO {NOW})"
    )
    assert get_health(app.database, 60).overdue == {}
    execute(
        app, f"UPDATE QUEUE_SHIFT SET OPEN_TIME = DATEADD(-10 SECOND TO {NOW}), CLOSE_TIME = DATEADD(1 HOUR TO {NOW})"
    )
    assert get_health(app.database, 60).overdue == {}
    assert list(get_health(app.database, 5).overdue) == ["nightly"]


def test_the_list_of_queues_shows_limits_and_windows(app):
    app.queue("nightly", max_length=3, when_full="reject", days="mon-sun", tz="Europe/Berlin")
    app.queue("later", **closed_now(app))
    app.task(name="add", queue="nightly")(lambda: None).delay()
    app.send_task("add", queue="later")
    found = {row.queue: row for row in list_queues(app.database)}
    assert (found["nightly"].length, found["nightly"].max_length, found["nightly"].is_open) == (1, 3, True)
    assert found["nightly"].facts["window"] == "mon-sun Europe/Berlin"
    assert (found["later"].max_length, found["later"].is_open) == (None, False)
    assert abs(found["later"].opens - opening(app)) < timedelta(seconds=90)


def test_idle_work_is_done_when_nothing_else_is(app):
    """In each of the worker's queues, one task at a time, so that each claim is a choice."""
    order = []
    idle = app.task(name="idle", idle=True)(lambda n: order.append(n))
    for name, queue in (("a", "first"), ("b", "second")):
        task = app.task(name=name, queue=queue, priority=-9998)(lambda n: order.append(n))
        idle.apply_async((f"idle {name}",), queue=queue)
        task.delay_many([(f"{name}{n}",) for n in range(3)])
    drain(app, ["first", "second"])
    assert set(order[:6]) == {"a0", "a1", "a2", "b0", "b1", "b2"}
    assert set(order[6:]) == {"idle a", "idle b"}


def test_a_call_with_a_priority_of_its_own_is_not_idle(app):
    order = []
    idle = app.task(name="idle", idle=True)(lambda n: order.append(n))
    idle.delay(1)
    idle.apply_async((2,), priority=0)
    app.task(name="other")(lambda n: order.append(n)).apply_async((3,), priority=-1)
    drain(app)
    assert order == [2, 3, 1]


@pytest.mark.parametrize("room", [1, 4])
def test_idle_work_takes_what_room_is_left(app, session, room):
    from fbtasks.worker.claiming import Claiming

    idle, plain = app.task(name="idle", idle=True)(print), app.task(name="plain")(print)
    idle.delay_many([()] * 5)
    plain.delay_many([()] * 2)
    taken = session.run(lambda t: Claiming(["default"]).claim(t, 1, room))
    names = [claim.name for claim in taken.claims]
    assert names == (["plain"] if room == 1 else ["plain", "plain", "idle", "idle"])
