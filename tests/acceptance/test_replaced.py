"""The file of an embedded database is deleted, or replaced by a copy, while a worker has it open."""

import os
import re
import shutil
import signal
from contextlib import contextmanager, suppress

import kombu
import pytest
from support import sql
from support.variants import slow

import fbtasks.contrib.celery.transport.consumer
from fbtasks import DatabaseReplaced, DatabaseUnavailable, FBTasks

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded("a server's file is not seen by its clients")]

LEFT = 66
TASKS = """
    import pathlib, time
    HERE = pathlib.Path(__file__).parent

    def held(name):
        (HERE / name).touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)

    @app.task
    def add(a, b): return a + b

    @app.task
    def hold():
        held("hold")
        return "held"

    @app.task(transactional=True, bind=True)
    def write(self):
        held("write")

    @app.task
    def delegate():
        held("delegate")
        add.delay(1, 2)
"""


@pytest.fixture
def path(project):
    project.write(TASKS)
    return FBTasks("a", project.url).settings.url.database


@contextmanager
def opened(url):
    app = FBTasks("a", url)
    try:
        yield app
    finally:
        app.close()


def send(url, *names):
    with opened(url) as app:
        return [int(app.send_task(f"proj.{name}", (2, 3) if name == "add" else ()).id) for name in names]


def rows(url, statement):
    with opened(url) as app:
        return sql.rows(app, statement)


def delete(path, _worker):
    os.unlink(path)


def replace(path, worker):
    """What putting a backup back does: another file, with the same content, under the name."""
    worker.send_signal(signal.SIGSTOP)  # what is copied is whole
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)
    worker.send_signal(signal.SIGCONT)


DELETED, REPLACED = (delete, "was deleted"), (replace, "was replaced by another file")


