"""``fbtasks sql``: statements from a pipe, from the command line and at a prompt, beside whatever else is running."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from support.sql import rows

from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance

SCRIPT = """
-- everything that has a ';' inside
CREATE TABLE THING
    (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(200), NOTE BLOB SUB_TYPE TEXT, DATA BLOB, N NUMERIC(9,2));
CREATE PROCEDURE FILL (UPTO INTEGER) RETURNS (ID INTEGER) AS
DECLARE PROCEDURE ADD_ONE (I INTEGER) AS BEGIN INSERT INTO THING (ID, NAME) VALUES (:I, 'thing; ' || :I); END
DECLARE VARIABLE MOST INTEGER;
BEGIN
  MOST = CASE WHEN UPTO > 1000 THEN 1000 ELSE UPTO END; /* no; end */
  ID = 1;
  WHILE (ID <= MOST) DO BEGIN EXECUTE PROCEDURE ADD_ONE(ID); SUSPEND; ID = ID + 1; END
END;
SET TERM ^ ;
CREATE TRIGGER THING_N FOR THING BEFORE INSERT AS BEGIN NEW.N = COALESCE(NEW.N, 1.50); END^
SET TERM ; ^
SELECT ID FROM FILL(300);
UPDATE THING SET NOTE = 'one' || ASCII_CHAR(10) || 'two', DATA = x'00FF',
    NAME = 'bad ' || ASCII_CHAR(27) || '[2J; é' WHERE ID = 1;
