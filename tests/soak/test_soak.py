"""A short soak: a few seconds of faults, and the account of every task."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from soak.sources import HANDLERS

pytestmark = [pytest.mark.soak, pytest.mark.acceptance]

TESTS = Path(__file__).resolve().parents[1]
POOL = "threads"
"""Its workers have a child with several tasks at once. Tests of acceptance kill workers of ``processes``."""


@pytest.mark.thorough
@pytest.mark.long
def test_four_seconds_of_faults_leave_every_task_accounted_for(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "soak.soak", "--seconds", "4", "--seed", "5", "--drain", "60", "--pools", POOL],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every task is accounted for." in done.stdout
    for kind in (*HANDLERS, "rated", "once", "step", "member", "tick"):
        assert re.search(rf"^{kind} .*runs [1-9]", done.stdout, re.MULTILINE), (kind, done.stdout)
    for kind, what in (*((handler, "committed") for handler in HANDLERS), ("once", "granted")):
        assert re.search(rf"^{kind} .*{what} [1-9]", done.stdout, re.MULTILINE), (kind, done.stdout)
