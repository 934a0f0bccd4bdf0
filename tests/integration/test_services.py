"""The operations behind the command line, called directly, as another front end calls them."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from support.listing import tasks_in
from support.registering import register
from support.sql import execute, one, rows, table_reads

from fbtasks import ConfigurationError, FBTasks, SchemaError, TaskNotFound
from fbtasks.database.schema import migrations
from fbtasks.queue import results
from fbtasks.queue.operations import queues, tasks, workers
from fbtasks.queue.operations.tasks import Filter, TaskChange
from fbtasks.states import State
from fbtasks.tasks.serialize import Payload, json_value
from fbtasks.testing import drain

pytestmark = pytest.mark.emptied


@pytest.fixture
def shop(app):
    """An app with a task that fails when it is told to."""

    @app.task(name="shop.send", max_retries=0)
    def send(order, fail=False):
        if fail:
            raise ValueError(f"order {order}")
        return [order]

    app.send = send
    return app


def outcomes(changes):
    return {change.given: (change.outcome, change.state) for change in changes.tasks}


def test_a_list_has_pages_and_filters(shop):
    ids = [int(result.id) for result in shop.send.delay_many([(n, True) for n in range(5)])]
    drain(shop)
    shop.send.apply_async((9,), queue="mail")

    def page(**wanted):
        return tasks_in(shop, State.FAILED, **wanted)

    pages = [page(limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [(len(found), more) for found, more in pages] == [(2, True), (2, True), (1, False), (0, False)]
    assert sorted(row.id for found, _ in pages for row in found) == ids
    assert {(row.state, row.error_msg) for row in pages[2][0]} <= {(State.FAILED, f"order {n}") for n in range(5)}
    assert page(name="shop.other") == page(since=datetime.now(UTC) + timedelta(hours=1)) == ([], False)
    assert len(page(until=datetime.now(UTC) + timedelta(hours=1), queue="default")[0]) == 5
    waiting, _ = tasks_in(shop, State.READY, queue="mail")
    assert [row.queue for row in waiting] == ["mail"]
    with pytest.raises(ConfigurationError, match=r"unknown queue 'mial': .* Known queues: default, mail\."):
        page(queue="mial")


ENDED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < 60) DO BEGIN
            INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
                TRY_COUNT, CRASH_COUNT, CONTENT_TYPE)
            VALUES (MOD(:I * 37, 60) + 1, 'shop.send', 'mail', 11, 0, '2020-01-01', '2020-01-01',
                IIF(:I < 50, TIMESTAMP '2020-01-02', TIMESTAMP '2020-01-03'), 1, 0, 'application/json');
            I = I + 1;
        END END"""
"""60 failed tasks: 50 that ended in one millisecond, and 10 in a later one."""


BOUNDS = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime.now(UTC)}


@pytest.mark.parametrize("wanted", [{}, {"queue": "mail", "name": "shop.send", **BOUNDS}], ids=["all", "some"])
def test_tasks_that_ended_in_one_millisecond_are_on_one_page_each(shop, wanted):
    shop.migrate()
    execute(shop, ENDED)
    shop.send.apply_async((1,), queue="mail")  # makes the queue known
    found, more = [], True
    while more:
        page, more = tasks_in(shop, State.FAILED, limit=7, offset=len(found), **wanted)
        found += page
    assert sorted(row.id for row in found) == list(range(1, 61))
    assert [row.finish_time.day for row in found] == [3] * 10 + [2] * 50
    with closing(shop.database.open()) as session:
        list(results.listing(session, State.FAILED, Filter(limit=7, **wanted)))
        assert table_reads(session, "QUEUE_HISTORY") == (0, 7), "no more than it shows, in the order of the index"


def test_one_task_is_shown_with_arguments_and_outcome(shop):
    good, bad = shop.send.apply_async((1,), task_id="order-1"), shop.send.delay(2, fail=True)
    before = tasks.get_task(shop.database, "order-1")
    assert (before.row.state, before.result, before.traceback) == (State.READY, None, None)
    drain(shop)
    found = tasks.get_task(shop.database, "order-1")
    assert (found.row.task_id, found.row.state, json_value(found.result)) == ("order-1", State.SUCCEEDED, [1])
    failed = tasks.get_task(shop.database, bad.id)
    assert json_value(failed.arguments) == [[2], {"fail": True}]
    assert (failed.result, "ValueError: order 2" in failed.traceback) == (None, True)
    assert json_value(Payload("application/x-cloudpickle", b"\x80")) is None
    assert tasks.find_number(shop.database, good.id) == found.row.id
    for look in (tasks.get_task, tasks.find_number):
        with pytest.raises(TaskNotFound, match="there is no task 'nosuch'"):
            look(shop.database, "nosuch")


def test_tasks_are_changed_and_what_is_refused_is_told_with_the_reason(shop, claim):
    worker = register(shop)
    failed, good = shop.send.apply_async((1, True), task_id="failed"), shop.send.apply_async((2,), task_id="good")
    drain(shop)
    runs = shop.send.apply_async((3,), task_id="runs")
    claim(worker=worker)
    shop.send.apply_async((4,), task_id="waits", countdown=3600)

    (row,) = workers.list_workers(shop.database)
    assert (row.id, row.name, row.queues, row.running, row.lease_left > 0) == (worker, "w@host", ("default",), 1, True)
    changes = tasks.cancel(shop.database, ["runs", "waits", "good"])
    assert outcomes(changes) == {
        "runs": ("requested", "running"),
        "waits": ("cancelled", "cancelled"),
        "good": ("unchanged", "succeeded"),
    }
    assert (changes.count, changes.condition) == (1, "only tasks that have not ended are cancelled")
    assert [change.given for change in changes.requested] == ["runs"]
    assert [change.given for change in changes.refused] == ["good"]

    changes = tasks.retry(shop.database, ["failed", "waits", "runs"])
    assert outcomes(changes) == {
        "failed": ("retried", "ready"),
        "waits": ("retried", "ready"),
        "runs": ("unchanged", "running"),
    }
    assert (changes.count, changes.condition) == (2, "only failed and cancelled tasks are put back")

    number = tasks.find_number(shop.database, "good")
    changes = tasks.discard(shop.database, ["good", runs.id])
    assert changes.tasks[0] == TaskChange("good", number, "discarded", None)
    assert (changes.count, [change.given for change in changes.refused]) == (1, ["runs"])
    with pytest.raises(TaskNotFound):
        tasks.get_task(shop.database, good.id)
    assert failed.status == "PENDING"


