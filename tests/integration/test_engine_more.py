"""Databases that cannot hold the queue, the pool of connections, and the signals of the host program."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from support.signals import as_in_a_terminal

from fbtasks import DatabaseUnavailable, FBTasks, PoolTimeout, SchemaError, SoftTimeLimitExceeded
from fbtasks.firebird import connections, library
from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
from fbtasks.firebird.events import Events
from fbtasks.firebird.facts import ask
from fbtasks.firebird.pool import Pool
from fbtasks.store import migrate
from fbtasks.url import DatabaseURL


@pytest.mark.embedded
def test_dialect_1_is_refused_and_left_as_it_is(tmp_path, monkeypatch):
    from firebird.driver import create_database, driver_config

    url = DatabaseURL(database=str(tmp_path / "old.fdb"))
    library.load(url, lambda: None)
    monkeypatch.setattr(driver_config.db_defaults.db_sql_dialect, "value", 1)
    monkeypatch.setattr(driver_config.db_defaults.sql_dialect, "value", 1)
    create_database(url.database, user="SYSDBA").close()
    monkeypatch.undo()
    app = FBTasks("a", str(url))
    with pytest.raises(SchemaError) as caught:
        app.task(name="t")(lambda: 1).delay()
    assert str(caught.value) == (
        f"{url} has SQL dialect 1; fbtasks needs dialect 3. Use another database for the queue, or change the dialect "
        "with gfix."
    )
    with connections.connect(url) as connection, connection.cursor() as cursor:
        sql = "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME STARTING WITH 'QUEUE_'"
        assert cursor.execute(sql).fetchone()[0] == 0


@pytest.mark.parametrize(("version", "ok"), [("3.0", False), ("4.0", False), ("5.0", True), ("6.0", True)])
def test_a_database_older_than_firebird_5_is_refused(monkeypatch, version, ok):
    """Seen with a server of version 3.0.11 as well; here the connection stands in for it."""
    closed = []
    text = f"LI-V{version}.11.33703 Firebird {version}".encode()
    unknown = b"\x03\x05\x00\x90\x12\x00\x00\x14"  # what an old one answers to a question that it does not know
    answer = (
        b"\x67" + (len(text) + 2).to_bytes(2, "little") + b"\x01" + bytes([len(text)]) + text + 3 * unknown + b"\x01"
    )

    def get_info(wanted, buffer):
        buffer[: len(answer)] = answer

    old = SimpleNamespace(_att=SimpleNamespace(get_info=get_info), close=lambda: closed.append(1))
    url = DatabaseURL.parse("firebird://ann:secret@db.example//srv/x.fdb")
    if ok:
        connections._check_version(ask(old), url)
        assert closed == []
        return
    monkeypatch.setattr(connections, "_probe", lambda *_: None)
    monkeypatch.setattr(connections, "_attach", lambda *_: old)
    with pytest.raises(SchemaError) as caught:
        connections.connect(url)
    assert str(caught.value).startswith(
        f"firebird://ann:***@db.example:3050//srv/x.fdb is served by Firebird {version}; fbtasks needs Firebird 5"
    )
    assert closed == [1]


@pytest.mark.no_database
@pytest.mark.parametrize("auto", [True, False])
def test_auto_migrate(url, auto):
    bare = url if url.startswith("firebird:///") else None
    if bare is None:
        pytest.skip("the fixture has migrated the database already")
    connections.connect(DatabaseURL.parse(url), create=True).close()
    app = FBTasks("a", url, auto_migrate=auto)
    make = app.task(name="t")(lambda: 1)
    if auto:
        assert make.delay().status == "PENDING"
    else:
        with pytest.raises(SchemaError) as caught:
            make.delay()
        assert str(caught.value) == f"{app.settings.url} has no queue yet. Run: fbtasks migrate --url URL"
        assert app.migrate()
        assert make.delay().id == "1"
    app.close()


def attachments(app):
    with app.connect() as connection, connection.cursor() as cursor:
        sql = (
            "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0 AND MON$ATTACHMENT_ID <> CURRENT_CONNECTION"
        )
        return cursor.execute(sql).fetchone()[0]


def test_the_pool_opens_as_many_connections_as_it_may_and_no_more(url):
    app = FBTasks("a", url, pool_size=2, pool_timeout=0.1)
    app.database.make_ready()
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
        f"none of the 2 connections to {app.settings.url} became free in 0.1 seconds. Raise pool_size, or use fewer "
        "threads."
    )
    app.close()
    assert attachments(app) == before


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
    with app.connect() as other:
        other.execute_immediate(f"DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = {number}")
        other.commit()
    pool._idle = [(session, since - 3600) for session, since in pool._idle]
    with pool.session() as third:
        assert third is opened[2]
        assert third.alive()
    pool.close()
    app.close()


def test_a_connection_that_is_lent_when_the_app_closes_is_closed_afterwards(url):
    app = FBTasks("a", url)
    app.database.make_ready()
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


ATTACH = """
import os, signal, sys, threading
from fbtasks import FBTasks
app = FBTasks("a", {url!r})
def use():
    app.connect().close()
    app.AsyncResult(1).status
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
{how}
assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
print("ready", flush=True)
threading.Event().wait(60)
"""
MAIN = "use()"
THREADS = """
threads = [threading.Thread(target=use) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("how", [MAIN, THREADS, MAIN + THREADS], ids=["main", "threads", "both"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_only_enqueues_dies_of_signals_as_any_other(url, how, number):
    with as_in_a_terminal():
        process = subprocess.Popen(
            [sys.executable, "-c", ATTACH.format(url=url, how=how)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ.copy(),
        )
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    start = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -number
    assert time.monotonic() - start < 5
    if number is signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert errors == ""


SIGNALLED = """
import os, signal, subprocess, sys
from fbtasks import FBTasks
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
send = "import os, sys, time\\nprint(flush=True)\\nwhile True: os.kill(int(sys.argv[1]), 15), time.sleep(0.001)"
sender = subprocess.Popen([sys.executable, "-c", send, str(os.getpid())], stdout=subprocess.PIPE)
sender.stdout.readline()
app = FBTasks("x", sys.argv[1])
app.task(name="t")(lambda: 1).delay()
app.close()
before = len(heard)
while len(heard) < before + 10:
    pass
sender.kill()
sender.wait()
print("done")
"""


def test_a_signal_that_comes_while_a_program_connects_for_the_first_time_is_its_own(url):
    """The client library's handler, which shuts the engine down, is there for a moment."""
    script = [sys.executable, "-c", SIGNALLED, url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


class Elapsed(Exception):
    """Somebody's own error, as the soft time limit of Celery is."""


@pytest.fixture
def interrupt(wait_for):
    """Raises *error* in the main thread, from the handler of a signal, once that thread rests in code of *file*."""
    main, threads, raised = threading.get_ident(), [], []
    before = signal.getsignal(signal.SIGUSR1)

    def start(file, error, then=lambda: None):
        looks = []

        def rests():
            frame = sys._current_frames()[main]
            looks.append((os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, frame.f_lasti))
            return looks[-1][0] == file and looks[-5:] == looks[-1:] * 5

        def ring(*_):
            if not raised:
                raised.append(error)
                raise error

        def watch():
            try:
                wait_for(rests)
                signal.pthread_kill(main, signal.SIGUSR1)
            finally:
                then()
            while not raised:
                signal.pthread_kill(main, signal.SIGUSR1)
                time.sleep(0.01)

        signal.signal(signal.SIGUSR1, ring)
        threads.append(threading.Thread(target=watch))
        threads[0].start()

    yield start
    raised.append(None)
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads")
@pytest.mark.parametrize("error", [TimeoutError("alarm"), Elapsed("soft"), SoftTimeLimitExceeded()], ids=type)
def test_what_the_handler_of_a_signal_raises_inside_the_driver_reaches_the_caller(app, interrupt, error):
    make = app.task(name="t")(lambda: 1)
    make.delay()
    holder = app.connect()
    make.using(holder).apply_async(task_id="held")
    interrupt("interfaces.py", error, then=holder.rollback)
    with pytest.raises(type(error)) as caught:
        make.apply_async(task_id="held")  # waits for the other transaction
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert not make.apply_async(task_id="held").duplicate
    holder.close()


@pytest.mark.no_database
@pytest.mark.embedded
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads")
def test_what_the_handler_of_a_signal_raises_in_the_first_connection_reaches_the_caller(url, interrupt):
    app = FBTasks("a", url)
    interrupt("lockdir.py", TimeoutError("alarm"))
    with exclusive(folder_of(app.settings.url.database) / "create.lock"), pytest.raises(TimeoutError, match="alarm"):
        app.migrate()
    assert app.migrate()
    app.close()


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


def test_what_others_have_in_use_is_waited_for_and_then_named(app, monkeypatch):
    other, session = app.database.open(), app.database.open()
    change = "CREATE OR ALTER PROCEDURE QUEUE_UNREGISTER_V1 (ID BIGINT) AS BEGIN END"
    other.run(lambda t: t.execute("unregister", 1))
    monkeypatch.setattr(migrate, "_PATIENCE", 0.1)
    with pytest.raises(SchemaError, match=r"QUEUE_UNREGISTER_V1.* is in use.*Stop the workers and programs that do"):
        migrate._change(session, [change])
    monkeypatch.setattr(migrate, "_PATIENCE", 20.0)
    timer = threading.Timer(0.3, other.close)
    timer.start()
    migrate._change(session, [change])
    timer.join()
    session.close()


def test_who_waits_for_events_rests_until_one_is_posted(app):
    """On a server, a request that is given back answers with nothing, or takes the next one with it."""
    app.migrate()
    session = app.database.open()
    events = Events(session, ["fbtasks:queue:nobody", "fbtasks:cancel"])
    waits, until = 0, time.monotonic() + 1
    while time.monotonic() < until:
        assert events.wait(0.1) in ([], ["fbtasks:cancel", "fbtasks:queue:nobody"])  # the first answer has the counts
        waits += 1
    assert waits <= 13
    with app.database.session() as poster:
        for _ in range(5):
            poster.run(lambda t: t.script("EXECUTE BLOCK AS BEGIN POST_EVENT 'fbtasks:cancel'; END"))
            assert events.wait(10) == ["fbtasks:cancel"]
    events.close()
    session.close()