EXECUTE BLOCK AS DECLARE X INTEGER = 7; BEGIN DELETE FROM THING WHERE ID = :X; END;
COMMIT;
SELECT COUNT(*) FROM THING
"""


@pytest.fixture
def bare(tmp_path, url):
    """The URL of a database that has no table of the queue; on a server, one that has."""
    if DatabaseURL.parse(url).embedded:
        connections.connect(DatabaseURL.parse(url), create=True).close()
    return url


@pytest.mark.no_database
def test_a_script_from_a_pipe(project, bare):
    done = project.run("sql", "--write", input=SCRIPT)
    shown = [line.strip() for line in done.stdout.splitlines()]
    assert "(200 of 300 rows; --limit N shows more, --limit 0 all)" in shown
    assert shown.count("1 row changed.") == 2
    assert shown[-3:] == ["COUNT", "299", "(1 row)"]  # all that FILL gives was read, beyond what is shown
    assert done.stderr == ""
    columns = "ID, NAME, NOTE, DATA, N"
    table = project.run("sql", "-c", f"SELECT {columns} FROM THING WHERE ID IN (1, 2) ORDER BY ID").stdout
    assert [re.split("  +", line.strip()) for line in table.splitlines()] == [
        ["ID", "NAME", "NOTE", "DATA", "N"],
        ["1", r"bad \x1b[2J; é", r"one\ntwo", "x'00FF'", "1.50"],
        ["2", "thing; 2", "<null>", "<null>", "1.50"],
        ["(2 rows)"],
    ]
    rows = json.loads(project.run("sql", "--json", "-c", f"SELECT {columns} FROM THING ORDER BY ID ROWS 1").stdout)
    assert rows == [{"ID": 1, "NAME": "bad \x1b[2J; é", "NOTE": "one\ntwo", "DATA": "00FF", "N": "1.50"}]
    cut = project.run("sql", "--json", "--limit", "2", "SELECT ID FROM THING")
    assert len(json.loads(cut.stdout)) == 2
    assert cut.stderr == "(the first 2 rows; --limit N shows more, --limit 0 all)\n"
    assert len(json.loads(project.run("sql", "--json", "--limit", "0", "-c", "SELECT ID FROM THING").stdout)) == 299
    if DatabaseURL.parse(bare).embedded:
        tables = json.loads(project.run("sql", "--json", "-c", "show tables").stdout)
        assert tables == [{"NAME": "THING", "KIND": "table"}]  # the database was not migrated


def test_a_wide_row_is_shown_as_a_list(project, app):
    app.send_task("proj.add", (2, 3))
    shown = project.run("sql", "-c", "SELECT * FROM QUEUE_TASK").stdout.splitlines()
    assert shown[0] == "-- row 1"
    assert ["NAME", "proj.add"] in [line.split() for line in shown]


def test_what_the_engine_does_not_count_is_done(project, app):
    """It knows nothing of the rows that a procedure changes, and is not said to have changed none."""
    said = project.run(
        "sql", "--write",
        input="EXECUTE PROCEDURE FBTASKS.ENQUEUE('proj.add', '[2, 3]');\n"
        "EXECUTE BLOCK AS BEGIN UPDATE QUEUE_TASK SET PRIORITY_RANK = 5; END;\n"
        "DELETE FROM QUEUE_TASK WHERE ID = 0;\n"
        "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', '{}');\n",
    ).stdout  # fmt: skip
    enqueued, block, deleted, raised = re.split(r"\n(?=1 row|0 rows|Done)", said.strip())
    assert enqueued.splitlines()[-1] == "(1 row)"
    assert enqueued.splitlines()[1].split() == ["1", "0"]
    assert (block, deleted, raised) == ("1 row changed.", "0 rows changed.", "Done.")
    answer = project.run(
        "sql", "--write", "--json", "-c", "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', '{}')"
    ).stdout
    assert json.loads(answer) == {"changed": None}


def test_without_write_nothing_is_changed(project, app):
    """More of it in integration/test_adhoc.py."""
    task = app.send_task("proj.add", (2, 3))
    done = project.run("sql", "-c", "DELETE FROM QUEUE_TASK", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: this statement would change the database, and `fbtasks sql` only reads: start it with --write.\n"
    )
    assert task.status == "PENDING"


def test_errors_are_one_line_and_end_a_script(project, bare):
    done = project.run("sql", input="SELECT 1 FROM NOSUCH;\nSELECT 4711 FROM RDB$DATABASE;", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: .*Table unknown -NOSUCH.*\n", done.stderr)
    escape = "EXECUTE BLOCK AS BEGIN EXECUTE STATEMENT 'SELECT ' || ASCII_CHAR(27) || '[2J'; END"
    done = project.run("sql", "-c", escape, check=False)
    assert (done.returncode, done.stderr.count("\n"), "\x1b" in done.stderr) == (1, 1, False)


@pytest.mark.no_database
@pytest.mark.embedded
def test_nothing_is_created_where_there_is_no_database(project, tmp_path):
    missing = tmp_path / "nosuch" / "x.fdb"
    done = project.run(
        "sql", "--url", f"firebird://{missing}", "--write", "-c", "SELECT 1 FROM RDB$DATABASE", check=False
    )
    assert (done.returncode, done.stderr) == (1, f"Error: there is no database at {missing}.\n")
    done = project.run("sql", check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: there is no database at {tmp_path / 'queue.fdb'}.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"]


class Terminal:
    """The prompt on a terminal of its own."""

    def __init__(self, project, *arguments):
        self._file, theirs = pty.openpty()
        env = {**project.env, "TERM": "dumb", "XDG_STATE_HOME": str(project.folder / "state"), "COLUMNS": "100"}
        command = [sys.executable, "-m", "fbtasks", "sql", *arguments]
        # In a session of its own, whose terminal this is: so Ctrl-C is a signal.
        command = [sys.executable, "-c", TAKE_TERMINAL, *command]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=project.folder, start_new_session=True
        )
        os.close(theirs)
        self.text = ""

    def type(self, text):
        os.write(self._file, text.encode())

    def until(self, wanted, seconds=30.0):
        """What was printed up to *wanted*, which is a regular expression."""
        limit = time.monotonic() + seconds
        while not (found := re.search(wanted, self.text)):
            assert time.monotonic() < limit, f"{wanted!r} did not come: {self.text!r}"
            if select.select([self._file], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._file, 65536).decode().replace("\r\n", "\n")
                except OSError:  # it has ended
                    limit = 0.0
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def interrupt(self):
        """Ctrl-C; again when it came just before the prompt began to read, which then does not notice."""
        for _ in range(30):
            self.type("\x03")
            try:
                return self.until(r"\nSQL> $", 2)
            except AssertionError:
                continue
        raise AssertionError("Ctrl-C is not heard")

    def say(self, line):
        self.type(line + "\n")
        return self.until(r"\n(SQL|CON)> $")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._file)


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def terminal(project):
    opened = []

    def start(*arguments):
        opened.append(Terminal(project, *arguments))
        opened[-1].until(r"SQL> $")
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def state(process):
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_the_prompt(project, app, terminal, wait_for):
    app.send_task("proj.add", (2, 3))
    prompt = terminal("--write")
    assert "committed at once" in prompt.say("help")
    assert "QUEUE_TASK" in prompt.say("show tables")
    assert prompt.say("SELECT NAME").endswith("CON> ")
    assert "proj.add" in prompt.say("FROM QUEUE_TASK;")
    assert re.search(r"^Error: .*Table unknown", prompt.say("SELECT 1 FROM NOSUCH;"), re.MULTILINE)
    assert "1 row changed." in prompt.say("UPDATE QUEUE_TASK SET PRIORITY_RANK = 5;")
    prompt.say("SELECT 'begun")
    prompt.interrupt()  # drops what was typed
    assert "4711" in prompt.say("SELECT 4711 FROM RDB$DATABASE;")
    prompt.type("EXECUTE BLOCK AS BEGIN WHILE (TRUE) DO BEGIN END END;\n")
    running = "SELECT 1 FROM MON$STATEMENTS WHERE MON$SQL_TEXT STARTING WITH 'EXECUTE BLOCK' AND MON$STATE = 1"
    wait_for(lambda: rows(app, running))
    prompt.interrupt()  # cancels the statement that runs
    if app.settings.url.embedded:
        prompt.type("\x1a")  # Ctrl-Z: a process that is stopped would hold up all others on the file
        assert "4712" in prompt.say("SELECT 4712 FROM RDB$DATABASE;")
        assert state(prompt.process) != "T"
    prompt.type("\x04")
    assert prompt.process.wait(30) == 0
    history = project.folder / "state" / "fbtasks" / "sql_history"
    assert "SELECT NAME" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_the_history_has_no_passwords(project, bare, terminal):
    prompt = terminal()
    assert "Error" in prompt.say("CREATE USER ANN PASSWORD 'secret';")
    prompt.type("quit\n")
    assert prompt.process.wait(30) == 0
    assert (project.folder / "state" / "fbtasks" / "sql_history").read_text().split("\n")[-2] == "quit"
    prompt = terminal()
    prompt.type("\x1b[A")  # up: the last line of the former prompt
    prompt.type("\n")
    assert prompt.process.wait(30) == 0
