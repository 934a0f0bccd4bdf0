"""The database goes away: connections cut at any byte, a server that refuses or does not answer, a full disk."""

import os
import random
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from support.proxy import before
from support.sql import execute, rows

from fbtasks import DatabaseError, DatabaseUnavailable, EnqueueUncertain, FBTasks
from fbtasks.firebird import watchdog
from fbtasks.queue import tasks
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.worker.options import LEASE

pytestmark = pytest.mark.acceptance

SOURCE = """
    import os, time

    @app.task(bind=True)
    def note(self, n, seconds=0, ballast=None):
        with open("ledger", "a") as file:
            file.write(f"{n}\\n")
        time.sleep(seconds)
        return n

    @app.task(bind=True, transactional=True)
    def effect(self, n):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?)", (n,))
"""
LARGE = """
    @app.task
    def large(size):
        with open("ledger", "a") as file:
            file.write(f"{size}\\n")
        return "x" * size
"""


@pytest.fixture
def producer(project):
    with project.producer(SOURCE, "CREATE TABLE EFFECT (N INTEGER)") as app:
        yield app


@pytest.fixture
def proxy(project, url):
    """Between the server and the processes started from now on. Events take another way; polls cover their loss."""
    with before(url) as proxy:
        project.env["FBTASKS_URL"] = proxy.url
        yield proxy


def ran(project):
    return Counter(map(int, project.lines()))


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_worker_that_is_cut_off_again_and_again_runs_each_task_once(project, producer, proxy, wait_for, direction):
    rng = random.Random(direction)
    results = [producer.send_task("proj.note", (n,)) for n in range(150)]
    results += [producer.send_task("proj.effect", (n,)) for n in range(30)]
    worker = project.worker("-c", "2")
    wait_for(lambda: "is ready" in project.logs())

    def cut_and_look():
        proxy.cut_after(rng.randrange(1, 20_000), direction)
        time.sleep(0.1)
        return all(result.ready() for result in results)

    wait_for(cut_and_look, 90)
    proxy.disarm()
    assert "The database is away" in project.logs()
    assert [result.status for result in results] == ["SUCCESS"] * 180
    assert ran(project) == Counter(range(150))
    assert sorted(n for (n,) in rows(producer, "SELECT N FROM EFFECT")) == list(range(30))
    assert rows(producer, "SELECT SUM(CRASH_COUNT), MAX(TRY_COUNT) FROM QUEUE_HISTORY") == [(0, 1)]
    wait_for(lambda: rows(producer, "SELECT COUNT(*) FROM QUEUE_PROCESS") == [(1,)], 20)
    worker.terminate()
    assert worker.wait(30) == 0
    assert "Traceback" not in project.logs()


def test_a_worker_outlives_a_server_that_is_away(project, producer, proxy, wait_for):
    worker = project.worker("-c", "1")
    running = producer.send_task("proj.note", (1, 3))
    wait_for(lambda: ran(project)[1])
    proxy.refuse(True)
    proxy.cut()
    wait_for(lambda: project.logs().count("Trying again") > 3)
    assert worker.poll() is None
    waiting = producer.send_task("proj.note", (2,))
    proxy.refuse(False)
    assert running.get(timeout=30) == 1
    assert waiting.get(timeout=30) == 2
    assert ran(project) == Counter([1, 2])
    assert "is back" in project.logs()


@pytest.mark.parametrize("pool", ["processes", "solo"])
def test_a_worker_that_starts_before_its_server_begins_when_that_is_there(project, producer, proxy, wait_for, pool):
    task = producer.send_task("proj.note", (1,))
    proxy.refuse(True)
    worker = project.worker("-c", "1", "-P", pool)
    wait_for(lambda: proxy.refused > 3)
    assert project.logs().count("cannot be reached") == project.logs().count("This worker waits for that") == 1
    proxy.cut_after(2000)  # while it registers
    proxy.refuse(False)
    assert task.get(timeout=30) == 1
    assert proxy.cuts == 1
    assert "The database is there after" in project.logs()
    worker.terminate()
    assert worker.wait(30) == 0
    assert "Traceback" not in project.logs()


def test_a_worker_does_not_wait_for_what_a_server_refuses(project, producer, proxy):
    wrong_password = re.sub("//[^/@]+@", "//SYSDBA:wrong@", proxy.url)
    wrong_file = f"{proxy.url.rpartition('//')[0]}//nosuch/x.fdb"
    for url, said in {wrong_password: "does not accept this user", wrong_file: "cannot be opened"}.items():
        project.env["FBTASKS_URL"] = url
        ended = project.run("worker", "-A", "proj", check=False)
        assert (ended.returncode, said in ended.stderr, "waits" in ended.stderr) == (1, True, False), ended.stderr


