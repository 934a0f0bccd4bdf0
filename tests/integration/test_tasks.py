"""Tasks, results and the store, on the real engine, drained in the test's own process."""

import asyncio
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from fbtasks import (
    AsyncResult,
    ConfigurationError,
    EnqueueError,
    FBTasks,
    PayloadTooLarge,
    ResultTimeout,
    SerializationError,
    TaskDefinitionError,
    TaskNotFound,
    TaskRevoked,
    UnknownQueueError,
    task,
)
from fbtasks.call import Finished, Stale, Succeeded
from fbtasks.states import State
from fbtasks.store import codec, results, tasks
from fbtasks.testing import drain, eager
from fbtasks.worker.consumer import Consumer, WorkerOptions
from fbtasks.worker.executors.solo import SoloExecutor


@pytest.fixture
def add(app):
    return app.task(name="add")(lambda a, b: a + b)


def count(app, sql):
    with app.connect() as connection:
        return one(connection, sql)


def one(connection, sql):
    with connection.cursor() as cursor:
        return cursor.execute(sql).fetchone()[0]


def test_delay_runs_and_gives_its_result(app, add):
    result = add.delay(2, 3)
    assert result.status == "PENDING"
    drain(app)
    assert (result.get(timeout=5), result.status, result.successful()) == (5, "SUCCESS", True)
    assert add(2, 3) == 5


def test_wrong_arguments_are_refused_at_enqueue(app, add):
    with pytest.raises(EnqueueError, match="'add' cannot be called"):
        add.delay(1)
    with pytest.raises(EnqueueError, match="countdown -1"):
        add.apply_async((1, 2), countdown=-1)
    with pytest.raises(EnqueueError, match="not both"):
        add.apply_async((1, 2), countdown=1, eta=datetime.now(UTC))
    with pytest.raises(SerializationError, match="'add'"):
        add.delay(object(), 1)
    with pytest.raises(EnqueueError, match="order-42"):
        add.apply_async((1, 2), task_id="42")


def test_one_id_is_enqueued_once(app, add):
    first = add.apply_async((1, 2), task_id="order-ä")
    second = add.apply_async((5, 5), task_id="order-ä")
    assert (first.duplicate, second.duplicate) == (False, True)
    drain(app)
    assert second.get(timeout=5) == 3
    assert add.apply_async((1, 2), task_id="order-ä").duplicate
    first.forget()
    assert not add.apply_async((1, 2), task_id="order-ä").duplicate


def test_priority_then_time(app):
    order = []
    note = app.task(name="note")(order.append)
    note.delay(2)
    note.apply_async((3,), priority=-1)
    note.apply_async((1,), priority=5)
    note.delay(2)
    drain(app)
    assert order == [1, 2, 2, 3]


def test_scheduled_tasks_wait_for_their_time(app, add, wait_for):
    late = add.apply_async((1, 1), countdown=3600)
    soon = add.apply_async((1, 2), countdown=0.2)
    past = add.apply_async((1, 3), eta=datetime.now() - timedelta(days=1))
    drain(app)
    assert past.get(timeout=1) == 4
    assert wait_for(lambda: drain(app) or soon.ready())
    assert late.status == "PENDING"


def test_scheduled_tasks_are_seen_without_events(app, add, wait_for):
    options = WorkerOptions(name="deaf", queues=("default",), pool="solo", concurrency=1)
    consumer = Consumer(app, SoloExecutor(app), options)
    consumer.start()
    consumer.open()
    thread = threading.Thread(target=consumer.run, kwargs={"listen": False})
    thread.start()
    try:
        assert add.delay(1, 1).get(timeout=20) == 2
        assert add.apply_async((1, 2), countdown=0.5).get(timeout=5) == 3
    finally:
        consumer.draining.begin()
        thread.join(20)
        consumer.close()


def test_naive_eta_is_local_time_and_aware_is_itself(app, add):
    for eta in (datetime.now() + timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)):
        number = int(add.apply_async((1, 1), eta=eta).id)
        with app.database.session() as session:
            start = results.find(session, number).start_time
        assert abs((start - datetime.now(UTC)).total_seconds() - 3600) < 60


def test_expired_tasks_are_revoked(app, add, wait_for):
    result = add.apply_async((1, 1), expires=0.05)
    wait_for(lambda: time.sleep(0.1) is None)
    drain(app)
    with pytest.raises(TaskRevoked, match="expired"):
        result.get(timeout=1)
    assert result.status == "REVOKED"


