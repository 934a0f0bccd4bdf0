"""A machine that can start no process now: the worker waits and says so, and loses neither a claim nor a descriptor."""

import resource

import pytest
from support.sql import execute, one

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance

SOURCE = """
    import os
    from pathlib import Path

    @app.task
    def add(a, b): return a + b

    @app.task
    def die_once():
        if not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), 9)
        return "alive"
"""

# The system's refusal, as long as there is a file: a limit on processes does not bind the root user.
REFUSAL = """
import errno, os, subprocess

class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        if os.path.exists("full"):
            with open("refused", "a") as file:
                file.write("x")
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__(*args, **kwargs)

subprocess.Popen = Popen
"""

AGAIN = "No child process can be started: Resource temporarily unavailable. Raise the limit on processes"


@pytest.fixture
def producer(project):
    project.write(SOURCE)
    (project.folder / "sitecustomize.py").write_text(REFUSAL)
    app = FBTasks("producer", project.url)
    yield app
    app.close()


def refused(project):
    path = project.folder / "refused"
    return len(path.read_text()) if path.exists() else 0


def test_a_worker_waits_until_the_machine_can_start_processes(project, producer, wait_for):
    result = producer.send_task("proj.add", (1, 2))
    (project.folder / "full").touch()
    worker = project.worker("-c", "1")
    wait_for(lambda: refused(project) >= 3)
    assert worker.poll() is None
    assert project.logs().count(AGAIN) == 1
    (project.folder / "full").unlink()
    assert result.get(timeout=30) == 3
    assert project.logs().count("Child processes can be started again") == 1

    soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (5, hard))
    again = producer.send_task("proj.die_once")
    wait_for(lambda: "No child process can be started: Too many open files. Raise the limit on open" in project.logs())
    wait_for(lambda: again.status == "PENDING")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert again.get(timeout=30) == "alive"
    worker.terminate()
    assert worker.wait(30) == 0
    assert project.logs().count("Child processes can be started again") == 2
    assert "Traceback" not in project.logs()


def test_a_suspect_that_gets_no_process_of_its_own_is_given_back(project, producer, wait_for):
    project.worker("-c", "1", "--pool", "threads")
    assert producer.send_task("proj.add", (1, 2)).get(timeout=30) == 3
    (project.folder / "full").touch()
    result = producer.send_task("proj.add", (3, 4), countdown=0.5)
    execute(producer, f"UPDATE QUEUE_TASK SET SUSPECT = 1 WHERE ID = {result.id}")
    wait_for(lambda: one(producer, "SELECT COALESCE(SUM(RELEASED), 0) FROM QUEUE_STAT") > 0)
    wait_for(lambda: result.status == "PENDING")
    assert project.logs().count(AGAIN) == 1
    (project.folder / "full").unlink()
    assert result.get(timeout=30) == 7


def test_a_start_that_fails_leaves_nothing_open(project, producer):
    """With a limit on descriptors that is too low by one, by two and so on; and at last with no thread to be had."""
    printed = project.python(
        """
        import os, resource, threading
        from fbtasks.worker.pools.process import Child
        from fbtasks.worker.pools.processes import CannotStart

        def start():
            return Child("processes", "proj", 1, 1, 1, "INFO")

        def files():
            listed = set(os.listdir("/proc/self/fd"))
            return {file for file in listed if os.path.exists(f"/proc/self/fd/{file}")}

        before = files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        failures = 0
        while True:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + 1 + failures, hard))
            try:
                start().close()
                break
            except CannotStart as error:
                assert "Too many open files" in str(error), error
                failures += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert files() == before, (failures, files() - before)
        assert files() == before
        assert failures > 8, failures

        def refuse(*_):
            raise RuntimeError("can't start new thread")

        begin, threading._start_new_thread = threading._start_new_thread, refuse
        try:
            start()
        except CannotStart as error:
            print(error)
        threading._start_new_thread = begin
        assert files() == before
        try:
            print(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("no child is left")
        """
    )
    reason, left = printed.splitlines()
    assert reason.startswith("can't start new thread. Raise the limit on processes")
    assert left == "no child is left"


IMPORT = """
    import errno, os, sys
    from pathlib import Path

    in_child = "fbtasks.worker.pools.child" in sys.orig_argv
    if in_child:
        with open("imports", "a") as file:
            file.write("x")
    if in_child and Path("kill always").exists():
        os.kill(os.getpid(), 9)
    if in_child and Path("kill").exists():
        Path("kill").unlink()
        os.kill(os.getpid(), 9)
    if in_child and Path("no files").exists():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
"""


def imports(project):
    path = project.folder / "imports"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.thorough
@pytest.mark.long
def test_a_worker_whose_first_child_is_killed_or_short_of_something_starts_another(project, producer, wait_for):
    project.write(IMPORT + SOURCE)
    result = producer.send_task("proj.add", (1, 2))
    (project.folder / "kill").touch()
    (project.folder / "no files").touch()
    worker = project.worker("-c", "1")
    wait_for(lambda: imports(project) >= 4, 120)
    assert worker.poll() is None
    (project.folder / "no files").unlink()
    assert result.get(timeout=120) == 3
    log = project.logs()
    assert "A child process could not be started: a child process ended by signal 9 (SIGKILL) while it imported" in log
    assert (
        "A child process could not be started: the module 'proj' does not import: OSError: [Errno 24] Too many" in log
    )


@pytest.mark.thorough
def test_a_worker_whose_children_all_die_while_they_import_the_app_ends(project, producer):
    project.write(IMPORT + SOURCE)
    (project.folder / "kill always").touch()
    worker = project.worker("-c", "1")
    assert worker.wait(120) == 1
    assert "Error: a child process ended by signal 9 (SIGKILL) while it imported the app." in project.logs()
    assert 3 <= imports(project) < 12


def test_children_leave_the_worker_the_descriptors_that_it_needs_itself(project, producer):
    limit = "from resource import *\nsetrlimit(RLIMIT_NOFILE, (64, getrlimit(RLIMIT_NOFILE)[1]))\n"
    (project.folder / "sitecustomize.py").write_text(limit)
    worker = project.worker("-c", "10")
    assert producer.send_task("proj.add", (1, 2)).get(timeout=30) == 3
    assert project.logs().count("No child process can be started: Too many open files. Raise the limit on open") == 1
    worker.terminate()
    assert worker.wait(30) == 0
