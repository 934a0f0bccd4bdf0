"""Queues with a limit: never more than it holds, whoever enqueues and how, and whatever dies."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from firebird.driver import Isolation, tpb
from support.draining import drain
from support.programs import started
from support.sql import execute, one, rows

from fbtasks import FBTasks, QueueFull
from fbtasks.errors import TaskRevoked
from fbtasks.features.queues import duty as queue_limits
from fbtasks.features.queues import store as limits
from fbtasks.queue.operations import tasks as task_service

KINDS = {
    "snapshot": Isolation.SNAPSHOT,
    "read consistency": Isolation.READ_COMMITTED_READ_CONSISTENCY,
    "record version": Isolation.READ_COMMITTED_RECORD_VERSION,
    "no record version": Isolation.READ_COMMITTED_NO_RECORD_VERSION,
}
UNFINISHED = "SELECT COUNT(*) FROM QUEUE_TASK WHERE QUEUE = 'imports'"


def bounded(url, most=10, *, wait_for=None, **options):
    app = FBTasks("test", url)
    app.queue("imports", max_length=most, wait_for=wait_for, **options)

    @app.task(name="load", queue="imports")
    def load(n=0):
        return n

    return app, load


@pytest.fixture
def opened(url):
    """Apps that are closed at the end."""
    apps = []

    def make(*args, **options):
        found = bounded(url, *args, **options)
        apps.append(found[0])
        return found

    yield make
    for app in apps:
        app.close()


def policy(app):
    with app.database.session() as session:
        (found,) = limits.policies(session)
    return found


def audit(app):
    with app.database.session() as session:
        queue_limits.audit(session)


def fill(load, most=10):
    return load.delay_many([(n,) for n in range(most)])


def test_one_more_is_refused_and_there_is_room_when_one_has_ended(opened):
    app, load = opened(3, when_full="reject")
    first, *_ = fill(load, 3)
    with pytest.raises(QueueFull) as refused:
        load.delay()
    assert str(refused.value) == (
        "the queue imports is full: it may hold 3 tasks that have not ended. Enqueue the task again when some have "
        "ended, or raise the max_length of the queue."
    )
    assert first.revoke()
    load.delay()
    with pytest.raises(QueueFull):
        load.delay()
    drain(app, ["imports"])
    fill(load, 3)
    assert policy(app).places_are_right
    load.apply_async(queue="default")
    load.apply_async(queue="default")
    assert rows(app, "SELECT DISTINCT HAS_PLACE FROM QUEUE_TASK WHERE QUEUE = 'default'") == [(False,)]


def test_scheduled_running_and_retried_tasks_keep_their_place(opened, app):
    app, load = opened(2, when_full="reject")
    tries = []

    @app.task(
        name="twice",
        queue="imports",
        max_retries=1,
        autoretry_for=(ValueError,),
        default_retry_delay=3600,
        retry_backoff=False,
    )
    def twice():
        tries.append(1)
        with pytest.raises(QueueFull):
            load.delay()
        raise ValueError

    twice.delay()
    load.apply_async(countdown=3600)
    drain(app, ["imports"])
    assert tries == [1]
    with pytest.raises(QueueFull):
        load.delay()


def test_many_are_enqueued_all_or_none(opened):
    app, load = opened(1000, when_full="reject")
    fill(load, 5)
    with pytest.raises(QueueFull):
        fill(load, 996)  # several strings
    assert one(app, UNFINISHED) == 5
    with app.connect() as connection:
        connection.begin()
        load.using(connection).delay()
        with pytest.raises(QueueFull):
            load.using(connection).delay_many([(n,) for n in range(995)])
        load.using(connection).delay_many([(n,) for n in range(994)])
        connection.commit()
    assert one(app, UNFINISHED) == 1000
    assert policy(app).places_are_right


def test_a_call_waits_for_room(opened, wait_for):
    app, load = opened(1, wait_for=30)
    first = load.delay()
    came = []
    thread = threading.Thread(target=lambda: came.append(load.delay(7)))
    thread.start()
    time.sleep(0.3)
    assert not came
    first.revoke()
    thread.join(10)
    assert one(app, UNFINISHED) == 1
    assert came


def test_a_call_waits_no_longer_than_it_may(opened):
    _, load = opened(1, wait_for=0.3)
    load.delay()
    began = time.monotonic()
    with pytest.raises(QueueFull, match=r"It was still full after 0\.3 seconds"):
        load.delay()
    assert 0.3 <= time.monotonic() - began < 5


def test_nothing_waits_in_the_callers_transaction_and_in_sql(opened):
    app, load = opened(1, wait_for=30)
    execute(app, "SELECT ID FROM FBTASKS.ENQUEUE('load', '[5]', '{}', NULL, 'imports')")  # which takes a place too
    began = time.monotonic()
    with app.connect() as connection:
        connection.begin()
        with pytest.raises(QueueFull):
            load.using(connection).delay()
        with pytest.raises(Exception, match="QUEUE_FULL") as refused:
            connection.cursor().execute(
                "SELECT ID FROM FBTASKS.ENQUEUE('load', '[]', '{}', NULL, 'imports')"
            ).fetchall()
        assert "the queue imports is full" in str(refused.value)
        assert "raise the max_length" in str(refused.value)
        connection.rollback()
    assert time.monotonic() - began < 10


def test_the_oldest_that_is_ready_is_dropped(opened):
    app, load = opened(3, when_full="drop_oldest")
    first, second, third = fill(load, 3)
    fourth = load.apply_async((4,), priority=-5)
    assert [each.status for each in (first, second, third, fourth)] == ["REVOKED", "PENDING", "PENDING", "PENDING"]
    with pytest.raises(TaskRevoked, match="dropped: the queue is full"):
        first.get(1)
    load.apply_async((5,))
    assert (fourth.status, second.status) == ("REVOKED", "PENDING")  # of the lowest priority
    load.apply_async((6,))
    assert second.status == "REVOKED"
    assert one(app, UNFINISHED) == 3
    assert policy(app).places_are_right
    fill(load, 30)
    assert one(app, UNFINISHED) == 3


def test_what_does_not_wait_is_not_dropped(opened):
    app, load = opened(2, when_full="drop_oldest")
    load.apply_async(countdown=3600)
    load.apply_async(countdown=3600)
    with pytest.raises(QueueFull, match="none of them waits to be dropped"):
        load.delay()
    assert policy(app).places_are_right


def test_the_newest_is_dropped_and_says_so(opened):
    app, load = opened(2, when_full="drop_newest")
    kept = fill(load, 2)
    dropped = load.delay("x" * 4000)
    assert dropped.status == "REVOKED"
    with pytest.raises(TaskRevoked, match="dropped: the queue is full"):
        dropped.get(1)
    assert [each.status for each in kept] == ["PENDING", "PENDING"]
    assert [each.status for each in fill(load, 4)] == ["REVOKED"] * 4
    assert load.apply_async((1,), task_id="once").status == "REVOKED"
    drain(app, ["imports"])
    again = load.apply_async((2,), task_id="once")  # the id of what was dropped is free
    assert (again.duplicate, again.status) == (False, "PENDING")
    assert load.apply_async((3,), task_id="once").duplicate
    task_service.retry(app.database, [dropped.id])
    drain(app, ["imports"])
    assert (len(dropped.get(1)), again.get(1)) == (4000, 2)
    assert policy(app).places_are_right


def test_the_limit_is_there_before_any_worker_for_every_way_to_enqueue(url):
    app, load = bounded(url, 1, when_full="reject")
    with closing(app), app.connect() as connection:
        connection.begin()
        load.using(connection).delay()
        with pytest.raises(QueueFull):
            load.using(connection).delay()
        connection.commit()
    other, load = bounded(url, 2, when_full="reject")  # another definition waits for a worker, or for migrate
    with closing(other):
        with pytest.raises(QueueFull):
            load.delay()
        drain(other, ["others"])
        load.delay()
        with pytest.raises(QueueFull):
            load.delay()


def test_a_limit_that_grows_and_shrinks(opened, url):
    app, load = opened(2, when_full="reject")
    fill(load, 2)
    app, load = opened(5, when_full="reject")
    drain(app, ["others"])
    fill(load, 3)
    with pytest.raises(QueueFull):
        load.delay()
    app, load = opened(2, when_full="reject")
    drain(app, ["others"])
    found = policy(app)
    assert (found.free, found.owed, found.unfinished) == (0, 3, 5)
    ids = [id for (id,) in rows(app, "SELECT ID FROM QUEUE_TASK")]
    for id in ids[:3]:
        app.AsyncResult(id).revoke()
        with pytest.raises(QueueFull):
            load.delay()
    app.AsyncResult(ids[3]).revoke()
    load.delay()
    with pytest.raises(QueueFull):
        load.delay()
    audit(app)
    assert policy(app).places_are_right
    free = FBTasks("test", url)
    with closing(free):
        free.queue("imports")
        drain(free, ["others"])
        assert one(free, "SELECT COUNT(*) FROM QUEUE_PLACE") == 0
        for _ in range(5):
            free.send_task("load", queue="imports")


def test_a_limit_on_a_queue_that_holds_tasks(url):
    with closing(FBTasks("test", url)) as before:
        before.task(name="load", queue="imports")(lambda: None).delay_many([()] * 3)
    app, load = bounded(url, 4, when_full="reject")
    with closing(app):
        load.delay()
        with pytest.raises(QueueFull):
            load.delay()
        drain(app, ["imports"])
        audit(app)
        assert policy(app).free == 4


def test_places_that_were_lost_by_hand_are_put_right(opened):
    app, load = opened(4, when_full="reject")
    fill(load, 2)
    for statement in (
        "DELETE FROM QUEUE_PLACE",
        "UPDATE QUEUE_TASK SET HAS_PLACE = FALSE WHERE ID = (SELECT MIN(ID) FROM QUEUE_TASK)",
        "INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES ('imports', 7)",
        "INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES ('imports', -1)",
    ):
        execute(app, statement)
        audit(app)
        found = policy(app)
        assert found.places_are_right
        assert (found.free, found.owed, found.unfinished) == (2, 0, 2)


def test_an_operators_retry_takes_a_place(opened):
    app, load = opened(1, when_full="reject")
    first = load.delay()
    first.revoke()
    load.delay()
    with app.database.session() as session, pytest.raises(QueueFull):
        session.call("FBTASKS_OPERATOR.RETRY", int(first.id))
    drain(app, ["imports"])
    with app.database.session() as session:
        assert session.call("FBTASKS_OPERATOR.RETRY", int(first.id))
    with pytest.raises(QueueFull):
        load.delay()
    assert policy(app).places_are_right


def produce(url, kind, wait, number, out):
    """Enqueues and ends tasks for a while, each time in a transaction of its kind."""
    app, load = bounded(url, 10, when_full="reject")
    rng, met = random.Random(number), {"enqueued": 0, "full": 0, "other": []}
    with closing(app), app.connect() as connection:
        transaction = connection.transaction_manager(tpb(KINDS[kind], lock_timeout=-1 if wait else 0))
        for _ in range(30):
            transaction.begin()
            try:
                if rng.random() < 0.5:  # a snapshot is from before others enqueue
                    transaction.cursor().execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchall()
                    time.sleep(rng.random() * 0.01)
                load.using(transaction).delay()
                time.sleep(rng.random() * 0.005)
                transaction.commit()
                met["enqueued"] += 1
            except QueueFull:
                met["full"] += 1
                transaction.rollback()
            except Exception as error:
                met["other"].append(f"{type(error).__name__}: {error}"[:300])
                transaction.rollback()
            if rng.random() < 0.5:
                with app.database.session() as session:
                    session.call("FBTASKS_OPERATOR.PURGE", "imports", 1)
    out.put((kind, wait, met))


def watch(url, stop, out):
    most, wrong = 0, 0
    with closing(FBTasks("watch", url)) as app, app.database.session() as session:
        while not stop.is_set():
            for found in limits.policies(session):
                most, wrong = max(most, found.unfinished), wrong + (not found.places_are_right)
            time.sleep(0.01)
    out.put((most, wrong))


def test_eight_producers_in_every_kind_of_transaction_never_exceed_the_limit(url, monkeypatch):
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where the server finds what it is to import
    context.set_forkserver_preload([__name__])  # what they import is half of what they do
    out, seen, stop = context.Queue(), context.Queue(), context.Event()
    app, _ = bounded(url, 10, when_full="reject")
    with closing(app):
        drain(app, ["others"])
        watcher = context.Process(target=watch, args=(url, stop, seen))
        kinds = [(kind, wait) for kind in KINDS for wait in (True, False)]
        producers = [context.Process(target=produce, args=(url, *kind, n, out)) for n, kind in enumerate(kinds)]
        for process in (watcher, *producers):
            process.start()
        found = [out.get(timeout=120) for _ in producers]
        stop.set()
        most, wrong = seen.get(timeout=30)
        for process in (watcher, *producers):
            process.join(30)
    assert [met["other"] for *_, met in found] == [[]] * 8
    assert all(met["enqueued"] for *_, met in found)
    assert sum(met["full"] for *_, met in found) > 0
    assert 5 < most <= 10  # the watcher looks a hundred times a second, and may miss the moments in which it is full
    assert wrong == 0


PRODUCER = """
import sys
from fbtasks import FBTasks, QueueFull
app = FBTasks("test", sys.argv[1])
app.queue("imports", max_length=10, when_full="reject")
load = app.task(name="load", queue="imports")(lambda n=0: n)
connection = app.connect()
while True:
    connection.begin()
    try:
        load.using(connection).delay_many([(1,), (2,)])
        print("on", flush=True)
        connection.commit()
    except QueueFull:
        connection.rollback()
        print("full", flush=True)