def test_using_the_callers_transaction(app, add):
    connection = app.connect()
    gone = add.using(connection).delay(1, 1)
    connection.rollback()
    kept = add.using(connection).delay(1, 2)
    drain(app)
    assert kept.status == "PENDING"
    connection.commit()
    connection.close()
    drain(app)
    assert kept.get(timeout=5) == 3
    with pytest.raises(ResultTimeout):
        gone.get(timeout=0.1)


def test_retries_and_the_end_of_them(app):
    seen = []

    @app.task(name="flaky", bind=True, max_retries=2)
    def flaky(self):
        seen.append(self.request.retries)
        self.retry(exc=ValueError("no luck"), countdown=0)

    result = flaky.delay()
    drain(app)
    assert seen == [0, 1, 2]
    with pytest.raises(ValueError, match="no luck") as caught:
        result.get(timeout=1)
    assert "Remote traceback" in caught.value.__notes__[0]
    assert "flaky" in result.traceback


def test_autoretry_with_the_calls_own_limit_and_hooks(app):
    heard = []
    options = {
        "autoretry_for": (OSError,),
        "default_retry_delay": 0,
        "on_failure": lambda r, e: heard.append((r.retries, e)),
    }
    bad = app.task(name="bad", **options)(lambda: open("/nosuch"))
    result = bad.apply_async(max_retries=4)
    drain(app)
    assert result.failed()
    assert heard[0][0] == 4
    with pytest.raises(FileNotFoundError):
        result.get(timeout=1)


def test_waiting_for_a_retry_is_shown(app):
    bad = app.task(name="bad", autoretry_for=(ZeroDivisionError,), default_retry_delay=3600)(lambda: 1 / 0)
    result = bad.delay()
    drain(app)
    assert result.status == "RETRY"
    assert result.revoke()
    with pytest.raises(TaskRevoked):
        result.get(timeout=1)


@pytest.mark.parametrize(
    "size", [codec.INLINE - 2, codec.INLINE - 1, codec.INLINE + 1, 65_533, 65_534, 131_068, 10_000_000]
)
def test_payloads_and_results_of_any_size(app, size):
    echo = app.task(name="echo")(lambda text: text)
    text = "x" * size
    result = echo.delay(text)
    drain(app)
    assert result.get(timeout=10) == text
    assert count(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 0


def test_payload_limit(url):
    app = FBTasks("small", url, payload_limit=100)
    echo = app.task(name="echo")(lambda text: text)
    with pytest.raises(PayloadTooLarge, match="'echo'"):
        echo.delay("x" * 100)


def test_a_result_that_cannot_be_serialised_fails_the_task(app):
    result = app.task(name="odd")(lambda: object()).delay()
    drain(app)
    with pytest.raises(SerializationError, match="'odd'"):
        result.get(timeout=1)


@pytest.mark.parametrize("ignore_result", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_returned_generator_fails_the_task_for_none_of_its_code_has_run(app, asynchronous, ignore_result):
    async def items():
        yield 1

    task = app.task(name="items", ignore_result=ignore_result)(
        lambda: items() if asynchronous else (number for number in range(3))
    )
    result = task.delay()
    drain(app)
    with pytest.raises(SerializationError, match=r"^task 'items' returned a generator, whose code has not run: "):
        result.get(timeout=1)


def test_a_returned_coroutine_is_run(app):
    async def answer():
        return 42

    result = app.task(name="answer")(lambda: answer()).delay()
    drain(app)
    assert result.get(timeout=1) == 42


def test_ignored_results_leave_only_their_count(app):
    result = app.task(name="quiet", ignore_result=True)(lambda: 1).delay()
    drain(app)
    assert result.get(timeout=1) is None
    assert count(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 0
    with app.database.session() as session:
        assert results.stats(session, timedelta(hours=1))[0].succeeded == 1


def test_unknown_ids(app, monkeypatch):
    monkeypatch.setattr("fbtasks.notify.outcomes.GRACE", 0.1)
    with pytest.raises(TaskNotFound, match="'123'"):
        app.AsyncResult(123).get()
    assert app.AsyncResult("never").status == "PENDING"
    assert not app.AsyncResult("never").revoke()


def test_get_times_out(app, add):
    with pytest.raises(ResultTimeout, match="goes on"):
        add.delay(1, 1).get(timeout=0.05)


def test_await(app, add):
    result = add.delay(1, 1)
    drain(app)

    async def main():
        return await result

    assert asyncio.run(main()) == 2


def test_bulk(app, add):
    found = add.delay_many([(i, 1) for i in range(1000)])
    assert len({result.id for result in found}) == 1000
    assert count(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1000


def test_unreadable_payloads_fail_and_the_worker_goes_on(app, add):
    add.delay(1, 1)
    connection = app.connect()
    connection.execute_immediate("UPDATE QUEUE_TASK SET PAYLOAD = x'ff00'")
    connection.commit()
    connection.close()
    good = add.delay(1, 1)
    drain(app)
    assert good.get(timeout=1) == 2
    with app.database.session() as session:
        failed = results.listing(session, State.FAILED, results.Filter())
    assert "cannot be read" in failed[0].error_msg


def test_from_plain_sql(app, add):
    connection = app.connect()
    number = one(connection, "SELECT ID FROM QUEUE_ENQUEUE_V1('add', '[20, 22]')")
    later = one(
        connection,
        "SELECT ID FROM QUEUE_ENQUEUE_V1('add', '[1, 2]', '{}', DATEADD(1 HOUR TO CURRENT_TIMESTAMP), 'reports', 7)",
    )
    connection.commit()
    connection.close()
    drain(app)
    assert app.AsyncResult(number).get(timeout=1) == 42
    with app.database.session() as session:
        row = results.find(session, later)
    assert (row.queue, row.priority, row.state) == ("reports", 7, State.SCHEDULED)


def test_a_stale_claim_changes_nothing(app, add):
    add.delay(1, 1)
    with app.database.session() as session:
        claim = session.run(lambda t: tasks.claim(t, 1, "default", 5))[0]
        assert session.run(tasks.release_orphans) == 1  # nobody knows a worker 1
        again = session.run(lambda t: tasks.claim(t, 2, "default", 5))[0]
        stale = session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Succeeded())]))
        assert stale == [Stale(claim.id, again.claim_id)]
        assert not session.run(lambda t: tasks.start(t, claim))
        assert results.live_state(session, claim.id)[0] is State.RUNNING
        assert (again.crash_count, again.suspect) == (0, 1)
        assert session.run(lambda t: tasks.finish(t, 2, 0, [Finished(again, Succeeded())])) == []
        assert session.run(lambda t: tasks.finish(t, 2, 0, [Finished(again, Succeeded())])) == [Stale(claim.id, 0)]


