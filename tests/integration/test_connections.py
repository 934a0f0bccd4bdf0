"""Connections: how many are opened, which are replaced, how they are closed, and a server that cannot be reached."""

import contextlib
import gc
import re
import socket
import threading
import warnings

import pytest
from support.proxy import before
from support.sql import execute, kill_connection, one, rows

from fbtasks import AuthenticationError, DatabaseUnavailable, FBTasks, PoolTimeout, QueueFull
from fbtasks.database.migrate import deploying
from fbtasks.firebird import connections
from fbtasks.firebird.driver.translate import translate
from fbtasks.firebird.pool import MOST_IDLE, Pool, _idle
from fbtasks.run.interrupts import STOP, TaskStopped, ThreadInterrupts
from fbtasks.url import DatabaseURL


def attachments(app):
    return one(
        app,
        "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0 AND MON$ATTACHMENT_ID <> CURRENT_CONNECTION",
    )


def test_the_pool_opens_as_many_connections_as_it_may_and_no_more(url):
    app = FBTasks("a", url, pool_size=2, pool_timeout=0.1)
    app.database.make_ready(lends=False)
    before = attachments(app)
    most, errors = [], []

    def use():
        try:
            for _ in range(20):
                with app.database.session() as session:
                    session.read("now")
        except PoolTimeout:
            pass  # all were lent for longer than one may wait here
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(12)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most.append(attachments(app) - before)
    assert errors == []
    assert 1 <= max(most) <= 2
    with app.database.session(), app.database.session(), pytest.raises(PoolTimeout) as caught:
        app.task(name="t")(lambda: 1).delay()
    assert str(caught.value) == (
        f"no connection to {app.settings.url} became free in 0.1 seconds; pool_size is 2. Raise it, or use fewer "
        "threads."
    )
    app.close()
    assert attachments(app) == before


def test_many_apps_of_one_process_keep_few_idle_connections(url, app):
    apps = [FBTasks(f"app {number}", url, auto_migrate=False) for number in range(MOST_IDLE + 5)]
    for each in apps * 2:
        with each.database.session() as session:
            session.read("now")
    assert attachments(app) == MOST_IDLE
    with contextlib.ExitStack() as stack:
        for each in apps:
            stack.enter_context(each.database.session())
        assert attachments(app) >= len(apps), "what is lent stays open"
    assert attachments(app) == MOST_IDLE
    for each in apps:
        each.close()
    assert attachments(app) == 0


def test_a_dead_connection_is_replaced(url):
    app = FBTasks("a", url)
    app.migrate()
    opened = []

    def connect():
        opened.append(app.database.open())
        return opened[-1]

    pool = Pool(app.settings.url, connect, size=1, timeout=1)
    with pool.session() as first:
        assert first is opened[0]
    with pool.session() as again:
        assert again is first
    # One that was found dead while it was lent does not come back, and does not count as lent.
    with pytest.raises(DatabaseUnavailable), pool.session():
        raise DatabaseUnavailable
    with pool.session() as second:
        assert second is opened[1]
        number = second.connection.info.id
    # One that died while it was idle is found out by a ping, which is only worth its time after a while.
    kill_connection(app, number)
    _idle.update({session: (each, since - 3600) for session, (each, since) in _idle.items()})
    with pool.session() as third:
        assert third is opened[2]
        assert third.alive()
    pool.close()
    app.close()


def test_a_connection_that_is_killed_while_subscriptions_are_deployed_is_told_as_that(app):
    killed = pytest.raises(DatabaseUnavailable, match="Killed by database administrator")
    with killed, app.database.session() as session, deploying(session):
        kill_connection(app, session.connection.info.id)
        session.read("now")


def test_a_connection_that_is_lent_when_the_app_closes_is_closed_afterwards(url):
    app = FBTasks("a", url)
    app.database.make_ready(lends=False)
    before = attachments(app)
    pool = Pool(app.settings.url, app.database.open, size=2, timeout=1)
    with pool.session() as lent:
        pool.close()
        assert lent.read("now")
    assert lent.connection.is_closed()
    assert attachments(app) == before
    app.close()


def test_nothing_is_printed_at_exit(project):
    """Connections lent, idle, of an application's own, and one that listens: closed, or at least silent."""
    assert (
        project.python("""
        import threading
        from fbtasks import FBTasks, ResultTimeout
        app = FBTasks("a")
        t = app.task(name="t")(lambda: 1)
        result = t.delay()
        threads = [threading.Thread(target=t.delay) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        try: result.get(timeout=0.05)
        except ResultTimeout: pass
        own = app.connect()
        with own.cursor() as cursor: cursor.execute("SELECT 1 FROM RDB$DATABASE")
        print("end")
    """)
        == "end\n"
    )  # Project.python runs with -W error and asserts that nothing comes on stderr


