"""What a user installs: the wheel and the source distribution, built here, in a virtual environment of their own."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded("what is built is the same")]

TOP = Path(__file__).parents[2]


def run(*command, cwd):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FBTASKS_URL")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def test_what_is_built_can_be_installed_and_used(kind, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", tmp_path / "dist", cwd=TOP)
    (built,) = (tmp_path / "dist").iterdir()
    if kind == "wheel":
        assert [name for name in zipfile.ZipFile(built).namelist() if "bench" in name] == []

    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # What fbtasks depends on comes from the environment of the tests, behind what is installed here.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--no-compile",  # of what is imported, imports do it
        built,
        cwd=tmp_path,
    )

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hello.py").write_text(
        textwrap.dedent("""
        from fbtasks import FBTasks

        app = FBTasks("hello")

        @app.task
        def add(a, b):
            return a + b
        """)
    )
    fbtasks = tmp_path / "venv" / "bin" / "fbtasks"
    home = run(python, "-c", "import fbtasks; print(fbtasks.__file__)", cwd=folder)
    assert Path(home.strip()).is_relative_to(site)
    assert run(python, "-c", "import hello; print(hello.add.delay(2, 3).id)", cwd=folder) == "1\n"
    run(fbtasks, "worker", "-A", "hello", "-c", "1", "--burst", cwd=folder)
    assert run(fbtasks, "result", "1", cwd=folder) == "5\n"
    kombu = "import kombu, celery; celery.Celery(); print(kombu.transport.TRANSPORT_ALIASES['firebird'])"
    assert run(python, "-c", kombu, cwd=folder) == "fbtasks.kombu:Transport\n"
    assert (site / "fbtasks" / "py.typed").exists()


@pytest.mark.thorough
def test_the_source_distribution_can_set_up_a_working_copy(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=TOP)
    (built,) = tmp_path.iterdir()
    names = run("tar", "-tzf", built, cwd=tmp_path).split()
    tracked = run("git", "ls-files", cwd=TOP).split() if (TOP / ".git").exists() else []
    left_out = {name for name in tracked if not any(each.endswith(f"/{name}") for each in names)}
    assert {name.partition("/")[0] for name in left_out} <= {".ci"}
