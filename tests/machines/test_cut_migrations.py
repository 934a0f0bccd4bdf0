"""A migration that is cut is gone on with, wherever that was, and harms no table of the application's."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from contextlib import closing, suppress

import pytest
from firebird.driver import DatabaseError, DbWriteMode, connect_server
from support.programs import command_line_in, started
from support.signals import as_in_a_terminal

from fbtasks import FBTasks, SchemaError
from fbtasks.database.packages import queries
from fbtasks.database.schema import ours, steps
from fbtasks.errors import StatementRefused
from fbtasks.firebird import connections
from fbtasks.firebird.session import Session
from fbtasks.testing import drain
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.embedded("a server's engine does not die with its clients")

STEPS = [step for part in ours() for step in steps(part)]
COMMITS = len(STEPS) + 3
"""With the two tables that record them, and the record that all is done."""
PROGRAMS = {
    "migrate": "main(['migrate'])",
    "call": "task.delay()",
    "thread": """
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])  # for the thread, should it hang
thread = threading.Thread(target=task.delay)
thread.start()
thread.join()
""",
    "worker": "main(['worker', '-A', 'proj', '-P', 'solo', '--burst'])",
}
"""What makes a queue, in a process whose imports are done."""
APP = """
from fbtasks import FBTasks
from fbtasks.cli import main
app = FBTasks("proj")
task = app.task(name="t")(lambda: 1)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, template):
    """A database of an application's, in which nothing waits for the disk: no test ends the system."""
    path = tmp_path_factory.mktemp("theirs") / "theirs.fdb"
    with closing(connections.connect(DatabaseURL(str(path)), create=True)) as connection:
        connection.execute_immediate("CREATE TABLE CUSTOMER (ID INTEGER NOT NULL PRIMARY KEY)")
        connection.commit()
    with connect_server("", user="SYSDBA") as server:
        server.database.set_write_mode(database=str(path), mode=DbWriteMode.ASYNC)
    return path


class Place:
    """A folder with a database of an application's, or none yet, and programs that make a queue there."""

    def __init__(self, folder, database=None):
        self.folder = folder
        self.url = DatabaseURL(str(folder / "queue.fdb"))
        self.env = {**os.environ, "FBTASKS_URL": str(self.url), "PYTHONPATH": str(folder)}
        (folder / "proj.py").write_text(APP)
        if database is not None:
            shutil.copyfile(database, self.url.database)

    def start(self, program, **environment):
        """Starts a program, and returns when it is about to make the queue."""
        code = f"{APP}\nprint('go', flush=True)\n{PROGRAMS[program]}"
        with as_in_a_terminal():
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = started(code, cwd=self.folder, env=self.env | environment, **pipes)
        assert process.stdout.readline() == "go\n", process.communicate()
        return process

    def do(self, *statements):
        """Runs statements on a connection of the application's own, each in a transaction."""
        with closing(connections.connect(self.url)) as connection:
            for statement in statements:
                connection.execute_immediate(statement)
                connection.commit()

    def read(self, name):
        """All rows of a named query."""
        with closing(Session(connections.connect(self.url), self.url, queries())) as session:
            return session.read(name)

    def orphans(self):
        return self.read("orphaned_pages")[0][0] if os.path.exists(self.url.database) else 0

    def steps_done(self):
        return len(self.read("schema_steps"))

    def goes_on(self, complete):
        """``fbtasks migrate`` makes what is missing; then the queue works, and so does the application."""
        done = command_line_in(self.folder, self.env, "migrate")
        assert done.returncode == 0, done.stderr
        assert sorted(self.read("taken_names")) == complete
        assert self.orphans() == 0
        with closing(FBTasks("proj", str(self.url))) as app:
            result = app.task(name="t")(lambda: 1).delay()
            drain(app)
            assert result.get(timeout=0) == 1
        for table in ("WITH_KEY (ID INTEGER NOT NULL PRIMARY KEY)", "WITHOUT_KEY (ID INTEGER)"):
            name = table.partition(" ")[0]
            self.do(f"CREATE TABLE {table}", f"INSERT INTO {name} VALUES (1)")
            with closing(connections.connect(self.url)) as connection, connection.cursor() as cursor:
                assert cursor.execute(f"SELECT ID FROM {name}").fetchall() == [(1,)]


@pytest.fixture
def place(tmp_path, theirs):
    return Place(tmp_path, theirs)


@pytest.fixture(scope="module")
def complete(template, tmp_path_factory):
    """The names of all objects of a queue that was made without being cut."""
    return sorted(Place(tmp_path_factory.mktemp("whole"), template).read("taken_names"))


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        pytest.param("migrate", "before:1", marks=pytest.mark.slow),
        pytest.param("call", "after:2", marks=pytest.mark.slow),
        pytest.param("worker", "before:20", marks=pytest.mark.slow),
        ("migrate", f"before:{COMMITS}"),
    ],
)
def test_a_migration_that_is_killed_between_two_commits_is_gone_on_with(place, complete, program, fault):
    process = place.start(program, FBTASKS_FAULT=f"migrate.{fault}")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    if fault != "before:1":
        with pytest.raises(SchemaError, match=r"not complete: its migration goes on, or was cut. Run: fbtasks migrate"):
            FBTasks("a", str(place.url), auto_migrate=False).task(name="t")(lambda: 1).delay()
    place.goes_on(complete)


