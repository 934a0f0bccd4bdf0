"""``fbtasks worker --reload``: new code is run when a file of it has changed, and not before it can be imported."""

import os
import signal
import textwrap
import time

import pytest

from fbtasks import FBTasks

pytestmark = [pytest.mark.acceptance]

APP = """
from fbtasks import FBTasks
app = FBTasks("proj", include=["proj_tasks"])
"""
TASKS = """
import time
from fbtasks import task

@task(name="add")
def add(a, b):
    return {value}

@task(name="slow")
def slow(path):
    open(path, "w").close()
    while open(path).read() != "end":
        time.sleep(0.02)
    return {value!r}
"""


@pytest.fixture
def develop(project, wait_for):
    """Starts the worker of a project with two modules. Returns it, and what writes the module of its tasks."""

    def write(source):
        path = project.folder / "proj_tasks.py"
        path.write_text(textwrap.dedent(source))

    def start(*options):
        (project.folder / "proj.py").write_text(APP)
        write(TASKS.format(value="a + b"))
        past = time.time() - 60
        for name in ("proj.py", "proj_tasks.py"):
            os.utime(project.folder / name, (past, past))
        project.env["PYTHONDONTWRITEBYTECODE"] = "1"  # files are written twice in a second here
        process = project.worker("--reload", "-c", "1", *options)
        wait_for(lambda: "is ready" in project.logs())
        return process, write

    project.anew = True  # it starts afresh with its command line
    return start


def ready(project, times):
    return lambda: project.logs().count("is ready") == times


def test_a_changed_file_is_loaded_when_what_runs_has_ended(project, develop, wait_for, url):
    process, write = develop()
    app = FBTasks("caller", url)
    assert app.send_task("add", (2, 3)).get(20) == 5
    marker = project.folder / "slow"
    slow = app.send_task("slow", (str(marker),))
    wait_for(marker.exists)
    write(TASKS.format(value="a * b"))
    wait_for(lambda: "proj_tasks.py has changed: this worker drains and starts afresh." in project.logs())
    waiting = app.send_task("add", (2, 3))
    marker.write_text("end")
    assert slow.get(20) == "a + b", "what ran has ended as it began"
    assert waiting.get(20) == 6
    wait_for(ready(project, 2))
    assert process.poll() is None
    process.terminate()
    assert process.wait(20) == 0
    assert project.logs().count("Starting afresh.") == 1
    app.close()


@pytest.mark.thorough
def test_code_that_cannot_be_imported_is_told_and_a_change_or_a_signal_waited_for(project, develop, wait_for, url):
    process, write = develop("-P", "threads")
    app = FBTasks("caller", url)
    write("def add(:\n    pass\n")
    wait_for(lambda: "Waiting for the next change of a file." in project.logs())
    said = project.logs()
    assert "SyntaxError" in said
    assert "proj_tasks.py" in said
    result = app.send_task("add", (2, 3))
    write("import nosuchmodule\n" + TASKS.format(value="a * b"))
    wait_for(lambda: project.logs().count("Waiting for the next change of a file.") == 2)
    assert "nosuchmodule" in project.logs()
    assert process.poll() is None
    (project.folder / "nosuchmodule.py").write_text("")
    assert result.get(30) == 6, "a new module is a change as well"
    app.close()
    write("1 / 0")
    wait_for(lambda: project.logs().count("Waiting for the next change of a file.") == 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0, "a signal ends it while it waits"


def test_with_a_burst_it_is_refused(project):
    project.write("")
    done = project.run("worker", "-A", "proj", "--reload", "--burst", check=False)
    assert done.returncode == 2
    assert "leave out one" in done.stderr
