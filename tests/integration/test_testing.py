"""The helpers for the tests of applications, and the pytest plugin."""

import asyncio
import fnmatch
import logging
import os
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from freezegun import freeze_time
from support.sql import execute, one

from fbtasks import Change, ConfigurationError, Event, FBTasks, FBTasksError, ResultTimeout, Row, UnknownTaskError
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.queue import results, tasks
from fbtasks.states import State
from fbtasks.system import threads
from fbtasks.tasks.call import Finished, Succeeded
from fbtasks.testing import drain, eager, on_database
from fbtasks.testing.helpers import make_database
from fbtasks.testing.worker import WorkerProcess
from fbtasks.url import DatabaseURL


@pytest.fixture
def shop(tmp_path):
    """An app whose code names a database that no test is to use."""
    app = FBTasks("shop", f"firebird://{tmp_path}/real.fdb")
    yield app
    app.close()


def test_an_app_is_on_another_database_for_a_block(shop, fbtasks_url, tmp_path):
    add = shop.task(name="add")(lambda a, b: a + b)
    with on_database(shop, fbtasks_url) as app:
        assert app is shop
        result = add.delay(2, 3)
        drain(shop)
        assert result.get(timeout=1) == 5
    assert shop.settings.url.database == f"{tmp_path}/real.fdb"
    assert not (tmp_path / "real.fdb").exists()


def test_what_is_known_of_one_database_is_not_taken_for_another(shop, template, tmp_path):
    """The limits have other numbers in the second one, and its queue has no bound yet."""
    shop.limit("other", at_once=1)
    shop.limit("customer", at_once=1)
    shop.queue("mail", max_length=10)
    told = []
    shop.task(name="first", limits={"other": None})(lambda: None)
    bill = shop.task(name="bill", limits={"customer": "number"}, queue="mail")(lambda number: told.append(number))
    with on_database(shop, make_database(tmp_path / "1.fdb", template)):
        shop.send_task("first")
        bill.delay(1)
        drain(shop)
    with on_database(shop, make_database(tmp_path / "2.fdb", template)):
        bill.delay(2)
        held = "SELECT L.NAME FROM QUEUE_HOLD H JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID"
        assert one(shop, held) == "customer"
        assert one(shop, "SELECT MAX_LENGTH FROM QUEUE_POLICY") == 10
        drain(shop)
    assert told == [1, 2]


