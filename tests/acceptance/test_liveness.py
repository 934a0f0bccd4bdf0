"""Processes killed, stopped and cut off: what they held runs again, once, and nothing is charged to the innocent."""

import os
import signal
import time
from contextlib import closing

import pytest
from support.crew import Crews
from support.programs import alive
from support.sql import execute, one, rows
from support.variants import CHILDREN, INSIDE_OUTSIDE, slow

from fbtasks import DatabaseError, TaskDefinitionError, TaskRevoked, TimeLimitExceeded, WorkerLost

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, ctypes, gc, os, signal, sys, time, threading
    from pathlib import Path

    def note(what):
        with open("ledger", "a") as file:
            file.write(f"{what}\\n")

    @app.task
    def add(a, b): return a + b

    @app.task(bind=True)
    def slow(self, seconds, what="slow"):
        note(f"{what} {os.getpid()}")
        time.sleep(seconds)
        return what

    @app.task
    def until(name):
        note(name)
        while not Path(name).exists():
            time.sleep(0.01)
        return name

    @app.task
    def hold_the_gil(seconds):
        note("gil")
        libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock
        libc.usleep(int(seconds * 1_000_000))
        return "held"

    @app.task(max_retries=0)
    def kill_worker():
        note("kill_worker")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)

    @app.task(max_retries=0)
    def segfault():
        note("segfault")
        ctypes.string_at(0)

    @app.task(soft_time_limit=0.3)
    def soft():
        try:
            time.sleep(0.1)
            while True:
                time.sleep(0.01)
        except app_errors.SoftTimeLimitExceeded:
            note("cleaned up")
            raise

    @app.task(soft_time_limit=0.3)
    async def soft_async():
        await asyncio.sleep(60)

    @app.task(time_limit=0.5)
    def hard():
        note(f"hard {os.getpid()}")
        while True:
            time.sleep(0.01)

    @app.task(time_limit=0.5, autoretry_for=(app_errors.TimeLimitExceeded,), default_retry_delay=0)
    def second_try_lucky():
        if not Path("tried").exists():
            Path("tried").touch()
            time.sleep(60)
        return "lucky"

    @app.task(bind=True, transactional=True, time_limit=3)  # in which it connects: a while, on a busy machine
    def stuck_in_a_statement(self):
        with self.connection.cursor() as cursor:
            cursor.execute("UPDATE NOTE SET N = N + 1")
            note("updated")
            cursor.execute("SELECT COUNT(*) FROM RDB$FIELDS A, RDB$FIELDS B, RDB$FIELDS C, RDB$FIELDS D").fetchone()

    @app.task(bind=True, transactional=True)
    def effect(self, n, seconds=0):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO NOTE VALUES (?)", (n,))
        note(f"effect {n} {os.getpid()}")
        time.sleep(seconds)

    @app.task(bind=True, transactional=True)
    def stubborn(self):
        try:
            note("begun")
            time.sleep(60)
        except BaseException:
            note("told to stop")
            time.sleep(60)

    @app.task(time_limit=0.3)
    def dies_after_its_limit():
        libc = ctypes.CDLL(None)
        libc.alarm(3)
        libc.sleep(30)

    @app.task(bind=True, transactional=True)
    def closes(self):
        with self.connection as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO NOTE VALUES (1)")
        note("closed")

    def cut_off(self, caught=False):
        note("cut off")
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO NOTE VALUES (1)")
            (number,) = cursor.execute("SELECT CURRENT_CONNECTION FROM RDB$DATABASE").fetchone()
        with app.connect() as other:
            other.execute_immediate(f"DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = {number}")
            other.commit()
        if not caught:
            self.connection.execute_immediate("DELETE FROM NOTE")

    @app.task(bind=True, transactional=True, max_retries=0)
    def cut_off_once(self, caught):
        cut_off(self, caught)

    @app.task(bind=True, transactional=True, max_retries=1, autoretry_for=(Exception,), default_retry_delay=0)
    def cut_off_twice(self, caught):
        cut_off(self, caught)

    @app.task
    def memory():
        global hog
        hog = bytearray(200 * 1024 * 1024)
        return os.getpid()

    @app.task
    def pid(): return os.getpid(), gc.isenabled() and gc.get_freeze_count() > 10_000