def test_a_new_file_has_its_name_when_it_is_whole(tmp_path, complete):
    place = Place(tmp_path)
    process = place.start("worker", FBTASKS_FAULT="migrate.before:20")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not os.path.exists(place.url.database)
    place.goes_on(complete)
    assert list(tmp_path.glob("queue.fdb?*")) == []


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        pytest.param("migrate", signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("migrate", signal.SIGINT, 1, marks=pytest.mark.slow),
        ("thread", signal.SIGHUP, -signal.SIGHUP),
        ("worker", signal.SIGTERM, 0),
    ],
)
def test_a_signal_is_held_while_a_step_runs(place, complete, wait_for, program, number, code):
    fault = place.folder / "fault"
    process = place.start(program, FBTASKS_FAULT="migrate.before:7:hang", FBTASKS_FAULT_FILE=str(fault))
    wait_for(fault.exists)
    process.send_signal(number)
    while process.poll() is None:  # it may not wait for the signal yet that ends the hanging
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    _, said = process.communicate()
    assert process.returncode == code, said
    if program == "worker":
        assert "Signal SIGTERM: stopping." in said
    else:
        assert place.steps_done() == 5
    assert place.orphans() == 0
    place.goes_on(complete)


def test_of_several_at_once_the_others_go_on_when_one_is_killed(place, complete):
    fault = {"FBTASKS_FAULT": "migrate.before:20", "FBTASKS_FAULT_FILE": str(place.folder / "fault")}
    processes = [place.start(program, **fault) for program in ("migrate", "call", "thread")]
    codes = []
    for process in processes:
        process.communicate(timeout=60)
        codes.append(process.returncode)
    assert sorted(codes) == [-signal.SIGKILL, 0, 0]
    assert sorted(place.read("taken_names")) == complete
    place.goes_on(complete)


def kill_in_create_table(place):
    """Kills a process of the application's in the commit of a CREATE TABLE, so that it leaves pages of no table.

    Now and then it leaves a file that the engine refuses to read: another harm, for which the test begins again.
    """
    code = f"""
import os
from itertools import count
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL
connection = connections.connect(DatabaseURL({place.url.database!r}))
print("go", flush=True)
for number in count():
    connection.execute_immediate(f"CREATE TABLE T{{number}}_{{os.getpid()}} (ID INTEGER NOT NULL PRIMARY KEY)")
    connection.commit()
"""
    before = f"{place.url.database}.before"
    shutil.copyfile(place.url.database, before)
    orphans = 0
    while orphans == 0:
        process = started(code, stdout=subprocess.PIPE)
        assert process.stdout.readline() == "go\n"
        time.sleep(random.uniform(0.001, 0.05))
        process.kill()
        process.communicate()
        try:
            orphans = place.orphans()
        except StatementRefused as error:
            if "consistency check" not in str(error):
                raise
            put_back(place, before)
    os.remove(before)


def put_back(place, copy):
    """Puts *copy* in the place of the database, as a new file: a process may still have the old one open."""
    new = shutil.copyfile(copy, f"{copy}.new")
    os.replace(new, place.url.database)


def test_pages_of_no_table_are_removed_before_a_table_gets_them(place, complete):
    place.do("CREATE TABLE QUEUE_SPARE (QUEUE_SPARE INTEGER)")  # as a process leaves it that is killed while it does so
    whole = shutil.copyfile(place.url.database, f"{place.url.database}.whole")
    for _ in range(5):
        kill_in_create_table(place)
        for _ in range(2):  # for good, with connections of their own
            with pytest.raises(Exception, match="cannot create index"):
                place.do("CREATE TABLE MINE (ID INTEGER NOT NULL PRIMARY KEY)")
        try:
            place.goes_on(complete)
        except (DatabaseError, AssertionError) as error:  # now and then a page that was not written whole: another harm
            if not re.search("appears corrupt|after bugcheck", str(error)):
                raise
            put_back(place, whole)
        else:
            return
    pytest.fail("each of five killed processes has left a file that is corrupt")


