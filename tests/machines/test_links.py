"""Links and strangers' folders beside an embedded database, put there by others who may write into its folder."""

import os
import shutil
import sys

import pytest
from support.programs import program
from support.variants import slow

pytestmark = [
    pytest.mark.embedded("a server's file is opened by the server alone"),
    pytest.mark.skipif(sys.platform == "win32", reason="has no lock folder"),
]
USE = """
import sys
from fbtasks import EngineError, FBTasks
from fbtasks.firebird.embedded.hostlock import HostLock
app = FBTasks("a", sys.argv[1])
try:
    app.send_task("t")
    with HostLock(app.settings.url).held():
        print("used")
except EngineError as error:
    print(error)
"""


def use_in(folder):
    done = program(USE, f"firebird://{folder}/q.fdb")
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def used(tmp_path_factory, template):
    """A folder whose database has been used: with all that is made beside one."""
    folder = tmp_path_factory.mktemp("used") / "data"
    folder.mkdir()
    shutil.copyfile(template, folder / "q.fdb")
    assert use_in(folder) == "used\n"
    return folder


@pytest.fixture
def use(tmp_path, used):
    shutil.copytree(used, tmp_path / "data")
    return lambda: use_in(tmp_path / "data")


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    yield path
    assert path.read_text() == "precious"
    assert path.stat().st_mode & 0o777 == 0o600


FILES = ["q.fdb.guard", "q.fdb.turn", "lock/events.lock", "lock/fb_init"]
"""The last is one of the engine's own."""


@pytest.mark.parametrize(
    ("make", "name"),
    [*((os.symlink, name) for name in FILES), (os.link, FILES[0]), *(slow(os.link, name) for name in FILES[1:])],
)
def test_no_link_is_followed(tmp_path, use, victim, name, make):
    folder = tmp_path / "data" / ".fbtasks"
    path = folder / name
    path.unlink()
    make(victim, path)
    what = "a symbolic link" if make is os.symlink else "a file with 2 names"
    assert f"{path} is {what}, and has to be a file that is nowhere else: it is not used." in use()


def test_nor_is_one_to_a_file_that_is_not_there(tmp_path, use):
    path = tmp_path / "data" / ".fbtasks" / "lock" / "fb_snap_made_up"
    path.symlink_to(tmp_path / "made")
    assert "is a symbolic link" in use()
    path.unlink()
    os.mkfifo(path)
    assert "is a pipe, a socket or a device" in use()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", [".", "lock"])
def test_a_folder_that_is_a_link_is_refused(tmp_path, use, name):
    folder = tmp_path / "data" / ".fbtasks" / name
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    os.symlink(tmp_path / "elsewhere", os.path.normpath(folder))
    assert "is a symbolic link, and has to be a folder: it is not used." in use()
    assert os.listdir(tmp_path / "elsewhere") == []
    assert (tmp_path / "elsewhere").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("name", [".", "lock"])
def test_a_folder_of_a_stranger_is_refused(tmp_path, use, name):
    folder = tmp_path / "data" / ".fbtasks" / name
    os.chown(folder, 12345, 0)
    assert use() == "used\n"  # a member of the database's group
    os.chown(folder, 12345, 12345)
    assert "belongs to uid 12345, who has nothing to do with" in use()
