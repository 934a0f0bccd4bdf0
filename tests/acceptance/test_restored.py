"""A database on a server is restored from a backup, at the same place, while a worker waits for tasks."""

import os
from contextlib import closing, suppress

import pytest
from firebird.driver.types import ShutdownMethod, ShutdownMode, SrvRestoreFlag
from support.services import services_of
from support.sql import execute

from fbtasks import FBTasks
from fbtasks.url import DatabaseURL

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif("FBTASKS_TEST_URL" not in os.environ, reason="needs a server: FBTASKS_TEST_URL"),
]
TASKS = """
    import os, pathlib

    @app.task
    def note():
        with (pathlib.Path(__file__).parent / "ran").open("a") as file:
            file.write("x")
"""


def restore(url):
    """As an operator does it: takes the database off-line, which ends all connections, and restores the backup."""
    with services_of(url) as server:
        path, backup = url.database, f"{url.database}.fbk"
        server.database.backup(database=path, backup=backup)
        server.wait()
        server.database.shutdown(database=path, mode=ShutdownMode.FULL, method=ShutdownMethod.FORCED, timeout=0)
        server.database.restore(backup=backup, database=path, flags=SrvRestoreFlag.REPLACE)
        server.wait()
    with suppress(OSError):  # where the server is on this machine
        os.unlink(backup)


def test_a_waiting_worker_does_not_run_the_tasks_of_a_restored_backup(project, wait_for):
    project.write(TASKS)
    worker = project.worker("-c", "1", "--lease", "3")
    with closing(FBTasks("a", project.url)) as app:
        for _ in range(5):
            app.send_task("proj.note", queue="other")
    wait_for(lambda: "Worker" in project.logs())
    restore(DatabaseURL.parse(project.url))
    with closing(FBTasks("a", project.url)) as app:
        execute(app, "UPDATE QUEUE_TASK SET QUEUE = 'default'")  # what waits there has run elsewhere
    assert worker.wait(60) == 66
    assert "was restored from a backup" in project.logs().rstrip().splitlines()[-1]
    refused = project.run("worker", "-A", "proj", "--burst", check=False)
    assert refused.returncode == 1
    assert "fbtasks adopt" in refused.stderr
    assert not (project.folder / "ran").exists()
    project.run("adopt", "--yes")
    project.run("worker", "-A", "proj", "--burst")
    assert (project.folder / "ran").read_text() == "xxxxx"