@pytest.mark.parametrize("refused", [False, True], ids=["silent", "refused"])
def test_a_server_that_cannot_be_reached_is_named(monkeypatch, refused):
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.2)
    with socket.socket() as listening, socket.socket() as waiting:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        if not refused:
            listening.listen(0)
            waiting.connect(("127.0.0.1", port))  # no room for another one
        with pytest.raises(DatabaseUnavailable, match=rf"127\.0\.0\.1:{port}.*cannot be reached"):
            connections.connect(DatabaseURL.parse(f"firebird://ann@127.0.0.1:{port}//srv/x.fdb"))


@pytest.mark.parametrize(
    "where",
    [
        "CREATE OR ALTER PROCEDURE RAISES AS BEGIN {}; END",
        "CREATE OR ALTER TRIGGER RAISES_TOO FOR T BEFORE INSERT AS BEGIN {}; END",
        "EXECUTE BLOCK AS BEGIN {}; END",
    ],
    ids=["procedure", "trigger", "block"],
)
def test_what_the_schema_refuses_is_told_in_its_own_words(app, where):
    app.database.make_ready()
    calls = {
        "PROCEDURE": "EXECUTE PROCEDURE RAISES",
        "TRIGGER": "INSERT INTO T VALUES (1)",
    }
    call = next((call for kind, call in calls.items() if kind in where), None)
    execute(app, "RECREATE TABLE T (ID INTEGER)")
    for exception, kind in (("QUEUE_REFUSED", AuthenticationError), ("QUEUE_FULL", QueueFull)):
        text = where.format(f"EXCEPTION {exception} 'not now'")
        if call:
            execute(app, text)
        with app.connect() as connection, connection.cursor() as cursor:
            with pytest.raises(Exception, match=exception) as caught:
                cursor.execute(call or text).fetchall()
            said = translate(caught.value)
        assert type(said) is kind
        assert re.fullmatch(r"(the database: the user may not do this: )?not now(\. Who owns .*)?", str(said))


@pytest.mark.parametrize(
    "sql",
    [
        "EXECUTE BLOCK AS DECLARE N BIGINT = 0; BEGIN WHILE (N < 4000000000) DO N = N + 1; END",
        "SELECT COUNT(*) FROM RDB$TYPES A, RDB$TYPES B, RDB$TYPES C, RDB$TYPES D",
    ],
    ids=["execute", "fetch"],
)
def test_a_cancelled_statement_whose_task_is_stopped_is_freed_once(app, wait_for, sql):
    """The task is interrupted before the driver has seen that its statement was cancelled."""
    interrupts = ThreadInterrupts()
    raised = []

    def task():
        try:
            with interrupts.window(1), session.connection.cursor() as cursor:
                cursors.append(cursor)
                cursor.execute(sql).fetchall()
        except BaseException as error:
            raised.append(error)

    cursors = []
    running = f"SELECT 1 FROM MON$STATEMENTS WHERE MON$STATE = 1 AND MON$SQL_TEXT = '{sql}'"
    with contextlib.closing(app.database.open()) as session:
        thread = threading.Thread(target=task)
        thread.start()
        wait_for(lambda: rows(app, running))
        interrupts.interrupt(1, STOP)
        session.cancel_statement()
        thread.join(20)
        assert [type(error) for error in raised] == [TaskStopped]
        (cursor,) = cursors
        assert (cursor._stmt, cursor._result) == (None, None)
        cursor.execute("SELECT 1 FROM RDB$DATABASE").fetchall()
        cursor.close()
        session.connection.rollback()
        assert session.alive()


def test_a_statement_is_collected_while_its_connection_is_closed(app):
    """It is on no list of the driver then: what collects garbage is in another thread."""
    with app.connect() as connection, connection.cursor() as cursor:
        statement = cursor.prepare("SELECT 1 FROM RDB$DATABASE")
        held = list(connection._statements)
        connection._statements.clear()
        statement.free()
        del statement
        gc.collect()
        assert [reference() for reference in held] == [None]


def test_a_statement_that_the_end_of_its_connection_has_freed_is_freed_without_a_warning(app, monkeypatch):
    connection = app.database.open().connection
    statement = connection.cursor().prepare("SELECT 1 FROM RDB$DATABASE")
    connection._att.detach()
    monkeypatch.setattr(connection._att, "detach", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        statement._istmt.free()
        connection.close()
    assert statement._istmt is None


def test_a_connection_that_is_cut_while_it_is_opened_is_closed(app, url, monkeypatch):
    app.migrate()
    opened, connect = [], connections.connect

    def remembered(*arguments, **options):
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(connections, "connect", remembered)
    with before(url) as proxy:
        far = FBTasks("far", proxy.url, auto_migrate=False)
        far.database.open().close()
        before_it = proxy.passed["to_client"]
        far.database.open().close()
        size = proxy.passed["to_client"] - before_it
        failed = 0
        for passed in range(1, size, size // 40):
            proxy.cut_after(passed, "to_client")
            try:
                far.database.open().close()
            except DatabaseUnavailable:
                failed += 1
            proxy.disarm()
        far.close()
    assert failed > 30
    assert [connection for connection in opened if not connection.is_closed()] == []
