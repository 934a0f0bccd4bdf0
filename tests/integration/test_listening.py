"""Listeners: called from several threads, and begun anew."""

import threading
import time
from itertools import count

import pytest
from support.sql import execute, kill_connection, one

from fbtasks.firebird import watchdog
from fbtasks.firebird.events import Events
from fbtasks.firebird.session import Session
from fbtasks.queue.notify import listener
from fbtasks.queue.notify.listener import WatchedListener
from fbtasks.queue.notify.results import ResultListener

pytestmark = pytest.mark.emptied

EVENT = "fbtasks:test"


@pytest.fixture
def listening():
    """How many threads listen that did not before."""
    before = set(threading.enumerate())
    return lambda: sum(t.name == "fbtasks-events" for t in set(threading.enumerate()) - before)


def post(app):
    execute(app, f"EXECUTE BLOCK AS BEGIN POST_EVENT '{EVENT}'; END")


def kill(app, session):
    kill_connection(app, session.connection.info.id)


def test_two_restarts_at_once_leave_one_listener(app, listening, wait_for):
    calls = count()
    begun, other_done = threading.Event(), threading.Event()

    def names():
        if next(calls) == 1:  # the first restart is about to begin
            begun.set()
            other_done.wait(1.0)
        return [EVENT]

    def other():
        begun.wait(30)
        watched.restart()
        other_done.set()

    app.migrate()
    watched = WatchedListener(app.database, names, lambda _names: None)
    watched.start()
    thread = threading.Thread(target=other)
    thread.start()
    watched.restart()
    thread.join()
    assert next(calls) == 3
    watched.stop()
    wait_for(lambda: listening() == 0)


def test_what_was_stopped_begins_only_by_start(app, listening, wait_for):
    """A look of another thread that comes too late, after the end or just before a fork, begins nothing."""
    app.migrate()
    watched = WatchedListener(app.database, lambda: [EVENT], lambda _names: None)
    watched.start()
    watched.stop()
    watched.check(1.0)
    watched.restart()
    wait_for(lambda: listening() == 0)
    watched.start()
    assert listening() == 1
    watched.stop()
    wait_for(lambda: listening() == 0)


def test_after_a_pause_it_listens_under_the_new_names_once_the_time_has_come(app, listening, wait_for, monkeypatch):
    app.migrate()
    names, heard = ["fbtasks:old"], []
    watched = WatchedListener(app.database, lambda: names, heard.extend)
    watched.start()
    watched.pause()
    names[:] = [EVENT]
    watched.restart()
    watched.check(1.0)
    wait_for(lambda: listening() == 0)
    heard.clear()  # the first answer under the old names may have come
    monkeypatch.setattr(listener, "_QUIET", 0.0)
    watched.pause()
    watched.check(1.0)

    wait_for(lambda: post(app) or heard)
    watched.stop()
    assert set(heard) == {EVENT}


def test_who_waits_for_results_is_woken_again_after_the_connection_was_killed(app, monkeypatch, wait_for):
    """The engine tells nothing of it. One and the same wait goes on, as that for a long task does."""
    monkeypatch.setattr(listener, "_SILENCE", 0.5)
    monkeypatch.setattr(listener, "_QUIET", 1.0)
    app.migrate()
    results = ResultListener(app.database, [EVENT])
    with results.waiter() as waiter:
        wait_for(lambda: post(app) or waiter.wait(0.1))
        killed = results._listener
        kill(app, killed._session)
        wait_for(lambda: waiter.wait(0.1) or killed._lost)
        wait_for(lambda: post(app) or waiter.wait(0.1))
        assert results._listener is not killed
    results.close()


def test_a_connection_is_not_cut_while_it_is_being_closed(app, monkeypatch, wait_for):
    """On a busy machine a listener takes longer to close than stop() waits. To cut what is being freed is a crash."""
    app.migrate()
    cut, closing, go_on = [], threading.Event(), threading.Event()
    results = ResultListener(app.database, [EVENT])
    with results.waiter() as waiter:
        wait_for(lambda: post(app) or waiter.wait(0.1))
    session = results._listener._session
    close, abort = session.connection.close, watchdog.kill_connection

    def slowly():
        closing.set()
        go_on.wait(30)
        close()

    monkeypatch.setattr(session.connection, "close", slowly)
    monkeypatch.setattr(watchdog, "kill_connection", lambda connection: cut.append(1) or abort(connection))
    thread = results._listener._thread
    results.close()
    assert closing.is_set()
    assert thread.is_alive()
    assert cut == []
    go_on.set()
    thread.join(30)
    assert session.connection.is_closed()


def test_nobody_asks_whether_the_connection_lives_when_nobody_waits(app, monkeypatch, wait_for):
    asked = []
    monkeypatch.setattr(listener, "_SILENCE", 0.0)
    monkeypatch.setattr(Session, "alive", lambda _session: asked.append(1) or True)
    app.migrate()
    results = ResultListener(app.database, [EVENT])
    with results.waiter():
        wait_for(lambda: asked)
    looks = []
    monkeypatch.setattr(results._listener, "_waited_for", lambda: looks.append(1) or bool(results._waiters))
    wait_for(lambda: looks)
    asked.clear()
    wait_for(lambda: len(looks) > 3)
    assert asked == []
    results.close()


def test_a_child_that_is_forked_while_a_lost_connection_is_left_alone_may_connect(app, project):
    """And at the end of the process the connection is left alone as well: nothing is printed."""
    app.migrate()
    printed = project.python("""
        import os, time
        from fbtasks import FBTasks
        from fbtasks.queue.notify import listener
        from fbtasks.queue.notify.results import ResultListener
        listener._SILENCE = 0.2
        app = FBTasks("parent")
        results = ResultListener(app.database, ["fbtasks:test"])
        with results.waiter():
            listening = results._listener
            while listening._session is None:
                time.sleep(0.01)
            with app.connect() as other:
                number = listening._session.connection.info.id
                other.execute_immediate(f"DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = {number}")
                other.commit()
            while not listening._lost:
                time.sleep(0.01)
        results.close()
        app.close()
        child = os.fork()
        if child == 0:
            FBTasks("child").task(name="t")(lambda: 1).delay()
            os._exit(0)
        print(listening._thread.is_alive(), os.waitpid(child, 0)[1])
    """)
    assert printed == "True 0\n"
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1


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
