"""``fbtasks sql``: statements from a pipe and from the command line, beside whatever else is running."""

import json
import os
import pty
import re
import signal
import subprocess
import sys

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
        tables = "SELECT TRIM(RDB$RELATION_NAME) AS NAME FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0"
        assert json.loads(project.run("sql", "--json", tables).stdout) == [{"NAME": "THING"}]  # it was not migrated


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
    project.env["COLUMNS"] = "80"
    shown = project.run("sql", "-c", "SELECT * FROM QUEUE_TASK").stdout.splitlines()
    assert shown[0] == "-- row 1"  # one that is too wide for a table
    assert ["NAME", "proj.add"] in [line.split() for line in shown]
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
@pytest.mark.embedded("there is no file")
def test_nothing_is_created_where_there_is_no_database(project, tmp_path):
    missing = tmp_path / "nosuch" / "x.fdb"
    done = project.run(
        "sql", "--url", f"firebird://{missing}", "--write", "-c", "SELECT 1 FROM RDB$DATABASE", check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"Error: there is no database at {missing}.")
    done = project.run("sql", check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: there is no database at {tmp_path / 'queue.fdb'}.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"]


def test_ctrl_c_cancels_the_statement_that_runs(project, app, wait_for):
    app.migrate()
    command = [sys.executable, "-m", "fbtasks", "sql", "EXECUTE BLOCK AS BEGIN WHILE (TRUE) DO BEGIN END END"]
    with subprocess.Popen(command, env=project.env, cwd=project.folder, stderr=subprocess.PIPE, text=True) as process:
        running = "SELECT 1 FROM MON$STATEMENTS WHERE MON$SQL_TEXT STARTING WITH 'EXECUTE BLOCK' AND MON$STATE = 1"
        wait_for(lambda: rows(app, running))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1].strip() == "Aborted!"
        assert process.returncode == 1


def test_without_a_statement_it_says_how_one_is_given(project, bare):
    mine, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fbtasks", "sql"], stdin=theirs, env=project.env, cwd=project.folder, text=True,
            capture_output=True, timeout=60,
        )  # fmt: skip
    finally:
        os.close(mine)
        os.close(theirs)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'Error: give a statement: fbtasks sql "SELECT ..."; or a script: fbtasks sql < FILE' in done.stderr