@pytest.mark.parametrize(("where", "allowed"), [("real", ""), ("real", "firebird://{}/*"), ("pytest's #1", "")])
def test_a_test_that_uses_another_database_is_refused(tmp_path, where, allowed):
    """Also one in the folder for temporary files; not one in a folder of pytest's."""
    project, folder = tmp_path / "project", tmp_path / where
    project.mkdir()
    (tmp_path / "real").mkdir()
    (project / "test_it.py").write_text(
        "from fbtasks import FBTasks\n"
        "from fbtasks.testing import on_database\n"
        f"app = FBTasks('shop', 'firebird://{tmp_path}/real/shop.fdb')\n"
        "@app.task\n"
        "def add(a, b): return a + b\n"
        f"def test({'' if where == 'real' else 'fbtasks_url'}):\n"
        f"    with on_database(app, {'app.settings.url' if where == 'real' else 'fbtasks_url'}):\n"
        "        add.delay(1, 2)\n"
    )
    (project / "pytest.ini").write_text(f"[pytest]\nfbtasks_databases = {allowed.format(folder)}\n")
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # each takes its imports
    env.pop("PYTEST_DEBUG_TEMPROOT", None)
    given = [] if where == "real" else ["--basetemp", str(folder)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fbtasks.testing.plugin", *given, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    refused = where == "real" and not allowed
    assert ("1 passed" in done.stdout) != refused, done.stdout
    assert ("is no database of a test" in done.stdout) == refused, done.stdout
    assert (tmp_path / "real/shop.fdb").exists() == bool(allowed)


def test_the_pattern_of_the_page_allows_databases_of_a_server():
    page = (Path(__file__).parents[2] / "docs/how-to/testing.md").read_text()
    (pattern,) = re.findall(r'`fbtasks_databases = \["(.*)"\]`', page)
    for path in ("/srv/test.fdb", "test"):
        assert fnmatch.fnmatchcase(str(DatabaseURL.parse(f"firebird://tester:secret@testserver/{path}")), pattern)


@pytest.fixture
def fbtasks_app(shop, fbtasks_url):
    with on_database(shop, fbtasks_url) as app:
        yield app


def test_what_is_enqueued_has_not_ended(fbtasks_app, fbtasks_enqueued, fbtasks_drain):
    fbtasks_app.limit("one", at_once=1)
    held = fbtasks_app.task(name="held", limits={"one": None}, priority=3)(lambda number: number)
    later = fbtasks_app.task(name="later", queue="mail")(lambda number, urgent=False: number)
    held.delay(1)
    later.apply_async((2,), {"urgent": True}, countdown=60)
    held.delay(3)
    fbtasks_app.send_task("of another app")
    found = [(each.id, each.name, each.args, each.kwargs, each.queue, each.priority) for each in fbtasks_enqueued()]
    assert found == [
        (1, "held", (1,), {}, "default", 3),
        (2, "later", (2,), {"urgent": True}, "mail", 0),
        (3, "held", (3,), {}, "default", 3),
        (4, "of another app", (), {}, "default", 0),
    ]
    (due,) = fbtasks_enqueued("later")
    assert 0 < (due.eta - datetime.now(UTC)).total_seconds() <= 60
    assert [each.eta for each in fbtasks_enqueued("held")] == [None, None]
    fbtasks_drain()
    assert fbtasks_enqueued("held") == []
    assert [each.id for each in fbtasks_enqueued()] == [2, 4]
    with pytest.raises(UnknownTaskError, match="Did you mean 'later'"):
        fbtasks_enqueued("latter")


def test_a_payload_that_cannot_be_read_is_listed_as_such(fbtasks_app, fbtasks_enqueued):
    fbtasks_app.migrate()
    execute(fbtasks_app, "EXECUTE PROCEDURE FBTASKS.ENQUEUE('add', '[1')")
    fbtasks_app.task(name="add")(lambda a: a).delay(1)
    broken, other = fbtasks_enqueued()
    assert (broken.args, broken.kwargs, broken.headers) == ((), {}, {})
    assert broken.unreadable.startswith("the payload cannot be read as application/json: Expecting ',' delimiter")
    assert (other.args, other.unreadable) == ((1,), None)


def test_what_is_enqueued_is_there_once_while_a_worker_claims_and_ends_it(fbtasks_app, fbtasks_enqueued, monkeypatch):
    fbtasks_app.task(name="add")(lambda a, b: a + b).delay(1, 2)

    def list_and_move(session, state, wanted):
        found = list(results.listing(session, state, wanted))
        with fbtasks_app.database.session() as other:
            if state is State.READY:
                claimed.extend(other.run(lambda t: tasks.claim(t, 1, "default", 1)))
            elif claimed:
                ended = [Finished(claimed.pop(), Succeeded(keep=False))]
                other.run(lambda t: tasks.finish(t, 1, 0, ended))
        return found

    claimed = []
    monkeypatch.setattr("fbtasks.testing.helpers.listing", list_and_move)
    assert [(each.id, each.args) for each in fbtasks_enqueued()] == [(1, (1, 2))]
    assert fbtasks_enqueued() == []


def test_a_worker_that_cannot_start_is_told_of(fbtasks_app, request):
    with pytest.raises(ConfigurationError, match="fbtasks_app = MODULE:NAME into the settings of pytest"):
        request.getfixturevalue("fbtasks_worker")
    with pytest.raises(FBTasksError, match="worker -A nowhere"):
        WorkerProcess(fbtasks_app, "nowhere", ())


def test_a_run_that_uses_no_fixture_imports_next_to_nothing():
    code = "import sys, fbtasks.testing.plugin\nprint(*sorted(each for each in sys.modules if 'fbtasks' in each))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "fbtasks", "fbtasks.errors", "fbtasks.testing", "fbtasks.testing.plugin", "fbtasks.url",
    ]  # fmt: skip


@pytest.mark.parametrize("transactional", [False, True])
def test_a_ctrl_c_ends_drain_and_is_no_outcome_of_the_task(app, transactional):
    raised = [SystemExit, KeyboardInterrupt]

    @app.task(name="work", transactional=transactional)
    def work():
        raise raised[-1]

    result = work.delay()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    assert result.status == "PENDING"
    assert one(app, "SELECT TRY_COUNT FROM QUEUE_TASK") == 0
    raised.pop()
    drain(app)  # as in a worker
    assert result.status == "FAILURE"


def test_drain_registers_the_handlers_of_events(app):
    """Also of one that was raised before."""
    told = []
    app.raise_event("order.paid", {"id": 7})
    app.on_event("order.paid")(lambda event: told.append(event.data["id"]))
    drain(app)
    app.raise_event("order.paid", {"id": 8})
    drain(app)
    assert told == [7, 8]


