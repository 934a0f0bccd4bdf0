"""Variants of tests that run only when they are asked for, since others that always run show the same."""

import pytest


def slow(*values):
    """The parameters of such a variant."""
    return pytest.param(*values, marks=pytest.mark.slow)


CHILDREN = ["processes", "threads", slow("asyncio")]
"""The pools with child processes, for functions that are no coroutines: in ``asyncio`` they run in threads, where the
code of ``threads`` takes, stops and ends them."""

INSIDE_OUTSIDE = ["processes", "solo", slow("threads"), slow("asyncio")]
"""All pools, for what is decided where the task runs: by the same code in all children, whatever runs beside it."""