THEIRS = {
    "constraint QUEUE_TASK_ID_TAKEN": (
        "CREATE TABLE A (B INTEGER, CONSTRAINT QUEUE_TASK_ID_TAKEN UNIQUE (B))",
        "DROP TABLE A",
    ),
    "domain QUEUE_RANK": ("CREATE DOMAIN QUEUE_RANK AS INTEGER", "DROP DOMAIN QUEUE_RANK"),
    "exception QUEUE_FULL": ("CREATE EXCEPTION QUEUE_FULL 'theirs'", "DROP EXCEPTION QUEUE_FULL"),
    "function QUEUE_NOW": (
        "CREATE FUNCTION QUEUE_NOW RETURNS INTEGER AS BEGIN RETURN 1; END",
        "DROP FUNCTION QUEUE_NOW",
    ),
    "index QUEUE_TASK_CLAIM": ("CREATE INDEX QUEUE_TASK_CLAIM ON CUSTOMER (ID)", "DROP INDEX QUEUE_TASK_CLAIM"),
    "procedure QUEUE_TASK": ("CREATE PROCEDURE QUEUE_TASK AS BEGIN END", "DROP PROCEDURE QUEUE_TASK"),
    "package FBTASKS": ("CREATE PACKAGE FBTASKS AS BEGIN PROCEDURE P; END", "DROP PACKAGE FBTASKS"),
    "procedure QUEUE_CALL_RAISE": (
        "CREATE PROCEDURE QUEUE_CALL_RAISE RETURNS (X INTEGER) AS BEGIN X = 1; SUSPEND; END",
        "DROP PROCEDURE QUEUE_CALL_RAISE",
    ),
    "sequence QUEUE_MSG_SEQ": ("CREATE SEQUENCE QUEUE_MSG_SEQ", "DROP SEQUENCE QUEUE_MSG_SEQ"),
    "table QUEUE_SCHEMA": ("CREATE TABLE QUEUE_SCHEMA (VERSION INTEGER)", "DROP TABLE QUEUE_SCHEMA"),
    "trigger QUEUE_POLL_ERASED": (
        "CREATE TRIGGER QUEUE_POLL_ERASED FOR CUSTOMER BEFORE DELETE AS BEGIN END",
        "DROP TRIGGER QUEUE_POLL_ERASED",
    ),
    "view QUEUE_NOTE": ("CREATE VIEW QUEUE_NOTE AS SELECT ID FROM CUSTOMER", "DROP VIEW QUEUE_NOTE"),
}
"""Objects of an application's with names that the schema needs, one of each kind."""


def test_all_names_that_others_have_are_told_at_once_before_anything_is_written(place, complete):
    place.do(*(made for made, _ in THEIRS.values()), "CREATE TABLE QUEUE_OF_OURS (ID INTEGER)")
    before = place.read("taken_names")
    with closing(FBTasks("a", str(place.url))) as app:
        for attempt in (app.migrate, app.task(name="t")(lambda: 1).delay):
            with pytest.raises(SchemaError) as caught:
                attempt()
            assert str(caught.value) == (
                f"{place.url} has objects that fbtasks did not make, under names that it needs itself: "
                f"{', '.join(sorted(THEIRS))}. Nothing was changed. Rename or drop them, or give the queue a database "
                "of its own."
            )
    assert place.read("taken_names") == before
    with closing(connections.connect(place.url)) as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT X FROM QUEUE_CALL_RAISE").fetchall() == [(1,)]
    place.do(*(dropped for _, dropped in THEIRS.values()), "DROP TABLE QUEUE_OF_OURS")
    place.goes_on(complete)


def test_what_a_ddl_trigger_refuses_is_told_and_gone_on_with_when_it_is_gone(place, complete):
    place.do(
        "CREATE EXCEPTION FROZEN 'no new triggers until Monday'",
        "CREATE TRIGGER FREEZE BEFORE CREATE TRIGGER AS BEGIN EXCEPTION FROZEN; END",
    )
    with closing(FBTasks("a", str(place.url))) as app, pytest.raises(SchemaError) as caught:
        app.migrate()
    assert "no new triggers until Monday" in str(caught.value)
    assert str(caught.value).endswith(f"When the cause is gone, run: fbtasks migrate --url {place.url}")
    done = place.steps_done()
    assert 0 < done < len(STEPS)
    place.do("DROP TRIGGER FREEZE")
    place.goes_on(complete)


def cut(place, program, number, seconds):
    """Has *program* get a signal within *seconds*. Returns whether it was cut, and the pages that it has left."""
    process = place.start(program)
    time.sleep(random.uniform(0, seconds))
    process.send_signal(number)
    process.communicate(timeout=60)
    there = os.path.exists(place.url.database)
    try:
        was_cut = not there or place.read("schema_version") != [(steps()[-1].version,)]
    except Exception:  # the table is not there
        was_cut = True
    return was_cut, place.orphans()


@pytest.mark.parametrize(
    "program", ["migrate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("call", "worker"))]
)
def test_a_migration_that_is_killed_at_any_moment_is_gone_on_with(place, complete, program):
    cut(place, program, signal.SIGKILL, 0.5)
    place.goes_on(complete)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("is_new", [False, True], ids=["existing", "new"])
def test_many_kills(tmp_path, theirs, complete, number, is_new):
    rounds, found = int(os.environ.get("FBTASKS_KILLS", "30")), []
    for each in range(rounds):
        folder = tmp_path / str(each)
        folder.mkdir()
        place = Place(folder, None if is_new else theirs)
        program = random.choice(list(PROGRAMS))
        found.append(cut(place, program, number, 1.0))
        if random.random() < 0.3:
            found.append(cut(place, program, number, 1.0))
        place.goes_on(complete)
        shutil.rmtree(folder)
    left = sum(pages > 0 for _, pages in found)
    print(f"\n{number.name}: {len(found)} sent, {sum(was for was, _ in found)} cut, {left} left pages of no table")
    assert number == signal.SIGKILL or left == 0
