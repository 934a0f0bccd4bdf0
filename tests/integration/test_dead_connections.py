"""Connections of the dead: still listed by the engine, or with a number that another one has by now."""

import struct
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from firebird.driver import connect_server
from support.programs import started

from fbtasks import FBTasks
from fbtasks.database.operations import adopt
from fbtasks.database.schema import numbered
from fbtasks.firebird import connections, library
from fbtasks.firebird.identity import file_of
from fbtasks.queue.register import processes
from fbtasks.queue.register.neighbours import Rhythm
from fbtasks.queue.register.registration import Registration
from fbtasks.testing import drain

LEASE = 10.0
WORKER = """
    import sys, time
    from fbtasks import FBTasks
    from fbtasks.queue.register import processes
    app = FBTasks("other", sys.argv[1])
    with app.database.session() as session:
        facts = dict(name="other", host="elsewhere", pid=1, pid_start=1, queues=["default"], pool="solo", concurrency=1)
        print(session.run(lambda t: processes.register(t, "worker", lease=float(sys.argv[2]), **facts)), flush=True)
        time.sleep(600)
"""


def test_a_worker_that_was_killed_after_somebody_had_read_the_monitoring_tables(app, url, wait_for, caplog):
    """It is found dead by its connection, as one is whose connection nobody had looked at, and not by its lease."""
    with app.database.session() as session, started(WORKER, url, LEASE, stdout=subprocess.PIPE) as other:
        number = int(other.stdout.readline())
        ours = Registration("worker", Rhythm(LEASE), name="w", queues="", pool="solo", concurrency=1, version="1")
        me = ours.register(session.run)
        for _ in range(3):  # what the other one had locked goes to this process
            ours.heartbeat(session.run, me)
            app.send_task("t")
        for _ in range(3):
            session.run(lambda t: t.sql("SELECT COUNT(*) FROM MON$ATTACHMENTS"))
        other.kill()
        other.wait()

        def taken_over():
            ours.heartbeat(session.run, me)
            ours.rescue(session.run, partial(connections.find_the_dead, session.url))
            return session.run(lambda t: t.sql("SELECT ID FROM QUEUE_PROCESS")) == [(me,)]  # no new connection

        wait_for(taken_over)
    assert f"Worker {number} on elsewhere is dead: its connection is gone. 0 of its tasks run again." in caplog.messages


@pytest.mark.embedded("a server's clients do not see its files; acceptance/test_restored.py is for a server")
def test_after_a_restore_nobody_has_the_connection_of_one_who_was_registered_before(app, tmp_path, wait_for):
    """Numbers of connections begin anew: who has one of them now is not killed in the place of a dead worker."""
    for _ in range(10):
        with app.connect():
            pass
    session = app.database.open()
    facts = {"name": "w", "host": "elsewhere", "pid": 1, "pid_start": 1, "queues": ["default"], "pool": "solo"}
    number = session.run(lambda t: processes.register(t, "worker", lease=0.05, concurrency=1, **facts))
    taken = session.connection.info.id
    session.close()
    app.close()
    path, backup, restored = (str(tmp_path / name) for name in ("queue.fdb", "queue.fbk", "restored.fdb"))
    with connect_server("", user="SYSDBA") as server:
        server.database.backup(database=path, backup=backup)
        server.wait()
        server.database.restore(backup=backup, database=restored)
        server.wait()
    with closing(FBTasks("test", f"firebird://{restored}")) as copy, copy.database.session() as session:
        adopt(copy.database)
        verdict = f"""EXECUTE BLOCK RETURNS (WHY VARCHAR(63)) AS BEGIN
            EXECUTE PROCEDURE FBTASKS_CORE.VERDICT({number}, 7, 1000000) RETURNING_VALUES WHY; SUSPEND; END"""
        assert wait_for(
            lambda: session.run(lambda t: t.sql(numbered(verdict, session.generation))) == [("its lease ran out",)]
        )
        while True:
            with copy.connect() as stranger:
                assert stranger.info.id <= taken
                if stranger.info.id == taken:
                    assert not session.run(lambda t: processes.kill_connection(t, number, awake=1e6))
                    stranger.execute_immediate("UPDATE QUEUE_PROCESS SET PID = PID")
                    return


@pytest.mark.embedded("a server has its own lock files")
def test_no_worker_reads_the_monitoring_tables_when_it_starts(app):
    """For each reader all connections write what they do into one memory; one that is killed meanwhile may spoil it.

    Then no process can read these tables ("operating system directive write failed") before all of them have ended.
    """
    app.task(name="add")(lambda a, b: a + b)
    result = app.send_task("add", (1, 2))
    few = 3_000  # bytes of some blocks without content; with it they are as many for one connection

    def used():
        file = file_of(app.settings.url, None).hex()  # others may be open
        path = Path(library.lock_directory(app.settings.url)) / f"fb_monitor_{file}"
        return struct.unpack_from("<I", path.read_bytes(), 80)[0]  # as Monitoring.h of Firebird 5 has it

    with app.database.session() as session:
        drain(app)
        assert result.get(timeout=0) == 3
        assert used() < few
        session.sql("SELECT COUNT(*) FROM MON$ATTACHMENTS")
        assert used() > few
