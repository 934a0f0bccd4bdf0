"""The examples that `make demo` runs."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example, number, url, folder):
    """Runs an example, which ends well. Returns what it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), number],
        env={**os.environ, "FBTASKS_URL": url}, cwd=folder, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.acceptance
def test_rows_that_appear_in_a_table_are_handled_in_order_and_in_parallel(url, tmp_path):
    said = run("languages_demo.py", "40", url, tmp_path)
    ours = re.findall(r"^40 rows in [\d.]+ s: [\d,]+ a second by one worker with (one process|5 processes)", said, re.M)
    assert ours == ["one process", "5 processes"]
    assert re.findall(r"^The article: (\d+) a second", said, re.M) == ["356", "149"]
    assert len((tmp_path / "in_order.txt").read_text().splitlines()) == 40


@pytest.mark.parametrize(
    ("called", "ordered", "said"),
    [
        ([2, 1, 3], False, None),
        ([2, 1, 3], True, "The rows were not handled in their order."),
        ([1, 3], False, "Lost: 1 rows. Calls too many: 0."),
        ([1, 2, 2, 3], False, "Lost: 0 rows. Calls too many: 1."),
    ],
)
def test_it_fails_when_rows_are_lost_doubled_or_out_of_order(monkeypatch, called, ordered, said):
    monkeypatch.syspath_prepend(EXAMPLES)
    check = import_module("languages_demo").check
    if said is None:
        check([1, 2, 3], called, ordered=ordered)
    else:
        with pytest.raises(SystemExit) as left:
            check([1, 2, 3], called, ordered=ordered)
        assert left.value.code == said


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.acceptance
def test_orders_become_invoices_by_a_schedule_a_limit_and_a_chord(url, tmp_path):
    said = run("invoices_demo.py", "10", url, tmp_path)
    assert "10 orders were billed in 2 batches, of 5, 5 invoices." in said
    assert re.findall(r"^(\w+): (\d+) invoices, [12] at once at most", said, re.M) == [
        ("Alba", "6"), ("Brook", "2"), ("Cedar", "2"),
    ]  # fmt: skip
