"""PID namespaces (a container, its host and another machine have each their own): one at a time has a file open."""

import os
import re
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from firebird.driver import SrvRepairFlag, connect_server
from support.programs import python
from support.sql import one

from fbtasks import EngineError, FBTasks

SPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _permitted():
    try:
        return subprocess.run([*SPACE, "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


PERMITTED = _permitted()
needs_namespaces = pytest.mark.skipif(not PERMITTED, reason="this user may not make PID namespaces (unshare)")

# Enqueues as many tasks as are asked for, or until it is killed.
PROGRAM = """
import sys
from fbtasks import FBTasks, FBTasksError
app = FBTasks("a", sys.argv[1])
t = app.task(name="t")(lambda: 1)
try:
    print(t.delay().id, flush=True)
    while sys.stdin.readline() == "go on\\n":
        while True: print(t.delay().id, flush=True)
except FBTasksError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@contextmanager
def program(url, *before):
    """Runs the program, with the command *before* it in front. It holds the file until the block ends, or is killed."""
    command = [*before, sys.executable, "-c", PROGRAM, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.communicate(timeout=30)  # the end of its input is the end of the program
        finally:
            process.kill()  # and with unshare all in its namespace


@pytest.mark.embedded("processes on a server share no lock file")
@needs_namespaces
def test_a_process_of_another_namespace_is_refused_while_one_of_the_first_lives(tmp_path):
    url = f"firebird://{tmp_path}/q.fdb"
    refused = r"PID namespace .* destroy the file.* Firebird server"
    with program(url, *SPACE) as first:
        assert first.stdout.readline() == "1\n"
        with closing(FBTasks("b", url)) as app, pytest.raises(EngineError, match=refused):
            app.send_task("t")
        with program(url, *SPACE) as second:
            assert re.search(refused, second.stdout.readline())
        # The container is killed and started again: in another namespace, with the same pids.
        first.kill()
        first.wait()
    with program(url, *SPACE) as again:
        assert again.stdout.readline() == "2\n"
        with closing(FBTasks("b", url)) as app, pytest.raises(EngineError, match=refused):
            app.send_task("t")
    with closing(FBTasks("b", url)) as app:
        assert app.send_task("t").id == "3"


@pytest.mark.embedded("processes on a server share no lock file")
@pytest.mark.slow
@needs_namespaces
def test_a_container_that_is_killed_and_started_again_loses_nothing(tmp_path):
    url = f"firebird://{tmp_path}/q.fdb"
    told = []
    for _ in range(8):
        with program(url, *SPACE) as container:
            told.append(container.stdout.readline().strip())
            container.stdin.write("go on\n")
            container.stdin.flush()
            told += [container.stdout.readline().strip() for _ in range(50)]
            container.kill()
            told += container.stdout.read().split()
    with closing(FBTasks("b", url)) as app:
        found = one(app, "SELECT LIST(ID) FROM (SELECT ID FROM QUEUE_TASK ORDER BY ID)").split(",")
        assert set(told) <= set(found)
    _validate(tmp_path / "q.fdb")


def _validate(path):
    with connect_server("", user="SYSDBA") as server:
        server.database.repair(
            database=str(path), flags=SrvRepairFlag.VALIDATE_DB | SrvRepairFlag.FULL | SrvRepairFlag.CHECK_DB
        )
        assert server.readlines() == []


@pytest.mark.embedded("processes on a server share no lock file")
@pytest.mark.slow
@needs_namespaces
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to enter a namespace")
def test_containers_that_share_a_namespace_share_the_file(tmp_path):
    url = f"firebird://{tmp_path}/q.fdb"
    with program(url, *SPACE) as first:
        assert first.stdout.readline() == "1\n"
        (inside,) = python(f"print(open('/proc/{first.pid}/task/{first.pid}/children').read())").stdout.split()
        with program(url, "nsenter", "--target", inside, "--pid", "unshare", "--mount") as second:
            assert second.stdout.readline() == "2\n"


@needs_namespaces
def test_a_process_list_of_another_namespace_is_not_believed():
    """Without a /proc of its own a process finds others there under the pids of its neighbours."""
    code = (
        "import os; from fbtasks.queue.register import hosts; "
        "print(hosts.start_ticks(os.getpid()), hosts.is_gone(1, 7))"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["0", "False"], done.stderr


def test_processes_that_cannot_tell_their_namespace_do_not_tell_the_dead():
    """Two containers of one name without /proc would take each other's processes for gone."""
    code = "from unittest import mock; from fbtasks.queue.register import hosts\n"
    code += "with mock.patch('os.readlink', side_effect=OSError): print(hosts.host_name())"
    names = {python(code).stdout for _ in range(2)}
    assert len(names) == 2
    assert all(names)
