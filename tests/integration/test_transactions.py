"""Transactional tasks: how their transaction ends, and what becomes of one that would end it itself."""

import threading
import time
from contextlib import closing, suppress

import pytest
from support.draining import drain
from support.sql import execute, one, rows

from fbtasks import ConflictError, DatabaseError, TaskDefinitionError
from fbtasks.firebird.driver.lent import task_transaction

RETRIES = {"autoretry_for": (Exception,), "default_retry_delay": 0}


@pytest.fixture(autouse=True)
def notes(app):
    app.migrate()
    execute(app, "CREATE TABLE NOTE (N INTEGER)")


def insert(connection, n):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO NOTE VALUES (?)", (n,))


def noted(app):
    return [n for (n,) in rows(app, "SELECT N FROM NOTE ORDER BY N")]


def savepoint(connection):
    connection.savepoint("A")
    insert(connection, 50)
    connection.rollback(savepoint="A")
    for statement in ("SAVEPOINT B", "ROLLBACK TO B", "rollback work to savepoint B", "RELEASE SAVEPOINT B"):
        connection.execute_immediate(statement)
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT C")
        cursor.execute("ROLLBACK TO SAVEPOINT C")


def sql(statement):
    def run(connection):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    return run


def prepared(connection):
    with connection.cursor() as cursor, cursor.prepare("COMMIT") as statement:
        cursor.execute(statement)


def manager(connection):
    with connection.main_transaction:
        pass


REFUSED = {
    "commit": lambda c: c.commit(),
    "rollback": lambda c: c.rollback(),
    "manager": manager,
}
ENDS = {
    "manager close": lambda c: c.main_transaction.close(),
    "COMMIT": sql("COMMIT"),
    "rollback in SQL": sql(" -- now\n rollback work"),
    "COMMIT RETAIN": sql("/* keep */ Commit Retain"),
    "prepared": prepared,
    "immediate": lambda c: c.execute_immediate("COMMIT WORK"),
}


def test_a_task_may_not_end_its_transaction(app):
    """It fails for good, nothing of it remains, and the next task has a connection that serves."""
    runs = []

    @app.task(bind=True, transactional=True, **RETRIES)
    def ends(self, how):
        runs.append(how)
        insert(self.connection, 1)
        REFUSED[how](self.connection)

    @app.task(bind=True, transactional=True)
    def catches(self, how):
        insert(self.connection, 2)
        with suppress(TaskDefinitionError):
            REFUSED[how](self.connection)
        savepoint(self.connection)

    calls = [(ends.delay(how), catches.delay(how)) for how in REFUSED]
    drain(app)
    for failed, worked in calls:
        with pytest.raises(
            TaskDefinitionError, match=r"called self.connection.\w+\(\): leave that to fbtasks.*savepoints"
        ):
            failed.get(timeout=5)
        worked.get(timeout=5)
    assert runs == list(REFUSED)
    assert noted(app).count(2) == len(REFUSED)
    assert 1 not in noted(app)


def test_a_task_that_ends_its_transaction_fails_whatever_it_does_then(app, caplog):
    """It is not tried again, its later effects are undone, and the next task has a connection that serves."""
    runs = []

    @app.task(bind=True, transactional=True, **RETRIES)
    def ends(self, how, then):
        runs.append((how, then))
        insert(self.connection, 1)
        ENDS[how](self.connection)
        if then == "goes on":
            with suppress(Exception):  # where no transaction is begun by itself
                insert(self.connection, 2)
        elif then == "retry":
            self.retry(countdown=0)
        return "done"

    @app.task(bind=True, transactional=True)
    def works(self):
        insert(self.connection, 3)
        savepoint(self.connection)

    cases = [(how, then) for how in ENDS for then in ("returns", "goes on", "retry")]
    calls = [(ends.delay(*case), works.delay()) for case in cases]
    drain(app)
    for failed, worked in calls:
        with pytest.raises(TaskDefinitionError, match=r"ended its transaction itself.*committed or undone.*savepoints"):
            failed.get(timeout=5)
        assert f"Task {failed.id} (" in caplog.text
        worked.get(timeout=5)
    assert runs == cases
    left = noted(app)
    assert left.count(3) == len(cases)
    assert 2 not in left


@pytest.fixture
def clash(app):
    """When a success is recorded, a trigger wants the row that the task has changed, in a transaction beside it."""
    execute(app, "INSERT INTO NOTE VALUES (0)")
    execute(
        app,
        """CREATE TRIGGER CLASH FOR QUEUE_HISTORY BEFORE INSERT AS BEGIN
            IF (NEW.STATE = 10 AND NEW.NAME LIKE '%clashes') THEN
                IN AUTONOMOUS TRANSACTION DO UPDATE NOTE SET N = 100; END""",
    )


def clashing(app, runs, **options):
    @app.task(bind=True, transactional=True, name="clashes", **options)
    def clashes(self):
        runs.append(time.monotonic())
        with self.connection.cursor() as cursor:
            cursor.execute("UPDATE NOTE SET N = N + 1")

    return clashes


@pytest.mark.usefixtures("clash")
def test_a_conflict_at_the_end_is_a_try_and_the_last_one_is_a_failure(app, wait_for):
    runs, heard = [], []
    failed = clashing(app, runs, on_failure=lambda request, error: heard.append(request.retries)).delay()
    wait_for(lambda: drain(app) or failed.ready(), 120)  # a server waits for the row each time
    with pytest.raises(ConflictError):
        failed.get(timeout=5)
    assert (len(runs), heard, noted(app)) == (4, [3], [0])
    assert rows(app, "SELECT STATE, TRY_COUNT FROM QUEUE_HISTORY") == [(11, 4)]


@pytest.mark.usefixtures("clash")
@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": 0},
        {"retry_backoff": 3600, "retry_backoff_max": 7200, "retry_jitter": False},
    ],
)
def test_the_policy_decides_how_often_and_when_a_conflict_is_tried_again(app, options):
    runs = []
    result = clashing(app, runs, **options).delay()
    drain(app)
    assert len(runs) == 1
    if "retry_backoff" in options:
        assert rows(app, "SELECT STATE, TRY_COUNT FROM QUEUE_TASK") == [(1, 1)]
        assert "ConflictError" in one(app, "SELECT CAST(ERROR_MSG AS VARCHAR(1000)) FROM QUEUE_TASK")
        assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE START_TIME > DATEADD(59 MINUTE TO RAISE_TIME)") == 1
    else:
        with pytest.raises(ConflictError):
            result.get(timeout=5)


def test_a_request_to_cancel_that_comes_too_late_ends_no_other_task(app):
    """The statement that it is for has ended, and the connection begins the transaction of the next task just then."""
    app.migrate()
    with closing(app.database.open()) as session:
        together = threading.Barrier(2)

        def cancel():
            for _ in range(100):
                together.wait()
                session.cancel_statement()
                together.wait()

        thread = threading.Thread(target=cancel)
        thread.start()
        refused = []
        for _ in range(100):
            together.wait()
            try:
                with task_transaction(session) as transaction:
                    transaction.rollback()
            except DatabaseError as error:
                refused.append(error)
            together.wait()
        thread.join()
    assert refused == []