def test_definitions(app):
    app.task(name="one")(lambda: 1)
    with pytest.raises(TaskDefinitionError, match="'one'"):
        app.task(name="one")(lambda: 2)
    with pytest.raises(TaskDefinitionError, match="'retrys'"):
        app.task(retrys=1)
    with pytest.raises(TaskDefinitionError, match="belongs to no app"):
        task(lambda: 1).delay()


def test_declared_queues(url):
    app = FBTasks("strict", url, queues=["default", "mail"])
    with pytest.raises(UnknownQueueError, match="'mial'"):
        app.task(queue="mial")(lambda: 1)


def test_eager(tmp_path):
    """Runs calls and answers for them, in memory: no database is made."""
    app = FBTasks("eager", f"firebird://{tmp_path}/none.fdb")
    seen = []

    @app.task(name="double", bind=True)
    def double(self, x):
        seen.append((self.request.id, self.request.eager))
        return 2 * x

    with eager(app):
        done, other = double.delay(4), double.delay(5)
        assert (done.get(), done.get(timeout=0)) == (8, 8)
        assert (done.status, done.state, done.ready(), done.successful(), done.failed()) == (
            "SUCCESS", "SUCCESS", True, True, False,
        )  # fmt: skip
        assert (done.traceback, done.duplicate) == (None, False)
        named = double.apply_async((1,), task_id="mine")
        assert seen == [(done.id, True), (other.id, True), ("mine", True)]
        assert len({done.id, other.id, named.id}) == 3
        assert not done.revoke(terminate=True)
        assert done.forget()
        assert not done.forget()
        assert (done.status, done.ready()) == ("PENDING", False)
        with pytest.raises(TaskNotFound, match="forgotten"):
            done.get()
        bad = double.delay(None)
        assert (bad.status, bad.successful(), bad.failed()) == ("FAILURE", False, True)
        assert "in double" in bad.traceback
        with pytest.raises(TypeError):
            bad.get()
        assert [result.get() for result in double.delay_many([(1,), (2,)])] == [2, 4]
        assert app.send_task("double", (3,)).get() == 6
    assert not app.always_eager
    assert double.request.eager is False
    app.close()
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_had_by_its_id_as_celery_spells_it(app, add):
    result = add.apply_async((1, 1), task_id="order-7")
    number = result._number
    drain(app)
    for found in (AsyncResult("order-7", app=app), AsyncResult(number, app=app), AsyncResult(str(number), app)):
        assert found.get(timeout=5) == 2
        assert found == app.AsyncResult(found.id)
    assert AsyncResult(17, app=app).id == "17"
    with pytest.raises(ConfigurationError, match=r"the id comes first, as in AsyncResult\(17, app=app\)"):
        AsyncResult(app, "17")
    with pytest.raises(ConfigurationError, match=r"AsyncResult\('17'\) needs its app"):
        AsyncResult("17")
    with pytest.raises(ConfigurationError, match="'shop' is not an app of fbtasks"):
        AsyncResult("17", app="shop")
    for wrong in (None, True, 1.5, b"17", "", ["17"]):
        with pytest.raises(ConfigurationError, match="is not the id of a task"):
            app.AsyncResult(wrong)


