"""The benchmark: it ends well, and leaves a user's tasks as they were."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.sql import rows
from support.variants import slow

pytestmark = pytest.mark.acceptance

TOP = Path(__file__).parents[2]
TABLES = ("QUEUE_TASK", "QUEUE_HISTORY", "QUEUE_STAT", "QUEUE_PROCESS", "QUEUE_PAYLOAD", "QUEUE_RESULT")


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


def bench(project, *arguments):
    return [sys.executable, "-m", "benchmarks.run", *arguments], {
        "cwd": project.folder,
        "env": {**project.env, "PYTHONPATH": str(TOP)},
    }


def run(project, *arguments):
    command, how = bench(project, *arguments)
    return subprocess.run(command, **how, capture_output=True, text=True, timeout=120)


def figures(found):
    """The medians by their keys; all is above 0, and one round decides nothing."""
    values = {key: figure["median"] for key, figure in found["figures"].items()}
    assert found["notes"] == []
    assert all(value > 0 for value in values.values())
    assert {target["reached"] for target in found["targets"]} == {"not decided", "not measured"}
    return values


@pytest.mark.slow  # what it measures with is tested in tests/integration/test_bench_*.py, a part at a time
def test_a_quick_run_ends_well_and_leaves_a_users_tasks_alone(project, contents, tmp_path):
    before, files = contents(), sorted(tmp_path.glob("*.fdb*"))
    parts = "fbtasks/threads/2,enqueue,capture"  # the last one in a database of its own
    done = run(project, "--url", project.url, "--quick", "--only", parts, "--into", str(tmp_path / "found"))
    assert done.returncode == 0, done.stderr
    assert (contents(), sorted(tmp_path.glob("*.fdb*"))) == (before, files)
    found = json.loads((tmp_path / "found" / "results.json").read_text())
    assert figures(found).keys() >= {
        "fbtasks/threads/2/drain", "fbtasks/threads/2/settled", "fbtasks/threads/2/latency p50",
        "fbtasks/threads/2/kept/settled/ratio", "enqueue/single/ratio", "enqueue/bulk/ratio",
        *(f"capture/{rows}/{what}" for rows in ("single", "many") for what in ("plain", "captured", "ratio")),
    }  # fmt: skip
    assert "| fbtasks, threads 2: drain " in done.stdout
    assert found["machine"]["Firebird"].startswith("5.")
    assert {"what": "capture of four columns, rows of one transaction / the row alone", "figure": "capture/many/ratio",
            "wanted": "at most 1.2", "reached": "not decided"} in found["targets"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM])
def test_an_interrupted_run_clears_up(project, contents, wait_for, number):
    before = contents()
    command, how = bench(project, "--url", project.url, "--only", "idle")
    with subprocess.Popen(command, **how, stdout=-3, stderr=subprocess.PIPE) as process:
        wait_for(lambda: len(contents()["QUEUE_STAT"]) > len(before["QUEUE_STAT"]))  # its worker has done something
        process.send_signal(number)
        said = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 128 + number, said
    assert contents() == before
