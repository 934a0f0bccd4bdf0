"""Several processes on one embedded file: they share its lock folder, or are refused."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.programs import program, started
from support.sql import one

from fbtasks import FBTasks
from fbtasks.firebird import connections

pytestmark = pytest.mark.embedded("a server has its own lock files")
ENQUEUE = """
import sys
from fbtasks import FBTasks, FBTasksError
from fbtasks.testing import drain
app = FBTasks("a", sys.argv[1] if len(sys.argv) > 1 else None)
t = app.task(name="t")(lambda: 1)
try:
    for _ in range(20): t.delay()
    drain(app)
except FBTasksError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
UNUSED = shutil.ignore_patterns(
    "*mypy*", "pip", "setuptools", "hypothesis", "celery", "_pytest", "pytest*", "grimp", "gevent", "greenlet", "zope",
    "pygments", "rich", "wcwidth",
)  # fmt: skip
"""Packages that a program which enqueues does not import."""


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two other users")
def test_two_users_of_one_group_share_a_file():
    group = 7000
    with tempfile.TemporaryDirectory(prefix="fbtasks-uids-") as name:
        folder = Path(name)
        packages = folder / "packages"  # what the other users may read: the interpreter's own may be closed to them
        interpreter = Path("/usr/bin/python3")
        if not interpreter.exists():
            pytest.skip("needs the system's interpreter")
        packages.mkdir()
        for path in sys.path:
            if path.endswith("site-packages"):
                shutil.copytree(path, packages, dirs_exist_ok=True, ignore=UNUSED)
        for name in ("fbtasks", "fbtasks_scheme"):
            shutil.copytree(Path(connections.__file__).parents[2] / name, packages / name, dirs_exist_ok=True)
        data = folder / "data"
        data.mkdir()
        os.chown(data, -1, group)
        folder.chmod(0o755)
        data.chmod(0o2770)
        env = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"], "FBTASKS_URL": f"firebird://{data}/q.fdb"}

        def act(user, its_group):
            home = folder / f"home{user}"
            home.mkdir(exist_ok=True)
            os.chown(home, user, its_group)
            return subprocess.run(
                [str(interpreter), "-c", ENQUEUE], env={**env, "HOME": str(home)}, cwd=home, user=user, group=its_group,
                extra_groups=[], umask=0o022, capture_output=True, text=True, timeout=60,
            )  # fmt: skip

        probe = subprocess.run(
            [str(interpreter), "-c", "import fbtasks"], env=env, capture_output=True, text=True, check=False
        )
        if probe.returncode:
            pytest.skip(f"the system's interpreter cannot use these packages: {probe.stderr[-200:]}")
        for user in (7001, 7002, 7001):
            done = act(user, group)
            assert (done.returncode, done.stderr) == (0, "")
        data.chmod(0o2755)
        stranger = act(7005, 7005)
        assert stranger.returncode == 1
        assert "EngineError" in stranger.stderr
        assert "7005" in stranger.stderr
        assert str(data) in stranger.stderr
        assert "chgrp" in stranger.stderr
        app = FBTasks("a", env["FBTASKS_URL"])
        assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 60
        app.close()


def test_a_process_with_another_lock_directory_is_refused(tmp_path, template):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        shutil.copyfile(template, folder / "q.fdb")
    held = FBTasks("holder", f"firebird://{one}/q.fdb")
    held.make = held.task(name="t")(lambda: 1)
    held.make.delay()  # this process holds the guard of one/q.fdb
    code = f"""
import sys
from fbtasks import EngineError, FBTasks
FBTasks("b", "firebird://{two}/q.fdb").task(name="t")(lambda: 1).delay()
try:
    FBTasks("a", "firebird://{one}/q.fdb").task(name="t")(lambda: 1).delay()
except EngineError as error:
    sys.exit(f"refused: {{error}}")
"""
    done = program(code)
    held.close()
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "lose each other's commits" in done.stderr


def test_two_processes_with_different_temporary_folders_lose_nothing(project, tmp_path):
    code = "from fbtasks import FBTasks\nt = FBTasks('a').task(name='t')(lambda: 1)\nfor _ in range(60): t.delay()"
    running = []
    for number in range(2):
        folder = tmp_path / f"tmp{number}"
        folder.mkdir()
        env = {**project.env, "TMPDIR": str(folder)}
        running.append(started(code, env=env))
    assert [process.wait(60) for process in running] == [0, 0]
    app = FBTasks("a", project.url)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 120
    app.close()


@pytest.mark.no_database
def test_processes_start_at_once_on_no_database(project):
    count = 4
    code = "from fbtasks import FBTasks\nFBTasks('a').task(name='t')(lambda: 1).delay()"
    running = [started(code, env=project.env, stderr=subprocess.PIPE) for _ in range(count)]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert errors == [""] * count
    app = FBTasks("a", project.url)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == count
    app.close()