def test_a_worker_waits_where_no_server_listens_until_it_is_told_to_end(project, wait_for):
    project.write(SOURCE)
    with socket.socket() as nobody:  # bound and not listening
        nobody.bind(("127.0.0.1", 0))
        project.env["FBTASKS_URL"] = f"firebird://ann:secret@127.0.0.1:{nobody.getsockname()[1]}//srv/x.fdb"
        worker = project.worker("-c", "1")
        wait_for(lambda: "cannot be reached ([Errno 111] Connection refused)" in project.logs())
        burst = project.run("worker", "-A", "proj", "--burst", check=False)
        assert (burst.returncode, "cannot be reached" in burst.stderr, "waits" in burst.stderr) == (1, True, False)
        worker.terminate()
        assert worker.wait(30) == 0
    assert project.logs().count("This worker waits for that, and tries again every few seconds.") == 1
    project.env["FBTASKS_URL"] = "firebird://nosuch.invalid/x.fdb"
    ended = project.run("worker", "-A", "proj", check=False)
    assert (ended.returncode, "A file on this machine has a third slash" in ended.stderr) == (1, True)


@pytest.mark.parametrize("pool", ["processes", "solo"])
def test_a_worker_that_is_kept_out_for_a_while_after_a_cut_keeps_its_task(project, producer, proxy, wait_for, pool):
    """It is cut just after a heartbeat, which it finds out with the next one, and then has two seconds to come back."""
    rhythm = Rhythm(LEASE)
    project.worker("-c", "1", "-n", "cut", "--pool", pool)
    running = producer.send_task("proj.note", (1, 12))
    wait_for(lambda: ran(project)[1])
    project.env["FBTASKS_URL"] = project.url
    others = [f"other{n}" for n in range(3)]  # who look at different times
    for other in others:
        project.worker("-c", "1", "-n", other, "-Q", other)
        producer.send_task("proj.note", (2,), queue=other).get(timeout=30)
    heard = "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS WHERE NAME STARTING 'cut'"
    before = rows(producer, heard)
    wait_for(lambda: rows(producer, heard) != before)
    proxy.refuse(True)
    proxy.cut()
    time.sleep(rhythm.heartbeat + 1.5)
    proxy.refuse(False)
    assert running.get(timeout=30) == 1
    assert ran(project) == Counter([1, *[2] * len(others)])
    assert pool == "solo" or "Trying again" in project.logs()  # its companion tries, and says nothing
    assert "is dead" not in project.logs()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_an_enqueue_that_is_cut_is_there_once_or_not_at_all(project, producer, proxy, direction):
    rng = random.Random(direction)
    app = FBTasks("cut", proxy.url)
    app.database.make_ready()
    acknowledged, uncertain, refused = [], [], []
    for n in range(60):
        proxy.cut_after(rng.randrange(1, 3000), direction)
        try:
            acknowledged.append((n, app.send_task("proj.note", (n,), task_id=f"id-{n}" if n % 2 else None).id))
        except EnqueueUncertain as error:
            uncertain.append((n, error.task_id))
        except DatabaseUnavailable:
            refused.append(n)
    proxy.disarm()
    app.close()
    found = Counter(
        int(payload.split(b"[")[2].split(b"]")[0]) for (payload,) in rows(producer, "SELECT PAYLOAD FROM QUEUE_TASK")
    )
    assert set(found.values()) == {1}
    assert {n for n, _ in acknowledged} <= set(found)
    assert not set(found) & set(refused)
    assert len(acknowledged) > 10
    assert uncertain == []  # the database was there to be asked


def test_an_enqueue_after_the_pooled_connection_died_just_works(producer, proxy):
    app = FBTasks("idle", proxy.url)
    app.send_task("proj.note", (1,))
    proxy.cut()
    app.send_task("proj.note", (2,))
    app.close()
    assert rows(producer, "SELECT COUNT(*) FROM QUEUE_TASK") == [(2,)]


def test_an_enqueue_to_a_server_that_does_not_answer_ends_in_time(monkeypatch, producer, proxy):
    app = FBTasks("frozen", proxy.url)
    app.send_task("proj.note", (1,))
    monkeypatch.setattr(watchdog, "PATIENCE", 1.0)
    monkeypatch.setattr("fbtasks.firebird.connections.CONNECT_TIMEOUT", 2)
    proxy.freeze(True)
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="reached"):
        app.send_task("proj.note", (2,))
    assert time.monotonic() - started < 20
    proxy.freeze(False)
    app.send_task("proj.note", (3,))
    app.close()


def test_a_slow_link_may_take_as_long_as_it_needs(monkeypatch, producer, proxy):
    """Five times as long as a server may be silent, there and back."""
    app = FBTasks("slow", proxy.url)
    app.send_task("proj.note", (1,))
    monkeypatch.setattr(watchdog, "PATIENCE", 1.0)
    proxy.throttle(400_000)
    call = app.send_task("proj.note", ("x" * 2_000_000,))
    with app.database.session() as session, session.transaction() as transaction:
        assert len(tasks.payload(transaction, int(call.id))) == 2_000_009
    app.close()


