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
    for handler in HANDLERS:
        assert re.search(rf"^{handler} \(\w+\) .*calls [1-9].*committed [1-9]", done.stdout, re.MULTILINE), done.stdout
    for what in (r"rate +[1-9]", r"merged +[1-9]\d* calls", r"workflows +[1-9]", r"ticks +[1-9]"):
        assert re.search(rf"^{what}", done.stdout, re.MULTILINE), done.stdout
