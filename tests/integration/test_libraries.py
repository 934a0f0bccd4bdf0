"""Libraries of the system that the engine needs, hidden one by one and all at once, in processes of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fbtasks.firebird.embedded import libraries

pytestmark = [
    pytest.mark.embedded("it is about the libraries of the engine in this process"),
    pytest.mark.skipif(sys.platform != "linux", reason="the names of the files are those of Linux"),
]
DEMO = Path(__file__).parents[2] / "examples"
FILES = {
    "libtommath.so.1": ["libtommath.so.1"],
    "libtomcrypt.so.1": ["libtomcrypt.so.1"],
    # What all other files of ICU need; the engine looks for those under many names.
    "ICU (libicuuc.so.79 or older)": [f"libicudata.so.{version}" for version in range(30, 100)],
}
PACKAGES = {
    "libtommath.so.1": ("libtommath1", "libtommath"),
    "libtomcrypt.so.1": ("libtomcrypt1", "libtomcrypt"),
    "ICU (libicuuc.so.79 or older)": ("'^libicu[0-9]+$'", "libicu"),
}
ENQUEUE = """
import sys
from fbtasks import EngineError, FBTasks
try:
    FBTasks("a").send_task("t")
except EngineError as error:
    sys.exit(f"Error: {error}")
"""


@pytest.fixture
def hidden(tmp_path):
    """Runs Python where the loader finds files that are no libraries in the place of *names*."""
    data = tmp_path / "data"
    data.mkdir()

    def run(names, *arguments):
        broken = tmp_path / "broken"
        broken.mkdir(exist_ok=True)
        for name in names:
            for file in FILES[name]:
                (broken / file).touch()
        env = {**os.environ, "LD_LIBRARY_PATH": str(broken), "FBTASKS_URL": f"firebird://{data}/q.fdb"}
        done = subprocess.run(
            [sys.executable, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert not os.path.exists(data / "q.fdb")
        return done

    return run


def message(names):
    debian, fedora = (" ".join(found) for found in zip(*(PACKAGES[name] for name in names), strict=True))
    return (
        f"Error: the Firebird engine needs libraries that are not installed: {', '.join(names)}. "
        f"On Debian and Ubuntu: apt install {debian}; on Fedora: dnf install {fedora}\n"
    )


@pytest.mark.parametrize("names", [["libtommath.so.1"], list(FILES)], ids=["tommath", "all"])
def test_what_is_missing_is_named_with_its_packages_on_one_line(hidden, names):
    done = hidden(names, "-m", "fbtasks", "call", "t")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message(names))


def test_python_and_the_demo_say_the_same(hidden, tmp_path):
    done = hidden(FILES, "-c", ENQUEUE)
    assert (done.returncode, done.stderr) == (1, message(FILES))
    shutil.copytree(DEMO, tmp_path / "examples")
    done = hidden(FILES, "examples/demo.py")
    assert (done.returncode, done.stderr) == (1, message(FILES))


def test_the_module_prints_a_line_for_each(hidden):
    done = hidden(FILES, "-m", "fbtasks.firebird.embedded.libraries")
    assert done.stdout.splitlines() == [
        "libtommath1\tlibtommath\tlibtommath.so.1",
        "libtomcrypt1\tlibtomcrypt\tlibtomcrypt.so.1",
        "^libicu[0-9]+$\tlibicu\tICU (libicuuc.so.79 or older)",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_said_where_all_are_there(hidden):
    done = hidden([], "-m", "fbtasks.firebird.embedded.libraries")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert libraries.explain() is None