@pytest.mark.parametrize("kind", ["ready", "scheduled"])
def test_the_claims_plan_follows_the_index(app, add, kind):
    """In index order: no sort and no natural scan, whatever waits and whatever has ended."""
    add.delay(1, 1)
    connection = app.connect()
    cursor = connection.cursor()
    due = "IIF(T.STATE = 1, T.START_TIME, NULL)"
    where, order = {
        "ready": ("T.STATE = 0 AND T.QUEUE = 'default'", "T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID"),
        "scheduled": (f"{due} BETWEEN TIMESTAMP '0001-01-01' AND LOCALTIMESTAMP", due),
    }[kind]
    statement = cursor.prepare(
        f"SELECT T.ID FROM QUEUE_TASK T WHERE {where} ORDER BY {order} FOR UPDATE WITH LOCK SKIP LOCKED"
    )
    plan = statement.plan
    statement.free()
    connection.close()
    assert "ORDER QUEUE_TASK_" in plan
    assert "SORT" not in plan
    assert "NATURAL" not in plan


@pytest.mark.embedded
def test_the_host_programs_signals_are_left_alone(url):
    for where in ("use()", "import threading; t = threading.Thread(target=use); t.start(); t.join()"):
        code = f"""
import os, signal, time
from fbtasks import FBTasks
app = FBTasks("a", {url!r})
def use():
    app.connect().close(); app.AsyncResult(1).status
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
{where}
assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25)
        assert done.returncode == -15, done.stderr


@pytest.mark.embedded
def test_a_fork_with_open_connections_is_refused_and_loses_nothing(app, project):
    out = project.python("""
        import os
        from fbtasks import FBTasks, ForkError
        app = FBTasks("a")
        t = app.task(name="t")(lambda: 1)
        t.delay_many([()] * 50)
        child = os.fork()
        if child == 0:
            try:
                t.delay()
            except ForkError:
                os._exit(7)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        t.delay_many([()] * 50)
        with app.connect() as connection, connection.cursor() as cursor:
            print(cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0])
    """)
    assert out.split() == ["7", "100"]


@pytest.mark.no_database
@pytest.mark.embedded
@pytest.mark.parametrize("who", ["app", "FBTasks('b')"])
def test_a_fork_while_another_thread_makes_the_first_connection_is_refused(project, who):
    out = project.python(f"""
        import os, signal, sys, threading, time, traceback
        from fbtasks import FBTasks, ForkError
        from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
        app = FBTasks("a")
        thread = threading.Thread(target=lambda: app.connect().close())
        def waits():
            frame = sys._current_frames().get(thread.ident)
            return any(each.f_code.co_name == "exclusive" for each, _ in traceback.walk_stack(frame))
        with exclusive(folder_of(app.settings.url.database) / "create.lock"):
            thread.start()
            while not waits():
                time.sleep(0.01)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    {who}.connect()
                except ForkError:
                    os._exit(7)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        thread.join()
        print(app.task(name="t")(lambda: 1).delay().status)
    """)
    assert out.split() == ["7", "PENDING"]


@pytest.mark.embedded
def test_a_lock_file_is_free_again_while_a_fork_lives(project):
    out = project.python("""
        import fcntl, os, pathlib
        from fbtasks.firebird.embedded.lockdir import exclusive, open_lock_file
        path = pathlib.Path("some.lock")
        reader, writer = os.pipe()
        with exclusive(path):
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
        fcntl.flock(open_lock_file(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(writer)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert out == "0\n"


@pytest.mark.embedded
def test_two_processes_with_different_temporary_folders_lose_nothing(project, tmp_path):
    code = "from fbtasks import FBTasks\nt = FBTasks('a').task(name='t')(lambda: 1)\nfor _ in range(60): t.delay()"
    running = []
    for number in range(2):
        folder = tmp_path / f"tmp{number}"
        folder.mkdir()
        env = {**project.env, "TMPDIR": str(folder)}
        running.append(subprocess.Popen([sys.executable, "-c", code], env=env))
    assert [process.wait(60) for process in running] == [0, 0]
    app = FBTasks("a", project.url)
    assert count(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 120
    app.close()


@pytest.mark.no_database
@pytest.mark.embedded
def test_twenty_processes_start_at_once_on_no_database(project):
    code = "from fbtasks import FBTasks\nFBTasks('a').task(name='t')(lambda: 1).delay()"
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=project.env, stderr=subprocess.PIPE, text=True)
        for _ in range(20)
    ]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert errors == [""] * 20
    app = FBTasks("a", project.url)
    assert count(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 20
    app.close()


def test_a_claim_reads_what_it_takes_and_no_more(app):
    """With 100,000 tasks scheduled and 100,000 finished: by the index alone, and no row but those it claims."""
    add = app.task(name="t")(lambda n: n)
    with app.connect() as connection:
        connection.execute_immediate("""
            EXECUTE BLOCK AS DECLARE I INTEGER = 0; DECLARE ID BIGINT; DECLARE D SMALLINT; BEGIN
                WHILE (I < 100000) DO BEGIN
                    EXECUTE PROCEDURE QUEUE_INSERT_V1('t', 'default', 0, DATEADD(7 DAY TO LOCALTIMESTAMP), NULL, NULL,
                        NULL, 'application/json', '[[1],{}]') RETURNING_VALUES ID, D;
                    I = I + 1;
                END END""")
        connection.execute_immediate("""
            INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
                TRY_COUNT, CRASH_COUNT, CONTENT_TYPE)
            SELECT ID + 1000000, NAME, QUEUE, 10, 0, RAISE_TIME, START_TIME, RAISE_TIME, 1, 0, CONTENT_TYPE
            FROM QUEUE_TASK""")
        connection.commit()
    add.delay_many([(n,) for n in range(500)])
    session = app.database.open()
    with session.connection.cursor() as cursor:
        sql = "SELECT RDB$RELATION_ID FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = 'QUEUE_TASK'"
        table = cursor.execute(sql).fetchone()[0]
    session.connection.rollback()

    def reads():
        stats = {stat.table_id: stat for stat in session.connection.info.get_table_access_stats()}
        return (stats[table].sequential or 0, stats[table].indexed or 0) if table in stats else (0, 0)

    before = reads()
    assert len(session.run(lambda t: tasks.claim(t, 1, "default", 50))) == 50
    assert session.run(tasks.promote)[0] == 0
    after = reads()
    session.close()
    assert after[0] == before[0]
    assert after[1] - before[1] <= 150


def test_claims_under_an_old_snapshot_go_on_where_the_last_one_ended(app):
    """What was claimed of a backlog of one moment stays in the index, and is not read again."""
    app.task(name="t")(lambda: None)
    with app.connect() as connection:
        connection.execute_immediate("""
            EXECUTE BLOCK AS DECLARE I INTEGER = 0; DECLARE ID BIGINT; DECLARE D SMALLINT; BEGIN
                WHILE (I < 5000) DO BEGIN
                    EXECUTE PROCEDURE QUEUE_INSERT_V1('t', 'default', 0, NULL, NULL, NULL, NULL, 'application/json',
                        '[[],{}]') RETURNING_VALUES ID, D;
                    I = I + 1;
                END END""")
        connection.commit()
    session, watcher = app.database.open(), app.database.open()
    watcher.connection.begin(bytes((3, 2, 6)))  # isc_tpb_concurrency
    cursor = watcher.connection.cursor()
    cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()

    def fetches():
        sql = """SELECT S.MON$PAGE_FETCHES FROM MON$IO_STATS S JOIN MON$ATTACHMENTS A ON A.MON$STAT_ID = S.MON$STAT_ID
            WHERE A.MON$ATTACHMENT_ID = CURRENT_CONNECTION"""
        with session.transaction() as transaction, transaction.driver.cursor() as counting:
            return counting.execute(sql).fetchone()[0]

    costs, last = [], None
    for _ in range(100):
        before = fetches()
        claims = session.run(lambda t, after=last: tasks.claim(t, 1, "default", 50, after=after))
        costs.append(fetches() - before)
        assert len(claims) == 50
        last = claims[-1]
        session.run(
            lambda t, done=claims: tasks.finish(t, 1, 0, [Finished(claim, Succeeded(keep=False)) for claim in done])
        )
    cursor.close()
    watcher.connection.rollback()
    watcher.close()
    session.close()
    assert sum(costs[-10:]) < 1.3 * sum(costs[1:11])
