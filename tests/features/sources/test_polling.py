"""Polled tables with real workers, one of which is killed in the middle: no row is lost or run twice for nothing."""

import os
import time
from collections import defaultdict
from contextlib import closing

import pytest
from firebird.driver import Isolation, tpb
from support.sql import execute, one, rows
from support.variants import slow

pytestmark = pytest.mark.acceptance

ROWS = int(os.environ.get("FBTASKS_POLL_ROWS", "80"))
"""How many rows each shape has."""
WORKERS = 3
LATE = 10
"""Every so many rows one is committed after those behind it."""

STATUS = "status='S', ready='R', taken='T', done='D', failed='E'"
KEYED = "CREATE TABLE INBOX (ID INTEGER NOT NULL PRIMARY KEY, S VARCHAR(30), DATA VARCHAR(20))"
BARE = "CREATE TABLE INBOX (ID INTEGER, S VARCHAR(30), DATA VARCHAR(20))"
INDEX = "CREATE INDEX INBOX_S ON INBOX (S)"
SEQUENCE = "CREATE INDEX INBOX_ID ON INBOX (ID)"
SHAPES = {
    "ids and status": ((KEYED, INDEX), STATUS),
    "ids, no status": ((KEYED,), "key='ID'"),
    "sequence and status": ((BARE, SEQUENCE), f"sequence='ID', {STATUS}"),
    "sequence, no status": ((BARE, SEQUENCE), "sequence='ID'"),
    "ids, hard delete": ((KEYED,), "delete=True"),
    "sequence, hard delete": ((BARE, SEQUENCE), "sequence='ID', delete=True"),
    "no ids, hard delete": ((BARE,), "delete=True"),
    "no ids, wide status": ((BARE, INDEX), STATUS.replace("taken='T', ", "")),
}
SOURCE = """
import os, time

@app.poll_table("INBOX", {options}, columns=("ID", "DATA"), every=(0.05, 0.5), name="handle", max_retries=0)
def handle(row):
    with open("runs.txt", "a") as file:
        file.write(f"{{row.values['ID']}} {{os.getpid()}}\\n")
    time.sleep(0.005)
    if row.values["DATA"] == "bad":
        raise ValueError("bad")
"""


def runs(project):
    """The process that ran each row, in the order of the runs."""
    found = defaultdict(list)
    for line in (project.folder / "runs.txt").read_text().splitlines():
        number, pid = map(int, line.split())
        found[number].append(pid)
    return found


def write_rows(app, numbers):
    """Inserts rows in small transactions, and some in one that began before and ends after those behind them."""
    late = [number for number in numbers if number % LATE == 3]
    with app.connect() as early, app.connect() as connection:
        for number in late:
            early.execute_immediate(f"INSERT INTO INBOX (ID, S, DATA) VALUES ({number}, 'R', 'late')")
        for number in numbers:
            if number not in late:
                data = "bad" if number % 50 == 7 else "good"
                connection.execute_immediate(f"INSERT INTO INBOX (ID, S, DATA) VALUES ({number}, 'R', '{data}')")
                if number % 7 == 0:
                    connection.commit()
        connection.commit()
        early.commit()


ALWAYS = ("ids and status",)
"""The shape in which what was taken is marked in the row; tests of single processes show the others."""


@pytest.mark.parametrize("shape", [shape if shape in ALWAYS else slow(shape) for shape in SHAPES])
def test_no_row_is_lost_and_only_what_the_dead_worker_held_is_run_again(project, wait_for, shape):
    ddl, options = SHAPES[shape]
    with project.producer(SOURCE.format(options=options), *ddl) as app:
        (project.folder / "runs.txt").touch()
        workers = [project.worker("-P", "solo") for _ in range(WORKERS)]
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS") == WORKERS)
        write_rows(app, range(1, ROWS // 2 + 1))
        wait_for(lambda: len(runs(project)) >= ROWS // 4)
        killed = max(workers, key=lambda worker: sum(worker.pid in pids for pids in runs(project).values()))
        killed.kill()
        write_rows(app, range(ROWS // 2 + 1, ROWS + 1))
        seconds = 60 + ROWS / 10
        wait_for(lambda: len(runs(project)) == ROWS, seconds)
        wait_for(lambda: not rows(app, "SELECT FIRST 1 ID FROM QUEUE_TASK"), seconds)
        wait_for(lambda: not rows(app, "SELECT FIRST 1 ID FROM QUEUE_NOTE"), seconds)
        found = runs(project)
        assert sorted(found) == list(range(1, ROWS + 1))
        again = {number: pids for number, pids in found.items() if len(pids) > 1}
        assert all(pids[:-1] == [killed.pid] for pids in again.values()), again
        bad = [number for number in range(1, ROWS + 1) if number % 50 == 7]
        shown = rows(app, "SELECT ID, S FROM INBOX ORDER BY ID")
        if "hard delete" in shape:
            assert shown == ([] if shape.startswith("no ids") else [(number, "R") for number in bad])
        elif "no status" not in shape:
            assert shown == [(number, "E" if number in bad else "D") for number in range(1, ROWS + 1)]
        assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 11") == len(bad)
        if shape == "sequence, no status":  # by a whole look, a minute after the last row at the most
            assert one(app, "SELECT COUNT(*) FROM QUEUE_GAP") <= 3


def test_a_worker_writes_what_became_of_rows_when_it_is_stopped(project, wait_for):
    with project.producer(SOURCE.format(options=f"{STATUS}").replace("0.05, 0.5", "5, 5"), KEYED) as app:
        (project.folder / "runs.txt").touch()
        execute(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (1, 'R', 'good')")
        worker = project.worker("-P", "solo")
        wait_for(lambda: runs(project))
        wait_for(lambda: not rows(app, "SELECT ID FROM QUEUE_TASK"))
        worker.terminate()
        worker.wait(30)
        assert rows(app, "SELECT S FROM INBOX") == [("D",)]


def test_a_table_that_is_dropped_and_made_again(project, wait_for):
    source = SOURCE.format(options=STATUS) + "\n@app.task(name='add')\ndef add(a, b): return a + b\n"
    with project.producer(source, KEYED) as app:
        (project.folder / "runs.txt").touch()
        project.worker("-c", "1")
        execute(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (1, 'R', 'good')")
        wait_for(lambda: rows(app, "SELECT S FROM INBOX") == [("D",)])
        drop(app)
        wait_for(lambda: "Polling INBOX for handle fails: the database has no table 'INBOX'" in project.logs())
        assert "polling INBOX for handle fails" in project.run("health", check=False).stdout
        result = app.send_task("add", [1, 2])
        assert result.get(timeout=20) == 3
        execute(app, KEYED)
        execute(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (2, 'R', 'good')")
        wait_for(lambda: rows(app, "SELECT S FROM INBOX") == [("D",)])
        wait_for(lambda: project.run("health", check=False).returncode == 0)


def drop(app):
    """Drops the table, in a moment in which no look reads it.

    Again after a second: of some hundred drops between the looks of an idle worker one waits for ever for its lock on
    the table, which the next try gets at once.
    """
    limit = time.monotonic() + 20
    with closing(app.connect()) as connection:
        transaction = connection.transaction_manager(tpb(Isolation.SNAPSHOT, lock_timeout=1))
        while True:
            transaction.begin()
            try:
                transaction.execute_immediate("DROP TABLE INBOX")
                transaction.commit()
            except Exception:
                transaction.rollback()
                assert time.monotonic() < limit
            else:
                return