"""


HEAD = "    import fbtasks.errors as app_errors\n"
TABLE = "CREATE TABLE NOTE (N INTEGER)"
RULE = (
    "CREATE EXCEPTION EX_RULE 'a rule of this database'",
    "CREATE TRIGGER RULE ON TRANSACTION COMMIT AS BEGIN"
    " IF (EXISTS(SELECT 1 FROM NOTE WHERE N < 0)) THEN EXCEPTION EX_RULE; END",
)


@pytest.fixture
def producer(project):
    with project.producer(HEAD + SOURCE, TABLE) as app:
        yield app


@pytest.fixture
def ledger(project):
    return project.lines


@pytest.fixture(scope="module")
def crews(make_project):
    with closing(Crews(make_project, HEAD + SOURCE, TABLE, *RULE, clear=["NOTE"])) as crews:
        yield crews


def of_pool(crew, pool):
    return crew.worker("-c", "2", "--pool", pool)


@pytest.mark.parametrize("pool", INSIDE_OUTSIDE)
def test_what_a_killed_worker_held_runs_again_within_five_seconds(crew, wait_for, pool):
    survivor = of_pool(crew, pool)
    survivor.send("add", (1, 1)).get(timeout=30)
    victim = crew.project.worker("-c", "1", "-n", "victim", "--pool", pool, "-Q", "victim")
    result = crew.producer.send_task("proj.slow", (60, "long"), queue="victim")
    wait_for(lambda: crew.lines() and result.status == "STARTED")
    child = int(crew.lines()[0].split()[1])
    victim.kill()
    killed = time.monotonic()
    victim.wait()
    wait_for(lambda: result.status == "PENDING", 5)
    assert time.monotonic() - killed < 5
    assert one(crew.producer, f"SELECT CRASH_COUNT FROM QUEUE_TASK WHERE ID = {result.id}") == 0
    wait_for(lambda: not alive(child), 5)  # no orphan goes on with it
    assert result.revoke()


def test_a_worker_that_is_stopping_sleeps_and_a_second_signal_ends_it_at_once(project, producer, ledger, wait_for):
    """It sleeps though a neighbour has died. The second signal counts a second after the first."""

    def processor_time(pid):
        with open(f"/proc/{pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    stopping = project.worker("-c", "1", "-n", "stopping", "--grace", "60")
    result = producer.send_task("proj.slow", (60, "long"))
    wait_for(ledger)
    neighbour = project.worker("-c", "1", "-n", "neighbour", "-Q", "other")
    producer.send_task("proj.add", (1, 1), queue="other").get(timeout=30)
    beaten = "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS WHERE NAME STARTING 'stopping'"
    before = one(producer, beaten)
    wait_for(lambda: one(producer, beaten) != before)  # they have met
    stopping.terminate()
    wait_for(lambda: one(producer, "SELECT DRAINING FROM QUEUE_PROCESS WHERE NAME STARTING 'stopping'"))
    neighbour.kill()
    neighbour.wait()
    used, since = processor_time(stopping.pid), time.monotonic()
    wait_for(lambda: time.monotonic() - since > 2)
    assert processor_time(stopping.pid) - used < 0.2
    assert result.status == "STARTED"
    stopping.terminate()
    assert stopping.wait(10) == 0
    assert "SIGTERM again" in project.logs()
    assert result.status == "PENDING"
    assert rows(producer, "SELECT TRY_COUNT, CRASH_COUNT, SUSPECT FROM QUEUE_TASK") == [(0, 0, 0)]
    assert not alive(int(ledger()[0].split()[1]))


def test_what_a_worker_on_another_host_held_runs_again_within_five_seconds(project, producer, ledger, wait_for):
    """No process here is told of its end: its connection is gone, and it has had the time to come back."""
    if producer.settings.url.embedded:
        pytest.skip("all processes on an embedded database are on one host")
    survivor = project.worker("-c", "1", "-n", "survivor", "-Q", "other")
    producer.send_task("proj.add", (1, 1), queue="other").get(timeout=30)
    victim = project.worker("-c", "1", "-n", "victim")
    result = producer.send_task("proj.slow", (60, "long"))
    wait_for(lambda: ledger() and result.status == "STARTED")
    execute(producer, "UPDATE QUEUE_PROCESS SET HOST = 'elsewhere' WHERE NAME STARTING 'victim'")
    heard = "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS WHERE NAME STARTING "
    for name in ("survivor", "victim"):  # it knows by then, and the victim is as young as can be
        before = one(producer, f"{heard}'{name}'")
        wait_for(lambda n=name, b=before: one(producer, f"{heard}'{n}'") != b)
    victim.kill()
    killed = time.monotonic()
    victim.wait()
    wait_for(lambda: result.status == "PENDING", 5)
    assert time.monotonic() - killed < 5
    assert "on elsewhere is dead: its connection is gone" in project.logs()
    assert survivor.poll() is None


@pytest.mark.long
@pytest.mark.parametrize("inside", [slow(False), True], ids=["between", "inside a transaction"])
def test_the_first_outcome_stands_when_a_stopped_worker_wakes(project, producer, ledger, wait_for, inside):
    # On the embedded engine a stopped process holds up all others at the engine's own locks, so there its loop hangs.
    embedded = producer.settings.url.embedded
    fault = f"heartbeat.{'before' if inside else 'after'}:8:hang" if embedded or inside else None
    stopped = project.worker("-c", "1", "-n", "stopped", "--lease", "3", "--pool", "threads", fault=fault)
    result = producer.send_task("proj.slow", (4, "x"))
    wait_for(ledger)
    if fault is None:
        stopped.send_signal(signal.SIGSTOP)
    project.worker("-c", "1", "-n", "other", "--lease", "3")
    assert result.get(timeout=40) == "x"
    before = rows(producer, "SELECT FINISH_TIME, WORKER FROM QUEUE_HISTORY")
    assert before[0][1].startswith("other")
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: "of task 1 (proj.slow) was dropped: claim" in project.logs())
    assert rows(producer, "SELECT FINISH_TIME, WORKER FROM QUEUE_HISTORY") == before
    assert "was taken for dead" in project.logs()
    assert ("its connection is killed" if inside else "its lease ran out") in project.logs()
    assert len(ledger()) == 2
    # And it goes on as a worker.
    again = [producer.send_task("proj.slow", (0.1, f"again{n}")) for n in range(8)]
    assert [r.get(timeout=20) for r in again] == [f"again{n}" for n in range(8)]


def test_nobody_is_taken_for_dead_when_all_were_held_up_together(project, producer, ledger, wait_for):
    """A machine that was suspended, a disk that did not answer: the first to wake must not declare the others dead."""
    names = ("one", "two")
    workers = [project.worker("-c", "1", "-n", name, "--lease", "3", "--pool", "threads") for name in names]
    results = [producer.send_task("proj.slow", (8, name)) for name in names]
    wait_for(lambda: len(ledger()) == len(names))
    everybody = [worker.pid for worker in workers] + [int(line.split()[1]) for line in ledger()]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5)  # how long they are held up: longer than the lease
    for pid in sorted(everybody):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)  # some wake before others
    assert [result.get(timeout=40) for result in results] == list(names)
    assert len(ledger()) == len(names)
    assert "is dead" not in project.logs()


def test_what_a_worker_claims_while_it_is_buried_stays_its_own(project, producer, ledger, wait_for):
    worker = project.worker("-c", "1", "--lease", "3", "--pool", "threads")
    result = producer.send_task("proj.until", ("go",))
    wait_for(ledger)
    # As if it had been declared dead just before this claim was committed.
    execute(producer, "DELETE FROM QUEUE_PROCESS")
    wait_for(lambda: "it registers again" in project.logs())
    kept = "SELECT COUNT(*) FROM QUEUE_TASK T JOIN QUEUE_PROCESS W ON W.ID = T.WORKER_ID"
    wait_for(lambda: one(producer, kept) == 1)
    (project.folder / "go").touch()
    assert result.get(timeout=30) == "go"
    assert ledger() == ["go"]
    worker.terminate()
    assert worker.wait(20) == 0


def test_a_solo_worker_that_was_buried_is_kept_alive_under_its_new_id(project, producer, ledger, wait_for):
    project.worker("-c", "1", "--lease", "3", "--pool", "solo")
    producer.send_task("proj.add", (1, 1)).get(timeout=30)
    execute(producer, "DELETE FROM QUEUE_PROCESS")
    wait_for(lambda: one(producer, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 1)
    result = producer.send_task("proj.slow", (60,))
    wait_for(ledger)
    beaten = one(producer, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS")
    wait_for(lambda: one(producer, "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS") > beaten)
    assert result.status == "STARTED"


def test_a_transactional_task_that_wakes_too_late_undoes_its_effects(project, producer, ledger, wait_for):
    if producer.settings.url.embedded:
        pytest.skip("a stopped process holds up all others on the embedded engine")
    stopped = project.worker("-c", "1", "-n", "stopped", "--lease", "3")
    result = producer.send_task("proj.effect", (7, 1.0))
    wait_for(ledger)
    child = int(ledger()[0].split()[2])
    os.kill(child, signal.SIGSTOP)
    stopped.send_signal(signal.SIGSTOP)
    project.worker("-c", "1", "-n", "other", "--lease", "3")
    result.get(timeout=40)
    os.kill(child, signal.SIGCONT)
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: "its effects are undone" in project.logs())
    assert one(producer, "SELECT COUNT(*) FROM NOTE") == 1


@pytest.mark.parametrize("pool", [slow("processes"), "solo"])
def test_a_live_worker_keeps_its_task_though_it_holds_the_interpreter(project, producer, ledger, pool):
    holder = project.worker("-c", "1", "-n", "holder", "--lease", "3", "--pool", pool)
    result = producer.send_task("proj.hold_the_gil", (6,))
    project.worker("-c", "1", "-n", "other", "--lease", "3", "-Q", "other")
    assert result.get(timeout=40) == "held"
    assert ledger() == ["gil"]
    assert "is dead" not in project.logs()
    holder.terminate()
    assert holder.wait(20) == 0


def test_a_task_that_kills_its_worker_every_time_fails_and_harms_nobody(project, producer, ledger, wait_for):
    killer = producer.send_task("proj.kill_worker")
    execute(producer, "UPDATE QUEUE_TASK SET CRASH_COUNT = 1")  # as one that has done so before
    others = [producer.send_task("proj.slow", (0.05, f"other{n}")) for n in range(12)]
    workers = [project.worker("-c", "2", "-l", "WARNING")]

    def restart_and_look():
        if workers[-1].poll() is not None:
            workers.append(project.worker("-c", "2", "-l", "WARNING"))
        return killer.ready()

    wait_for(restart_and_look, 90)
    with pytest.raises(WorkerLost, match="crash 3"):
        killer.get(timeout=1)
    assert [r.get(timeout=30) for r in others] == [f"other{n}" for n in range(12)]
    assert one(producer, "SELECT MAX(CRASH_COUNT) FROM QUEUE_HISTORY WHERE STATE = 10") == 0
    assert 2 <= ledger().count("kill_worker") <= 5


@pytest.mark.parametrize("pool", [slow("processes"), "threads", slow("asyncio")])
def test_a_segfault_is_charged_to_its_task_alone(crew, pool):
    worker = of_pool(crew, pool)
    guilty, *innocent = worker.send_together(["segfault"], *(["slow", 0.3, f"i{n}"] for n in range(3)))
    assert [r.get(timeout=60) for r in innocent] == [f"i{n}" for n in range(3)]
    with pytest.raises(WorkerLost, match=r"SIGSEGV.*crash 3"):
        guilty.get(timeout=60)
    crashes = "SELECT MAX(CRASH_COUNT) FROM QUEUE_HISTORY WHERE ID BETWEEN ? AND ?"
    assert one(crew.producer, crashes, int(innocent[0].id), int(innocent[-1].id)) == 0
    assert crew.lines().count("segfault") in (3, 4)  # one more when it shared its process the first time


@pytest.mark.parametrize("pool", [pytest.param("threads", marks=pytest.mark.slow), "asyncio"])
def test_a_death_is_not_charged_to_the_neighbour_of_a_stopped_task(crew, wait_for, pool):
    worker = of_pool(crew, pool)
    guilty, innocent = worker.send_together(["dies_after_its_limit"], ["slow", 5, "innocent"])
    with pytest.raises(TimeLimitExceeded):
        guilty.get(timeout=30)
    wait_for(lambda: "crashed (" in worker.log())
    assert one(crew.producer, f"SELECT CRASH_COUNT FROM QUEUE_TASK WHERE ID = {innocent.id}") == 0
    assert innocent.get(timeout=30) == "innocent"


@pytest.mark.parametrize("pool", ["processes", "threads", slow("asyncio"), "solo"])
def test_the_soft_limit_is_an_exception_inside_the_task(crew, wait_for, pool):
    for result in of_pool(crew, pool).send_together(["soft"], ["soft_async"]):
        wait_for(result.ready)
        assert result.status == "FAILURE"
        assert "SoftTimeLimitExceeded" in result.traceback
    assert crew.lines() == ["cleaned up"]


@pytest.mark.parametrize("pool", [*CHILDREN, "solo"])
def test_the_hard_limit_stops_the_task_alone(crew, pool):
    worker = of_pool(crew, pool)
    beside = worker.send("slow", (2.0, "beside")) if pool != "solo" else None
    result = worker.send("hard")
    with pytest.raises(TimeLimitExceeded, match=r"0\.5 s" if pool != "solo" else "time_limit"):
        result.get(timeout=30)
    assert worker.send("add", (1, 2)).get(timeout=20) == 3
    if beside is not None:
        assert beside.get(timeout=20) == "beside"
        assert len([line for line in crew.lines() if line.startswith("beside")]) == 1


def test_the_hard_limit_leads_to_another_try_where_the_policy_says_so(crew):
    assert of_pool(crew, "processes").send("second_try_lucky").get(timeout=30) == "lucky"


@pytest.mark.parametrize("pool", CHILDREN)
def test_the_hard_limit_frees_the_rows_of_an_open_transaction(crew, wait_for, pool):
    execute(crew.producer, "INSERT INTO NOTE VALUES (0)")
    result = of_pool(crew, pool).send("stuck_in_a_statement")
    wait_for(lambda: crew.lines() == ["updated"])
    wait_for(result.ready)
    ended = time.monotonic()
    execute(crew.producer, "UPDATE NOTE SET N = 5")  # waits for the rows
    assert time.monotonic() - ended < 5  # the promise is one second; the rest is for a busy machine
    assert one(crew.producer, "SELECT N FROM NOTE") == 5
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=1)


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio"])
def test_a_running_task_is_cancelled(crew, wait_for, pool):
    """In ``asyncio`` one of the two runs in a thread, as in ``threads``."""
    worker = of_pool(crew, pool)
    result, long = worker.send_together(["soft_async"], ["slow", 15 if pool == "threads" else 60, "long"])
    wait_for(lambda: long.status == "STARTED" and crew.lines())
    assert "asked to stop" in crew.project.run("cancel", long.id).stdout
    wait_for(long.ready, 10)
    assert long.status == "REVOKED"
    with pytest.raises(TaskRevoked, match="cancelled on request"):
        long.get(timeout=1)
    wait_for(result.ready)
    assert worker.send("add", (1, 2)).get(timeout=20) == 3
    assert one(crew.producer, "SELECT COUNT(*) FROM QUEUE_CANCEL") == 0


@pytest.mark.parametrize("pool", CHILDREN)
def test_a_suspect_in_an_open_transaction_is_cancelled(crew, wait_for, pool):
    """It has a process of its own, which is not ended before it has rolled back and said so."""
    result = of_pool(crew, pool).send_as("SUSPECT = 1", "effect", 1, 60)
    wait_for(crew.lines)
    assert "asked to stop" in crew.project.run("cancel", result.id).stdout
    wait_for(result.ready, 10)
    assert result.status == "REVOKED"
    assert one(crew.producer, "SELECT COUNT(*) FROM NOTE") == 0


def test_a_worker_that_ends_while_it_stops_a_task_still_records_that(project, producer, ledger, wait_for):
    result = producer.send_task("proj.stubborn")
    worker = project.worker("-c", "1", "--grace", "0")
    wait_for(ledger)
    assert result.revoke(terminate=True)
    wait_for(lambda: "told to stop" in ledger())  # and has half a second before it is killed
    worker.terminate()
    assert worker.wait(20) == 0
    assert result.status == "REVOKED"
    assert rows(producer, "SELECT STATE FROM QUEUE_TASK") == []


def test_children_are_recycled_by_count_and_by_memory(project, producer):
    worker = project.worker("-c", "1", "--max-tasks-per-child", "3", "--max-memory-per-child", "150")
    found = [producer.send_task("proj.pid").get(timeout=20) for _ in range(4)]
    assert all(collects for _, collects in found)  # but leaves out what fbtasks has imported
    first, second, third, fourth = (pid for pid, _ in found)
    assert first == second == third != fourth
    assert producer.send_task("proj.memory").get(timeout=20) == fourth
    assert producer.send_task("proj.pid").get(timeout=20)[0] != fourth  # which might run one more, by their count
    worker.terminate()
    assert worker.wait(20) == 0


def test_a_worker_that_drains_for_a_migrated_schema_obeys_a_signal(project, producer, ledger, wait_for):
    worker = project.worker("-c", "1", "--lease", "3", "--grace", "30")
    result = producer.send_task("proj.slow", (4,))
    wait_for(ledger)
    execute(producer, "INSERT INTO QUEUE_SCHEMA VALUES (999, 'later', CURRENT_TIMESTAMP)")
    wait_for(lambda: "starts afresh" in project.logs())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0  # and has not been replaced by another one
    execute(producer, "DELETE FROM QUEUE_SCHEMA WHERE VERSION = 999")
    assert result.get(timeout=1) == "slow"
    assert "Starting afresh" not in project.logs()
    assert len(ledger()) == 1


@pytest.mark.parametrize("pool", INSIDE_OUTSIDE)
def test_a_commit_that_the_database_refuses_is_the_failure_of_its_task(crew, pool):
    worker = of_pool(crew, pool)
    refused = worker.send("effect", (-1,))
    with pytest.raises(DatabaseError, match="a rule of this database"):
        refused.get(timeout=20)
    done = worker.send("effect", (1,))
    done.get(timeout=20)
    assert [line.split()[1] for line in crew.lines()] == ["-1", "1"]
    assert rows(crew.producer, "SELECT N FROM NOTE") == [(1,)]
    assert tries_and_crashes(crew, refused, done) == [(1, 0), (1, 0)]
    assert "The database is away" not in worker.log()


@pytest.mark.parametrize("pool", INSIDE_OUTSIDE)
def test_a_transactional_task_that_closes_its_connection_fails(crew, pool):
    worker = of_pool(crew, pool)
    closed = worker.send("closes")
    with pytest.raises(TaskDefinitionError, match=r"closed self\.connection"):
        closed.get(timeout=60)
    worker.send("effect", (2,)).get(timeout=60)
    assert crew.lines()[0] == "closed"
    assert crew.lines()[1].startswith("effect 2")
    assert rows(crew.producer, "SELECT N FROM NOTE") == [(2,)]


@pytest.mark.parametrize("pool", ["processes", "solo"])
@pytest.mark.parametrize("caught", [False, True])
def test_a_transactional_task_whose_connection_is_killed_each_time_fails(crew, pool, caught):
    worker = of_pool(crew, pool)
    sent = []
    for tries, name in enumerate(["cut_off_once", "cut_off_twice"], 1):
        before = len(crew.lines())
        sent.append(worker.send(name, (caught,)))
        with pytest.raises(Exception, match="Killed by database administrator"):
            sent[-1].get(timeout=20)
        assert len(crew.lines()) - before == tries
    sent.append(worker.send("effect", (2,)))
    sent[-1].get(timeout=20)
    assert rows(crew.producer, "SELECT N FROM NOTE") == [(2,)]
    assert tries_and_crashes(crew, *sent) == [(1, 0), (2, 0), (1, 0)]


def tries_and_crashes(crew, *results):
    numbers = ", ".join(result.id for result in results)
    return rows(crew.producer, f"SELECT TRY_COUNT, CRASH_COUNT FROM QUEUE_HISTORY WHERE ID IN ({numbers}) ORDER BY ID")
