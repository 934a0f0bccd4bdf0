"""Listeners: called from several threads, and begun anew."""

import threading
from itertools import count

import pytest
from support.sql import execute

from fbtasks.notify import listener
from fbtasks.notify.listener import WatchedListener

EVENT = "fbtasks:test"


@pytest.fixture
def listening():
    """How many threads listen that did not before."""
    before = set(threading.enumerate())
    return lambda: sum(t.name == "fbtasks-events" for t in set(threading.enumerate()) - before)


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
    monkeypatch.setattr(listener, "_QUIET", 0.0)
    watched.pause()
    watched.check(1.0)

    def posted():
        execute(app, f"EXECUTE BLOCK AS BEGIN POST_EVENT '{EVENT}'; END")
        return heard

    wait_for(posted)
    watched.stop()
    assert set(heard) == {EVENT}
