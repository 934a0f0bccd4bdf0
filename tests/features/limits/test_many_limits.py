"""More limits in one queue than a claim asks."""

import pytest

from fbtasks.queue.tasks import any_ready

LIMITS = 900
EACH = 10
"""Limits of one task."""


@pytest.mark.slow
def test_tasks_of_the_901st_limit_of_a_queue_run(app, session, claim, end):
    for first in range(0, LIMITS, EACH):
        names = [f"limit {number}" for number in range(first, first + EACH)]
        for name in names:
            app.limit(name, at_once=1)
        app.task(name=f"first of {first}", limits=dict.fromkeys(names), ignore_result=True)(lambda: None).delay()
    app.limit("last", at_once=1)
    app.task(name="last", limits="last", ignore_result=True)(lambda: None).delay()
    found = []
    while any_ready(session, ["default"]).ready:  # a claim asks some of the limits, and may find nothing
        claims = claim(500)
        found += [each.name for each in claims]
        end(claims)
    assert len(found) == LIMITS // EACH + 1
    assert "last" in found