"""


def test_places_are_right_after_producers_were_killed(url, wait_for):
    app, load = bounded(url, 10, when_full="reject")
    with closing(app):
        for n in range(3):
            child = started(PRODUCER, url, stdout=subprocess.PIPE)
            child.stdout.readline()
            time.sleep(0.02 * n)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
            app.database.close()
            drain(app, ["imports"])
        wait_for(lambda: one(app, UNFINISHED) == 0)
        found = wait_for(lambda: (now := policy(app)).free == 10 and now)
        assert found.places_are_right

        def takes_all():
            try:
                return fill(load, 10)
            except QueueFull:
                return None  # a dead producer's transaction holds some until the engine has seen its death

        wait_for(takes_all)


@pytest.mark.usefixtures("url")
def test_places_are_right_after_workers_were_killed(project, app, wait_for):
    project.write(
        """
        import time
        app.queue("imports", max_length=4, when_full="reject")
        @app.task(name="load", queue="imports")
        def load(seconds=0.0):
            time.sleep(seconds)
        """
    )
    app.queue("imports", max_length=4, when_full="reject")
    load = app.task(name="load", queue="imports")(lambda seconds=0.0: None)
    for _ in range(2):
        worker = project.worker("--queues", "imports", "--concurrency", "2")
        if one(app, UNFINISHED) == 0:
            load.delay_many([(60.0,)] * 2)
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2") == 2)
        worker.kill()
        worker.wait()
        assert policy(app).unfinished == 2
        assert policy(app).places_are_right
    fill(load, 2)
    with pytest.raises(QueueFull):
        load.delay()


def test_the_command_line_shows_and_brings_in_what_an_app_says(project):
    project.write(
        """
        app.queue("imports", max_length=3, when_full="reject")
        app.queue("nightly", run_between=("00:00", "24:00"), tz="Europe/Berlin")
        @app.task(name="load", queue="imports")
        def load(): ...
        """
    )
    assert (
        "The limits and windows of imports, nightly are those of the app."
        in project.run("migrate", "-A", "proj").stdout
    )
    assert "imports" not in project.run("migrate", "-A", "proj").stdout
    for _ in range(3):
        project.run("call", "-A", "proj", "load")
    refused = project.run("call", "-A", "proj", "load", check=False)
    assert (refused.returncode != 0, "the queue imports is full" in refused.stderr) == (True, True)
    title, imports, nightly = (line.split() for line in project.run("inspect", "queues").stdout.splitlines())
    assert title[-3:] == ["LENGTH", "OPEN", "WINDOW"]
    assert imports[-3:] == ["3", "of", "3"]
    assert nightly[-3:] == ["yes", "00:00-24:00", "Europe/Berlin"]
