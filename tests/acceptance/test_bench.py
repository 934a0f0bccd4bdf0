"""The benchmark: it ends well, and leaves a user's tasks as they were."""

import json
import signal
import subprocess
import sys

import pytest
from support.sql import rows

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded]

TABLES = ("QUEUE_TASK", "QUEUE_HISTORY", "QUEUE_STAT", "QUEUE_WORKER", "QUEUE_PAYLOAD", "QUEUE_RESULT")


@pytest.fixture
def contents(app):
    """A user's tasks, waiting, scheduled, failed and done, and a function that reads all tables."""
    from fbtasks.testing import drain

    def broken():
        raise ValueError("on purpose")

    done = app.task(name="done")(lambda: 1)
    failed = app.task(name="failed", max_retries=0)(broken)
    done.delay()
    failed.delay()
    drain(app)
    for queue in ("default", "mail"):
        done.apply_async(queue=queue)
    done.apply_async(countdown=3600)

    def read():
        return {table: sorted(map(repr, rows(app, f"SELECT * FROM {table}"))) for table in TABLES}

    return read


def test_a_quick_run_ends_well_and_leaves_a_users_tasks_alone(project, contents, tmp_path):
    before = contents()
    file = tmp_path / "bench.json"
    parts = "ceiling,enqueue,drain threads 2 ignored"
    done = project.run("bench", "--url", project.url, "--quick", "--only", parts, "--json", str(file))
    assert contents() == before
    found = json.loads(file.read_text())
    assert found["notes"] == []
    values = {figure["key"]: figure["value"] for figure in found["figures"]}
    assert {"ceiling/claim+delete", "enqueue/ratio", "enqueue/bulk", "drain/threads/2/ignored"} <= values.keys()
    assert all(value > 0 for value in values.values())
    assert "drain, threads, 2 at once, results ignored" in done.stdout
    assert found["machine"]["Firebird"].startswith("5.")


def test_an_interrupted_run_clears_up(project, contents, wait_for):
    before = contents()
    command = [sys.executable, "-m", "fbtasks", "bench", "--url", project.url, "--only", "idle"]
    with subprocess.Popen(command, cwd=project.folder, env=project.env, stdout=-3, stderr=-3) as process:
        wait_for(lambda: len(contents()["QUEUE_STAT"]) > len(before["QUEUE_STAT"]))  # its worker has done something
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert contents() == before


def test_an_unknown_part_is_refused(project):
    done = project.run("bench", "--url", project.url, "--only", "nonsense", check=False)
    assert done.returncode == 2
    assert "no part 'nonsense'" in done.stderr
