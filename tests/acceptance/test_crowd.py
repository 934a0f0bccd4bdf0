"""Many workers on one embedded file, beside other work that takes the processors and the disk."""

from contextlib import closing

import pytest
from depth.crowd import Crowd

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.embedded("it is about the engines of many processes"),
    pytest.mark.slow,
]


def test_nobody_is_taken_for_dead_and_no_task_runs_twice_on_a_machine_that_is_too_small(tmp_path):
    with closing(Crowd(tmp_path, f"firebird://{tmp_path}/q.fdb", 32, "--pool", "threads")) as crowd:
        crowd.wait_until_ready()
        with crowd.beside(busy=8, disk=1):
            found = crowd.run(1000, 0.02, most=600)
    assert (found.run, found.again, found.left, found.ended) == (1000, 0, 0, 0), found
    assert (found.said["taken for dead"], found.said["registered again"], found.said["stale outcomes"]) == (0, 0, 0)
