"""What the commands say of workers that were killed on this machine, and of a copy that was not adopted."""

import json
import os
import shutil
import signal

import pytest
from support.sql import one

from fbtasks.firebird.embedded import namespace
from fbtasks.queue.register import hosts
from fbtasks.states import State

pytestmark = pytest.mark.acceptance

NOBODY = "no worker is alive (fbtasks worker -A MODULE)"
TASKS = """
    import time
    @app.task
    def sleep(): time.sleep(300)
"""


def worker_of(app):
    return one(app, "SELECT PID FROM QUEUE_PROCESS")


@pytest.mark.skipif(not namespace.sees_processes(), reason="no process can be looked at here")
def test_a_worker_that_was_killed_is_dead_at_once(project, wait_for):
    with project.producer(TASKS) as app:
        app.migrate()
        process = project.worker("-c", "1", "--lease", "300", "-n", "shop")
        result = app.send_task("proj.sleep")
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = ?", State.RUNNING))
        assert project.run("health").stdout == "healthy: 1 worker\n"
        (row,) = json.loads(project.run("inspect", "workers", "--json").stdout)
        assert (row["app"], row["ended"], row["pid"]) == ("proj", False, worker_of(app))
        waiting = app.send_task("proj.sleep")
        os.kill(worker_of(app), signal.SIGKILL)
        process.wait()
        wait_for(lambda: hosts.is_gone(row["pid"], row["pid_start"]))
        done = project.run("health", check=False)
        unserved = "queue default: no worker serves it"
        assert (done.returncode, done.stdout.splitlines()) == (1, [unserved, NOBODY])
        (row,) = json.loads(project.run("inspect", "workers", "--json").stdout)
        assert (row["ended"], row["lease_left"] > 200) == (True, True)
        assert " ago (dead)" in project.run("inspect", "workers").stdout
        (queue,) = json.loads(project.run("inspect", "queues", "--json").stdout)
        assert queue["workers"] == 0
        (why,) = json.loads(project.run("inspect", "task", waiting.id, "--json").stdout)["why"]
        assert why.startswith("no worker serves its queue default")
        (why,) = json.loads(project.run("inspect", "task", result.id, "--json").stdout)["why"]
        assert why.startswith(f"its worker {row['name']} is dead, and no other one is alive to take it back. Start one")
        said = project.run("result", result.id, check=False).stderr
        assert said.startswith(f"Error: task {result.id} has not ended: it is running, and its worker {row['name']} is")


@pytest.mark.embedded("it copies the file")
def test_health_of_a_copy_that_is_not_adopted_says_so(project, tmp_path):
    project.write(TASKS)
    assert project.run("health", check=False).stdout == f"{NOBODY}\n"
    shutil.copyfile(tmp_path / "queue.fdb", tmp_path / "copy.fdb")
    project.env["FBTASKS_URL"] = f"firebird://{tmp_path}/copy.fdb"
    done = project.run("health", check=False)
    first, *rest = done.stdout.splitlines()
    assert (done.returncode, rest) == (1, [NOBODY])
    assert first.startswith(f"firebird://{tmp_path}/copy.fdb is a copy that was restored or moved (it was ")
    copy, _, remedy = first.rpartition(" If ")
    assert (
        remedy == f"this database is the one that should run them: fbtasks adopt --url firebird://{tmp_path}/copy.fdb"
    )
    assert json.loads(project.run("health", "--json", check=False).stdout)["problems"] == [first, *rest]
    assert project.run("adopt", "--yes").stdout == f"{copy}\nAdopted.\n"
    assert project.run("health", check=False).stdout == f"{NOBODY}\n"
