"""The core works with no feature at all: its tests pass with an app and a database of `features=()`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PARTS = ("enqueue", "finish", "retries", "results", "transitions")


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.acceptance
@pytest.mark.embedded("it runs tests that run on a server themselves")
def test_the_life_of_a_task_needs_no_feature():
    files = [str(TESTS / "integration" / f"test_{part}.py") for part in PARTS]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *files],
        cwd=TESTS.parent,
        env={**env, "FBTASKS_TEST_FEATURES": "none"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout
