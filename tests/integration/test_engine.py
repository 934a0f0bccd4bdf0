"""The engine room on the real engine: who may open a database, and who is refused with a clear error."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fbtasks import FBTasks, SchemaError
from fbtasks.firebird import connections
from fbtasks.sql import queries
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.embedded


def python(code, env=None, **options):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


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
                shutil.copytree(
                    path, packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "mypy*")
                )
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
        with app.connect() as connection, connection.cursor() as cursor:
            assert cursor.execute("SELECT COUNT(*) FROM QUEUE_HISTORY").fetchone()[0] == 60
        app.close()


def test_a_process_with_another_lock_directory_is_refused(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
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
    returncode, _, errors = python(code)
    held.close()
    assert returncode == 1
    assert "refused" in errors
    assert "lose each other's commits" in errors


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
    returncode, _, errors = python(code)
    assert returncode == 1
    assert "another Firebird client library" in errors


def test_a_foreign_table_is_left_alone(tmp_path):
    url = f"firebird://{tmp_path}/theirs.fdb"
    with connections.connect(DatabaseURL.parse(url), create=True) as connection:
        connection.execute_immediate("CREATE TABLE QUEUE_TASK (X INTEGER)")
        connection.commit()
    with pytest.raises(SchemaError, match="QUEUE_TASK"):
        FBTasks("a", url).task(name="t")(lambda: 1).delay()


def test_a_schema_from_before_the_first_release_is_refused(tmp_path):
    url = f"firebird://{tmp_path}/old.fdb"
    with connections.connect(DatabaseURL.parse(url), create=True) as connection:
        for statement in (queries()["schema_create"], "INSERT INTO QUEUE_SCHEMA VALUES (5, 'x', LOCALTIMESTAMP)"):
            connection.execute_immediate(statement)
            connection.commit()
    app = FBTasks("a", url)
    for attempt in (app.migrate, app.task(name="t")(lambda: 1).delay):
        with pytest.raises(SchemaError, match=r"version 5, of a development version.*a new database"):
            attempt()


def test_small_pages_and_other_tables_will_do(tmp_path):
    url = f"firebird://{tmp_path}/small.fdb"
    with connections.connect(DatabaseURL.parse(url), create=True, page_size=4096) as connection:
        connection.execute_immediate("CREATE TABLE CUSTOMER (ID INTEGER)")
        connection.commit()
        assert connection.info.page_size == 4096
    app = FBTasks("a", url)
    assert app.task(name="t")(lambda: 1).delay().status == "PENDING"
    app.close()
