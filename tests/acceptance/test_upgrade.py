"""A queue is brought to the next release while all others work on it: nothing is lost, nobody meets an error."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from support.sql import execute

import fbtasks
from fbtasks import FBTasks
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

APP = """
import os, time
def done(line):
    with open("ledger", "a") as file:
        file.write(f"{line}\\n")
@app.task
def note(number):
    time.sleep(0.01)
    done(f"task {number}")
@app.task
def long(number):
    done(f"begun {number}")
    time.sleep(3)
    done(f"long {number}")
    return number
@app.on_change("ORDERS", insert=True, key="ID")
def changed(change):
    done("change %d" % change.key["ID"])
"""
KILLS = pytest.param(2, id="2-kills"), pytest.param(50, id="50-kills", marks=pytest.mark.slow)


@pytest.fixture
def following(tmp_path):
    """A copy of fbtasks as it may be in the next release: with a column more, and packages of another text."""
    root = tmp_path / "next"
    package = Path(fbtasks.__file__).parent
    # With what is compiled, which its processes need not do again; not what others write at this moment.
    shutil.copytree(package, root / "fbtasks", ignore=shutil.ignore_patterns("*.pyc.*"))
    sql = root / "fbtasks" / "queue" / "schema"
    last = max((sql / "migrations").iterdir()).name
    script = "SET TERM ^ ;\n\nALTER TABLE QUEUE_CANCEL ADD NEXT_RELEASE SMALLINT^\n\nSET TERM ; ^\n"
    (sql / "migrations" / f"{int(last[:4]) + 1:04}_next.sql").write_text(script)
    grown = sql / "packages" / "rescue.sql"
    more = "\nPACKAGE FBTASKS_UPKEEP^\n\nPROCEDURE NEXT_RELEASE\nAS\nBEGIN\nEND^\n\nSET TERM ; ^\n"
    grown.write_text(grown.read_text().replace("\nSET TERM ; ^\n", more))
    return root


class Load:
    """Writers of a subscribed table, and SQL that enqueues, prepared anew each time, of whatever release."""

    def __init__(self, app):
        self._app = app
        self._over = threading.Event()
        self.errors = []
        self.written, self.enqueued = [], []
        self._numbers = count(1)
        self._threads = [
            threading.Thread(target=each) for each in (self._write, self._write, self._enqueue, self._enqueue)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _again(self, act):
        with closing(self._app.connect()) as connection, connection.cursor() as cursor:
            while not self._over.wait(0.04):
                number = next(self._numbers)
                try:
                    act(cursor, number)
                    connection.commit()
                except Exception as error:
                    self.errors.append(error)
                    return

    def _write(self):
        def act(cursor, number):
            cursor.execute("INSERT INTO ORDERS (ID, CUSTOMER) VALUES (?, ?)", (number, number % 5))
            self.written.append(number)

        self._again(act)

    def _enqueue(self):
        def act(cursor, number):
            cursor.execute(f"SELECT ID FROM FBTASKS.ENQUEUE('proj.note', '[{number}]')").fetchall()
            self.enqueued.append(number)

        self._again(act)


def migration(project, release):
    """A process of the next release that brings the queue to it."""
    env = {**project.env, "PYTHONPATH": str(release)}
    return subprocess.Popen(
        [sys.executable, "-m", "fbtasks", "migrate"],
        cwd=project.folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize("kills", KILLS)
def test_an_upgrade_under_load(project, following, wait_for, kills):
    chance = random.Random(kills)
    project.write(APP)

    def ended(*kinds):
        return sorted(line for line in project.lines() if line.startswith(kinds))

    with closing(FBTasks("proj", project.url)) as app:
        execute(app, "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, CUSTOMER INTEGER)")
        project.run("migrate", "-A", "proj")
        workers = [project.worker("-c", "4", "--pool", "threads") for _ in range(2)]
        for number in range(4):
            app.send_task("proj.long", (number,))
        wait_for(lambda: len(ended("begun")) == 4, 60)
        with closing(app.connect()) as connection, Load(app) as load:
            former = asked(connection, "SELECT NUMBER FROM QUEUE_GENERATION")
            wait_for(lambda: load.errors or (len(load.written) > 20 and len(load.enqueued) > 20), 60)
            for _ in range(kills):
                process = migration(project, following)
                time.sleep(chance.uniform(0.3, 2.5))  # a moment at random: no condition tells where it is
                process.send_signal(signal.SIGKILL)
                process.communicate()
            process = migration(project, following)
            said = process.communicate(timeout=120)[0]
            assert process.returncode == 0, said
            assert asked(connection, "SELECT NUMBER FROM QUEUE_GENERATION") > former
            for worker in workers:
                wait_for(lambda worker=worker: worker.poll() is not None, 60)
            project.env["PYTHONPATH"] = os.pathsep.join((str(project.folder), str(following)))
            project.anew = True  # it imports the next release
            project.worker("-c", "4", "--pool", "threads")
            many = len(load.written)
            wait_for(lambda: load.errors or len(load.written) > many + 20, 60)
        assert load.errors == []
        expected = sorted([f"task {n}" for n in load.enqueued] + [f"change {n}" for n in load.written])
        wait_for(lambda: len(ended("task", "change")) >= len(expected), 120)
        assert ended("task", "change") == expected
        assert ended("long") == [f"long {number}" for number in range(4)]
    # Nobody is left that may have loaded what calls the former packages.
    assert "up to date" in migration(project, following).communicate(timeout=120)[0]
    with closing(connections.connect(DatabaseURL.parse(project.url))) as connection:
        assert asked(connection, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 11") == [(0,)]
        (number,), *others = asked(connection, "SELECT NUMBER FROM QUEUE_GENERATION")
        names = asked(
            connection,
            "SELECT TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_W'",
        )
    assert not others
    assert {name.rpartition("_")[2] for (name,) in names} == {str(number)}


def asked(connection, statement):
    """All rows of a query of an application that has its connection from before."""
    with connection.cursor() as cursor:
        found = cursor.execute(statement).fetchall()
    connection.commit()
    return found
