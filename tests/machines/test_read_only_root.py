"""A read-only root, as of ``docker run --read-only -v data:/data``, and folders that were cleaned."""

import os
import pwd
import re
import shlex
import subprocess
import sys

import pytest
from support.programs import python

from fbtasks.firebird.embedded import root

pytestmark = pytest.mark.embedded("it is about the folders of the engine in this process")

# All is read-only but the folder $1, in a mount namespace of its own.
READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / || exit 77
for mounted in $(cut -d ' ' -f 5 /proc/self/mountinfo); do
    case $mounted in /|/proc*|/sys*|/dev*|"$1") ;; *) mount -o remount,bind,ro "$mounted" 2>/dev/null ;; esac
done
cd "$1" && shift && exec "$@"
"""
PROGRAM = """
import os, shutil, sys
from fbtasks import FBTasks, FBTasksError
from fbtasks.testing import drain
app = FBTasks("a", sys.argv[1])
task = app.task(name="t")(lambda: "ran")
try:
    result = task.delay()
    drain(app)
    print(result.get(timeout=0), os.environ["FIREBIRD_TMP"], os.environ["FIREBIRD"])
    if "cleaned" in sys.argv:
        shutil.rmtree(os.environ["TMPDIR"])
        sorted_on_disk = "SELECT LPAD('', 8000, A.RDB$FIELD_NAME) FROM RDB$FIELDS A, RDB$FIELDS B ORDER BY 1"
        with app.database.session() as session, session.transaction() as transaction:
            transaction.sql(sorted_on_disk)
except FBTasksError as error:
    print(f"{type(error).__name__}: {error}")
"""
CONNECT = """
import sys
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL
with connections.connect(DatabaseURL.parse(sys.argv[1]), create=True) as connection:
    question = "SELECT UPPER(CAST('ran' AS VARCHAR(9) CHARACTER SET WIN1252)) FROM RDB$DATABASE"
    print(connection.cursor().execute(question).fetchone()[0])
"""


@pytest.fixture
def read_only(tmp_path):
    """Runs a command in the only folder that can be written, without a home and other folders for temporary files."""
    data = tmp_path / "data"
    data.mkdir()
    left_out = ("FIREBIRD_TMP", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME")
    base = {name: value for name, value in os.environ.items() if name not in left_out}

    def run(*command, **env):
        env = {**base, "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1", **{k: str(v) for k, v in env.items()}}
        before = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", data]
        done = subprocess.run([*before, *command], env=env, capture_output=True, text=True, timeout=90)
        if done.returncode == 77 or "unshare: " in done.stderr:
            pytest.skip(f"this user may not mount here: {done.stderr}")
        return done

    run.folder = data
    return run


@pytest.mark.thorough
def test_what_cannot_be_written_is_named_and_tmpdir_is_followed(read_only):
    data = read_only.folder
    program = (sys.executable, "-c", PROGRAM, f"firebird://{data}/q.fdb")
    done = read_only(*program, TMPDIR=data / "gone")
    assert done.stdout.startswith("EngineError: user "), done.stderr
    assert (
        f"can write to no folder for temporary files, which the Firebird engine needs: {data}/gone, /tmp, /var/tmp"
        in (done.stdout)
    )
    assert "Set TMPDIR to a folder" in done.stdout
    assert os.listdir(data) == [".fbtasks"]  # it is the working folder

    (data / "tmp").mkdir()
    done = read_only(*program, "cleaned", TMPDIR=data / "tmp", XDG_CACHE_HOME=data / "cache")
    ran, cleaned = done.stdout.splitlines()
    assert re.fullmatch(rf"ran {data}/tmp {data}/cache/fbtasks/engine-\w+", ran), done.stderr
    assert f"the engine cannot write to its folder for temporary files, {data}/tmp" in cleaned
    assert "set TMPDIR" in cleaned


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio", "solo"])
def test_a_worker_runs_with_a_folder_for_temporary_files(read_only, pool):
    data = read_only.folder
    (data / "tmp").mkdir()
    (data / "proj.py").write_text(
        "from fbtasks import FBTasks\n"
        f"app = FBTasks('proj', 'firebird://{data}/q.fdb')\n"
        "add = app.task(name='add')(lambda a, b: a + b)\n"
    )
    fbtasks = (sys.executable, "-m", "fbtasks")
    commands = [
        shlex.join([*fbtasks, "-A", "proj", "call", "add", "--args", "[2, 3]"]),
        shlex.join([*fbtasks, "worker", "-A", "proj", "--burst", "--pool", pool]),
        shlex.join([*fbtasks, "-A", "proj", "result", "1"]),
    ]
    done = read_only("sh", "-c", " && ".join(commands), TMPDIR=data / "tmp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("5")


def test_a_root_with_files_missing_is_mended(tmp_path):
    """As a cleaner of /tmp leaves it: what was not used for long is deleted."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    url = f"firebird://{tmp_path}/q.fdb"
    assert python(CONNECT, url, env=env).stdout == "RAN\n"
    (engine,) = (tmp_path / "cache" / "fbtasks").glob("engine-*")
    whole = {path.name: path.is_symlink() for path in engine.iterdir()}
    for name in whole.keys() - {"firebird.conf"}:
        (engine / name).unlink()
    configuration = (engine / "firebird.conf").read_text()
    (engine / "firebird.conf").write_text("")  # as a power cut may leave it
    done = python(CONNECT, url, env=env)
    assert done.stdout == "RAN\n", done.stderr
    assert {path.name: path.is_symlink() for path in engine.iterdir()} == whole
    assert (engine / "firebird.conf").read_text() == configuration


def test_nothing_is_put_into_the_working_folder(tmp_path, monkeypatch):
    """A user without a home and without a name has the home "~"; ``tempfile`` takes the working folder in the end."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_number):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert os.path.expanduser("~") == "~"
    assert root.cache_folder() == root.temporary_folder() / f"fbtasks-{os.getuid()}"
    assert os.listdir(tmp_path) == []