@pytest.mark.parametrize(
    "by",
    [FBTasks.migrate, pytest.param(drain, marks=pytest.mark.embedded("on a server no program makes triggers unasked"))],
)
def test_triggers_are_made(app, by):
    told = []
    execute(app, "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY)")
    app.on_change("ORDERS", insert=True)(lambda change: told.append(change.new["ID"]))
    by(app)
    execute(app, "INSERT INTO ORDERS VALUES (9)")
    drain(app)
    assert told == [9]


def test_migrate_says_what_cannot_be_deployed(app):
    app.on_change("ORDERS", insert=True)(lambda change: None)
    app.limit("sms", at_once=1)
    with pytest.raises(ConfigurationError, match=r"ORDERS'\. Create it first\. All else was"):
        app.migrate()
    assert one(app, "SELECT NAME FROM QUEUE_LIMIT") == "sms"


def test_an_event_in_eager_mode_calls_the_apps_handlers(tmp_path, caplog):
    app = FBTasks("eager", f"firebird://{tmp_path}/none.fdb")
    told = []

    @app.on_event("order.paid", autoretry_for=(ValueError,), max_retries=1, default_retry_delay=60)
    def breaks(event):
        told.append("breaks")
        raise ValueError(event.data)

    @app.on_event("order.paid", batch=10)
    def several(events):
        told.append([each.data for each in events])

    @app.on_event("order.paid")
    def alone(event):
        told.append((event.name, event.data, event.order_key, event.count))

    app.on_event("other")(lambda event: told.append(event))
    with eager(app), caplog.at_level(logging.ERROR):
        app.raise_event("order.paid", {"id": 7}, order_key="7")
    assert told == ["breaks", "breaks", [{"id": 7}], ("order.paid", {"id": 7}, "7", 1)]
    assert "The handler test_testing." in caplog.text
    assert "ValueError: {'id': 7}" in caplog.text
    assert not (tmp_path / "none.fdb").exists()


def test_what_a_handler_is_given_can_be_made_with_what_a_test_cares_about():
    change, event, row = Change(new={"ID": 7}), Event(data={"id": 7}), Row(values={"ID": 7})
    assert (change.op, change.key, change.old, change.new, change.count) == ("insert", {}, None, {"ID": 7}, 1)
    assert (event.name, event.data, event.order_key, event.time.utcoffset().seconds) == ("", {"id": 7}, None, 0)
    assert (row.table, row.key, row.values) == ("", {}, {"ID": 7})


@pytest.mark.emptied
@pytest.mark.timeout(60)
def test_waits_end_while_the_time_is_frozen(app, add, monkeypatch):
    monkeypatch.setattr(threading, "_time", lambda: 0.0)  # as time-machine freezes it before its version 3
    with freeze_time("2026-03-01"):
        waiting = add.delay(1, 2)
        with pytest.raises(ResultTimeout, match=r"has not ended after 0\.1 seconds"):
            waiting.get(timeout=0.1)
        with pytest.raises(ResultTimeout, match=r"has not ended after 0\.1 seconds"):
            asyncio.run(waiting.aget(timeout=0.1))
        drain(app)
        assert waiting.get(timeout=0.1) == 3


@pytest.mark.emptied
@pytest.mark.timeout(60)
def test_threads_and_waits_of_the_package_do_not_use_what_replaces_the_pauses_of_a_task(app, monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", lambda _: pauses.append(threading.current_thread().name))
    slow = app.task(name="slow")(lambda: time.sleep(5))
    slow.delay()
    drain(app)
    with pytest.raises(ResultTimeout):
        slow.delay().get(timeout=0.5)
    assert pauses == ["MainThread"]


@pytest.mark.embedded
@pytest.mark.emptied
def test_an_exception_does_not_end_the_repair_of_mutexes(app, monkeypatch, caplog):
    looks, pauses, several = [], [], threading.Event()

    def look(*_):
        looks.append(threading.current_thread())
        if len(looks) == 1:
            raise AssertionError("a test must not look")
        if len(looks) == 4:
            several.set()
        return set()

    monkeypatch.setattr(threads, "AGAIN", 0.0)
    monkeypatch.setattr(mutex_repair, "_ask_again", look)
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert several.wait(30)
    assert len(set(looks)) == 1
    assert pauses == []
    assert caplog.text.count("The thread fbtasks-mutex-repair goes on after an error") == 1
    assert caplog.text.count("AssertionError: a test must not look") == 1