def test_queues_are_counted_and_purged(shop):
    register(shop, queues=["default,idle"])
    shop.send.delay_many([(n,) for n in range(3)])
    shop.send.apply_async((3,), countdown=3600)
    shop.send.apply_async((4,), queue="mail")
    found = {row.queue: (row.ready, row.scheduled, row.workers) for row in queues.list_queues(shop.database)}
    assert found == {"default": (3, 1, 1), "idle": (0, 0, 1), "mail": (1, 0, 0)}
    assert [row.queue for row in queues.list_queues(shop.database, "mail")] == ["mail"]
    assert [row.waiting for row in queues.list_queues(shop.database, "default")] == [4]
    assert sum(queues.purge(shop.database, "default")) == 4
    assert [row.waiting for row in queues.list_queues(shop.database, "default")] == [0]
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_TASK") == 1
    for ask in (queues.list_queues, queues.purge):
        with pytest.raises(ConfigurationError, match="unknown queue 'mial'"):
            list(ask(shop.database, "mial"))


def test_statistics_are_of_a_window_and_of_a_queue(shop):
    shop.send.delay_many([(1,), (2, True)])
    shop.send.apply_async((3,), queue="mail")
    drain(shop, ["default", "mail"])
    shop.send.delay(4)
    day = timedelta(days=1)
    found = queues.get_statistics(shop.database, day)
    assert sum(row.succeeded for row in found.counters) == 2
    assert [(row.queue, row.ready) for row in found.queues] == [("default", 1)]
    found = queues.get_statistics(shop.database, day, "mail")
    assert [(row.queue, row.succeeded, row.failed) for row in found.counters] == [("mail", 1, 0)]
    assert found.queues == []
    assert queues.get_statistics(shop.database, -day).counters == []
    assert [row.waiting for row in queues.list_queues(shop.database, "mail")] == [0]  # known by what has ended
    for ask in (
        lambda: queues.get_statistics(shop.database, day, "mial"),
        lambda: tasks.retry_failed(shop.database, Filter(queue="mial")),
    ):
        with pytest.raises(ConfigurationError, match="unknown queue 'mial'"):
            ask()


def test_health_tells_which_queues_are_not_served_or_wait_too_long(shop):
    found = workers.get_health(shop.database, 300.0)
    assert (found.healthy, found.workers, found.unserved, found.overdue) == (False, 0, [], {})
    register(shop)
    found = workers.get_health(shop.database, 300.0)
    assert (found.healthy, found.workers) == (True, 1)
    shop.send.delay(1)
    shop.send.apply_async((2,), queue="mail")
    execute(shop, "UPDATE QUEUE_TASK SET RAISE_TIME = DATEADD(-1 HOUR TO RAISE_TIME),"
                  " START_TIME = DATEADD(-1 HOUR TO START_TIME) WHERE QUEUE = 'default'")  # fmt: skip
    found = workers.get_health(shop.database, 300.0)
    assert (found.healthy, found.unserved, list(found.overdue)) == (False, ["mail"], ["default"])
    assert 3600 <= found.overdue["default"] < 3900
    assert workers.get_health(shop.database, 7200.0).overdue == {}


@pytest.mark.embedded("there is no file")
@pytest.mark.no_database
def test_a_database_is_migrated_once(url):
    app = FBTasks("new", url)
    with pytest.raises(SchemaError, match="there is no queue"):
        workers.list_workers(app.database)
    done = app.database.migrate()
    assert done.versions == list(migrations())
    assert {"limits", "workflows"} < done.features.keys()  # a new file says what was made in it, once
    assert app.database.migrate() == ([], {}, False)
    assert app.migrate() == []
    assert workers.list_workers(app.database) == []
    app.close()


def test_tasks_that_are_put_back_may_begin_one_after_the_other(app, session):
    """Those with a limit too, which wait for it when their time has come."""
    app.limit("one", at_once=1)
    plain = app.task(name="plain", max_retries=0)(lambda: 1 / 0)
    limited = app.task(name="limited", max_retries=0, limits={"one": None})(lambda: 1 / 0)
    ids = [int(task.delay().id) for task in (plain, limited, plain, limited)]
    drain(app)
    packed = b"".join(b"%019d" % number for number in [ids[0], 4711, *ids[1:]])
    assert session.call("FBTASKS_OPERATOR.RETRY_MANY", packed, 60_000, 1_000) == 4
    found = rows(app, "SELECT STATE, START_TIME FROM QUEUE_TASK ORDER BY ID")
    first = found[0][1]
    assert found == [(State.SCHEDULED, first + timedelta(seconds=number)) for number in range(4)]
    assert 55 < one(app, "SELECT DATEDIFF(SECOND FROM QUEUE_NOW() TO MIN(START_TIME)) FROM QUEUE_TASK") <= 60
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO START_TIME)")
    drain(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 11") == 4