@pytest.mark.parametrize(
    ("harm", "what", "pool"),
    [(*DELETED, "processes"), (*REPLACED, "solo"), slow(*DELETED, "solo"), slow(*REPLACED, "processes")],
)
def test_a_worker_leaves_when_its_file_is_gone(project, path, wait_for, harm, what, pool):
    """It finds out with its heartbeat, which looks in the same way for both."""
    send(project.url, "add")
    worker = project.worker("-c", "1", "--lease", "3", "--pool", pool)
    wait_for(lambda: "succeeded" in project.logs())
    os.utime(path)
    os.link(path, f"{path}.link")
    os.replace(f"{path}.link", path)  # the file by its own name: it is still the same
    os.unlink(f"{path}.link")
    (before,) = rows(project.url, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS")
    wait_for(lambda: rows(project.url, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS") > [before])
    send(project.url, "add")
    wait_for(lambda: project.logs().count("succeeded") == 2)
    assert worker.poll() is None
    harm(path, worker)
    assert worker.wait(30) == LEFT
    log = project.logs()
    said = f"{path} {what} while this process had it open: what is written to the old one is lost to all others."
    assert f"CRITICAL {said}" in log
    last = log.rstrip().splitlines()[-1]
    assert last.startswith(f"Error: {said} Connect anew, or start this process again")
    assert "Traceback" not in log
    assert os.path.exists(path) == (harm is replace)


def test_what_runs_then_ends_in_the_old_file_and_nothing_gets_into_the_new_one(project, path, wait_for):
    names = {number: name for name in ("hold", "write", "delegate") for number in send(project.url, name)}
    worker = project.worker("-c", "3", "--lease", "3")
    wait_for(lambda: all((project.folder / name).exists() for name in names.values()))
    os.link(path, f"{path}.old")
    replace(path, worker)
    wait_for(lambda: "CRITICAL" in project.logs())
    assert worker.poll() is None
    (new,) = send(project.url, "add")
    (project.folder / "go").touch()
    assert worker.wait(30) == LEFT
    log = project.logs()
    assert re.search(r"ERROR Task \d+ \(proj.delegate\) failed in .*: DatabaseReplaced: ", log)
    # As it was when it was copied, but for what was enqueued since.
    held = "SELECT ID, STATE FROM QUEUE_TASK ORDER BY ID"
    assert rows(project.url, held) == [*((number, 2) for number in sorted(names)), (new, 0)]
    assert rows(project.url, "SELECT COUNT(*) FROM QUEUE_HISTORY") == [(0,)]
    old = f"firebird://{path}.old"
    ended = dict(rows(old, "SELECT ID, STATE FROM QUEUE_HISTORY"))
    assert {names[number]: state for number, state in ended.items()} == {"hold": 10, "write": 10, "delegate": 11}
    assert rows(old, held) == []


def test_a_consumer_of_messages_is_told_and_connects_to_the_new_file(url, tmp_path):
    path = f"{tmp_path}/queue.fdb"
    queue = kombu.Queue("q", kombu.Exchange(""), routing_key="q")
    got = []

    def consume(connection):
        consumer = connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message))])
        consumer.consume()
        return consumer

    with kombu.Connection(url) as connection:
        queue(connection.default_channel).declare()
    fbtasks.kombu.close_all()
    shutil.copy(path, f"{path}.copy")
    try:
        with kombu.Connection(url) as connection, kombu.Connection(url) as bystander:
            consume(connection)
            bystander.connect()
            connection.Producer().publish("first", exchange="", routing_key="q")
            while not got:
                connection.drain_events(timeout=5)
            os.replace(f"{path}.copy", path)
            with pytest.raises(DatabaseReplaced, match="was replaced by another file") as caught:
                connection.drain_events(timeout=30)  # while nothing comes
            assert isinstance(caught.value, connection.recoverable_connection_errors)  # Celery connects anew
            with kombu.Connection(url) as producer:  # a new connection is to the new file
                producer.Producer().publish("second", exchange="", routing_key="q")
            with pytest.raises(DatabaseReplaced):
                bystander.Producer().publish("lost", exchange="", routing_key="q")
            first = got.pop()[1]
            with suppress(DatabaseUnavailable):  # what came over the lost connection is not settled in the new file
                first.ack()
            connection.collect()
            consume(connection)
            while not got:
                connection.drain_events(timeout=5)
            assert [body for body, _ in got] == ["second"]
            got.pop()[1].ack()
    finally:
        fbtasks.kombu.close_all()
    assert rows(url, "SELECT COUNT(*) FROM QUEUE_MSG") == [(0,)]


def test_a_consumer_that_waits_for_an_event_hears_of_a_replaced_file(url, tmp_path):
    """Also when its next look at the database is far away: the thread that would wake it then has ended."""
    path = f"{tmp_path}/queue.fdb"
    with opened(url) as app:
        app.migrate()
    shutil.copy(path, f"{path}.copy")
    connection = kombu.Connection(url, transport_options={"polling_interval": 300})
    with connection, connection.Consumer(kombu.Queue("waits"), callbacks=[print]):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1)
        os.replace(f"{path}.copy", path)
        with pytest.raises(DatabaseReplaced):
            connection.drain_events(timeout=60)


def test_a_consumer_hears_of_a_replaced_file_that_a_new_connection_has_found(url, tmp_path, monkeypatch):
    """The new connection ends the thread that would have found it with the next heartbeat."""
    monkeypatch.setattr(fbtasks.contrib.celery.transport.consumer, "HEARTBEAT", 300.0)
    path = f"{tmp_path}/queue.fdb"
    with opened(url) as app:
        app.migrate()
    shutil.copy(path, f"{path}.copy")
    connection = kombu.Connection(url, transport_options={"polling_interval": 300, "lease": 3000})
    try:
        with connection, connection.Consumer(kombu.Queue("waits"), callbacks=[print]):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=1)
            os.replace(f"{path}.copy", path)
            with kombu.Connection(url, transport_options={"lease": 3000}) as second:
                second.connect()
            with pytest.raises(DatabaseReplaced):
                connection.drain_events(timeout=20)
    finally:
        fbtasks.kombu.close_all()
