"""tools/server.sh, which has a Firebird server for the tests: nothing of it is left, however it is ended."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance

TOP = Path(__file__).parents[2]
FETCHED = Path(os.environ.get("FBTASKS_SERVER", TOP / ".server")) / "system"


@pytest.fixture
def server(tmp_path):
    """Starts the command in a folder of its own, without what it fetches once."""
    if not FETCHED.is_dir():
        pytest.skip("make test-server fetches the server")
    shutil.copytree(FETCHED, tmp_path / "system", symlinks=True)
    env = {**os.environ, "FBTASKS_SERVER": str(tmp_path), "PYTHON": sys.executable}

    def start(*arguments):
        command = [TOP / "tools" / "server.sh", *arguments]
        return subprocess.Popen(command, env=env, stdin=-1, stdout=-1, stderr=-1, text=True)

    def run(*arguments):
        with start(*arguments) as process:
            output, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, output.strip(), error)

    yield start, run
    assert run("stop").returncode == 0


def listens(url):
    try:
        socket.create_connection((url.host, url.port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_server_ends_with_its_run(server, wait_for, tmp_path, end):
    start, do = server
    with start("run", "sh", "-c", "echo $FBTASKS_TEST_URL; read line; exit 3") as run:
        url = DatabaseURL.parse(run.stdout.readline().strip())
        with connections.connect(url, create=True) as connection, connection.cursor() as cursor:
            assert cursor.execute("SELECT COUNT(*) FROM SEC$USERS").fetchall() == [(1,)]
        again = do("start")
        assert (again.returncode, "in use by another run" in again.stderr) == (1, True)
        assert listens(url)
        if end is not None:
            run.send_signal(end)
        run.stdin.close()
        assert run.wait(30) == {None: 3, signal.SIGTERM: 128 + signal.SIGTERM}.get(end, -signal.SIGKILL)
        wait_for(lambda: not listens(url))
    assert end is signal.SIGKILL or not (tmp_path / "run").exists()


def test_a_start_ends_one_that_was_left(server):
    _, do = server
    former, url = do("start").stdout, do("start").stdout
    assert [listens(DatabaseURL.parse(each)) for each in (former, url)] == [False, True]
    assert do("url").stdout == url
    assert do("stop").returncode == 0
    assert not listens(DatabaseURL.parse(url))
    assert do("url").returncode == 1
