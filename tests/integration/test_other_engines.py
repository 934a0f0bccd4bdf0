"""An embedded file that another program's engine has open, as isql would: who is refused, and what is said."""

import os
import subprocess
import sys

import pytest
from support.programs import python

from fbtasks import DatabaseUnavailable, FBTasks
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.embedded("a server's file is opened by the server alone")

# What isql and others do: the client library with the configuration that it comes with, and nothing of fbtasks.
OTHER = """
import sys
from firebird.driver.fbapi import load_api
from firebird.embedded.provider import FirebirdProvider
load_api(FirebirdProvider())
from firebird.driver import DatabaseError, connect
try:
    connection = connect(sys.argv[1], user="SYSDBA", charset="UTF8")
except DatabaseError as error:
    print("refused", error.gds_codes, flush=True)
else:
    print("open", flush=True)
    sys.stdin.readline()
    connection.close()
"""


@pytest.fixture
def other():
    """Opens a file as another program does. Returns the process and what it prints."""
    opened = []

    def start(path):
        env = {name: value for name, value in os.environ.items() if not name.startswith("FIREBIRD")}
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        opened.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in opened:
        process.communicate(timeout=30)


def test_a_file_that_another_program_has_open_is_refused_with_the_cause(tmp_path, other):
    url = DatabaseURL(database=str(tmp_path / "q.fdb"))
    app = FBTasks("a", str(url))
    app.send_task("t")
    app.close()
    process, said = other(url.database)
    assert said == "open"
    for use in (lambda: connections.connect(url), lambda: app.send_task("t"), app.connect):
        with pytest.raises(DatabaseUnavailable) as caught:
            use()
        assert str(caught.value) == (
            f"{url} is open in the engine of another program (isql, FlameRobin, another client library, a Firebird "
            "server), which keeps all others out: close it there. Beside fbtasks use `fbtasks sql` for statements and "
            "app.connect() in programs, or put a server in front of the file and use its URL."
        )
    process.communicate("\n", timeout=30)  # it closes the file
    assert app.send_task("t").status == "PENDING"
    app.close()


def test_another_program_is_refused_while_fbtasks_has_the_file_open(tmp_path, other):
    """Its own engine says so: the lock on the file, and not a convention, keeps them apart."""
    url = DatabaseURL(database=str(tmp_path / "q.fdb"))
    connection = connections.connect(url, create=True)
    assert other(url.database)[1].startswith("refused (335544344, 335545107")
    connection.close()
    assert other(url.database)[1] == "open"


def test_a_file_without_permission_is_told_as_such(tmp_path):
    url = DatabaseURL(database=str(tmp_path / "q.fdb"))
    connections.connect(url, create=True).close()
    os.chmod(url.database, 0)
    code = f"""
import ctypes, os, sys
if "plain" not in sys.argv:  # root may open anything: without these two rights it is a user like others
    for right in (1, 2):
        ctypes.CDLL(None).prctl(24, right, 0, 0, 0)
    os.execv(sys.executable, [*sys.orig_argv, "plain"])
from fbtasks import FBTasksError
from fbtasks.url import DatabaseURL
from fbtasks.firebird import connections
try:
    connections.connect(DatabaseURL(database={url.database!r}))
except FBTasksError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    done = python(code)
    assert done.stderr == ""
    assert done.stdout.startswith("EngineError: ")
    assert f"cannot use {url.database}: Permission denied" in done.stdout


def test_a_foreign_client_library_is_detected(tmp_path):
    code = f"""
import sys
from firebird.driver.fbapi import load_api
from firebird.embedded.provider import FirebirdProvider
load_api(FirebirdProvider())
from fbtasks import EngineError, FBTasks
try:
    FBTasks("a", "firebird://{tmp_path}/q.fdb").task(name="t")(lambda: 1).delay()
except EngineError as error:
    sys.exit(f"refused: {{error}}")
"""
    done = python(code)
    assert done.returncode == 1
    assert "another Firebird client library" in done.stderr
