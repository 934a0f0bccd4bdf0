"""A folder that is mounted under two paths (bind mount): one file, under both."""

import shutil
import subprocess
import sys
from contextlib import closing

import pytest

from fbtasks import FBTasks, ForeignDatabaseError
from fbtasks.testing import drain

pytestmark = pytest.mark.embedded("a server's file is opened by the server alone")

# In a mount namespace of its own, so that what it mounts ends with it.
PROGRAM = """
import subprocess, sys
from fbtasks import FBTasks, FBTasksError
from fbtasks.testing import drain
here, there = sys.argv[1:]
subprocess.run(["mount", "--bind", here, there], check=True)
for folder in (here, there, here):
    app = FBTasks("a", f"firebird://{folder}/q.fdb")
    task = app.task(name="t")(lambda: folder)
    try:
        result = task.delay()
        drain(app)
        print(result.get(timeout=0))
    except FBTasksError as error:
        print(f"{type(error).__name__}: {error}")
    app.close()
"""


@pytest.mark.thorough
def test_the_second_path_is_no_copy_and_a_copy_is_refused(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", PROGRAM, here, there], capture_output=True, text=True, timeout=60
    )
    if done.returncode and not done.stdout:
        pytest.skip(f"this user may not mount here: {done.stderr}")
    assert done.stdout.splitlines() == [str(here), str(there), str(here)], done.stderr

    shutil.copyfile(here / "q.fdb", there / "q.fdb")
    refused = rf"was {here}/q.fdb before.*same file, mounted elsewhere, mount it there.*fbtasks adopt"
    with closing(FBTasks("b", f"firebird://{there}/q.fdb")) as app:
        with pytest.raises(ForeignDatabaseError, match=refused):
            drain(app)
        # A link in the place of the original makes the copy no original.
        shutil.rmtree(here)
        here.symlink_to(there)
        with pytest.raises(ForeignDatabaseError, match=refused):
            drain(app)