def test_a_large_result_on_a_slow_link_is_recorded_and_its_worker_keeps_its_lease(project, producer, proxy, wait_for):
    head = "    from fbtasks.firebird import watchdog\n    watchdog.PATIENCE = 3.0\n"
    project.write(head + LARGE + SOURCE)
    worker = project.worker("-c", "2", "--lease", "3")
    wait_for(lambda: "is ready" in project.logs())
    project.env["FBTASKS_URL"] = project.url
    project.worker("-c", "1", "-n", "other", "--lease", "3", "-Q", "other")
    producer.send_task("proj.note", (5,), queue="other").get(timeout=30)
    proxy.throttle(250_000, "to_server")
    large = producer.send_task("proj.large", (2_000_000,))
    assert len(large.get(timeout=30)) == 2_000_000
    assert producer.send_task("proj.note", (1,)).get(timeout=30) == 1
    assert ran(project) == Counter([5, 2_000_000, 1])
    assert "The database is away" not in project.logs()
    assert "is dead" not in project.logs()
    worker.terminate()
    assert worker.wait(30) == 0


def test_a_result_with_which_the_connection_is_lost_each_time_fails_its_task_alone(project, producer, proxy, wait_for):
    project.write(LARGE + SOURCE)
    project.worker("-c", "3")
    wait_for(lambda: "is ready" in project.logs())
    large = producer.send_task("proj.large", (2_000_000,))
    small = [producer.send_task("proj.note", (n,)) for n in range(10)]
    ended = threading.Event()

    def cut():  # whatever brings as much within a tenth of a second
        while not ended.is_set():
            proxy.cut_after(500_000, "to_server")
            ended.wait(0.1)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        assert [result.get(timeout=30) for result in small] == list(range(10))
        with pytest.raises(DatabaseUnavailable, match=r"its result of 2,000,002 bytes could not be recorded"):
            large.get(timeout=60)
    finally:
        ended.set()
        cutter.join()
    proxy.disarm()
    assert ran(project) == Counter([2_000_000, *range(10)])
    assert producer.send_task("proj.note", (11,)).get(timeout=30) == 11


def test_a_database_that_lets_in_but_does_no_work_is_tried_ever_less_often(project, producer, wait_for):
    """As one on a disk that fails: it can be opened and read."""
    execute(producer, "CREATE EXCEPTION EX_DISK 'the disk fails'")
    execute(producer, "CREATE TABLE BROKEN (N INTEGER)")
    execute(
        producer,
        "CREATE TRIGGER WRITES FOR QUEUE_TASK BEFORE UPDATE AS BEGIN"
        " IF (EXISTS(SELECT 1 FROM BROKEN)) THEN EXCEPTION EX_DISK; END",
    )
    project.worker("-c", "1", "--lease", "14")
    assert producer.send_task("proj.note", (1,)).get(timeout=10) == 1
    execute(producer, "INSERT INTO BROKEN VALUES (1)")
    waiting = producer.send_task("proj.note", (2,))
    wait_for(lambda: "The database refuses what this worker asks: " in project.logs())

    def pauses():
        return [float(pause) for pause in re.findall(r"Trying again in ([0-9.]+) s", project.logs())]

    wait_for(lambda: max(pauses(), default=0) >= 0.8)  # no longer than it may be silent, since it can still be heard of
    assert 4 <= len(pauses()) <= 12
    assert pauses()[:4] == sorted(pauses()[:4])
    assert "is back" not in project.logs()
    execute(producer, "DELETE FROM BROKEN")
    assert waiting.get(timeout=10) == 2
    wait_for(lambda: project.logs().count("The database is back") == 1)
    assert "is dead" not in project.logs()


@pytest.mark.embedded("it fills the disk of the file")
def test_a_full_disk_loses_nothing(project, tmp_path, wait_for):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]).returncode:
        pytest.skip("cannot mount a small disk")
    try:
        project.write(SOURCE)
        project.env["FBTASKS_URL"] = f"firebird://{disk}/q.fdb"
        app = FBTasks("producer", project.env["FBTASKS_URL"])
        worker = project.worker("-c", "1")
        first = app.send_task("proj.note", (1, 2))
        wait_for(lambda: ran(project)[1])
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        acknowledged = []
        with pytest.raises(DatabaseError):
            for n in range(10_000):
                acknowledged.append(app.send_task("proj.note", (100 + n, 0, "x" * 3000)))  # noqa: PERF401
        assert worker.poll() is None
        ballast.unlink()
        assert first.get(timeout=60) == 1
        for result in acknowledged:
            assert result.get(timeout=60) >= 100
        assert app.send_task("proj.note", (2,)).get(timeout=30) == 2
        assert set(ran(project).values()) == {1}
        worker.terminate()
        assert worker.wait(30) == 0
        app.close()
    finally:
        project.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)
