"""Tasks of one queue that share what a worker has: none is kept from running by what others have waiting."""

import pytest
from support.sql import execute, page_fetches
from support.variants import slow

from fbtasks.features.sources import managing as subscriptions
from fbtasks.queue.operations import pausing

GROWS = 1.5
"""By how much more a claim may cost where ten times as much waits."""


RAISED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('{event}', '1', NULL, MOD(I, 10));
            I = I + 1;
        END END"""
"""Events of ten keys."""


def plain(app):
    return app.task(name="plain", ignore_result=True)(lambda: None)


def claims_until(claim, end, wanted, most=4, at_the_most=30):
    """How many claims there are until one of them has a task named *wanted*."""
    for number in range(1, at_the_most + 1):
        claims = claim(most)
        end(claims)
        if any(each.name == wanted for each in claims):
            return number
    raise AssertionError(f"{at_the_most} claims have taken no task named {wanted}")


@pytest.mark.parametrize("first", ["batch", slow("plain")])
def test_plain_tasks_and_a_backlog_of_batch_calls_share_each_claim(app, claim, end, first):
    add = app.task(name="add", batch=100, wait=60, ignore_result=True)(lambda calls: None)
    others = plain(app)
    calls = [lambda: add.delay_many([(1,)] * 2_000), lambda: others.delay_many([()] * 5)]
    for call in calls if first == "batch" else reversed(calls):
        call()
    assert claims_until(claim, end, "plain") <= 2


def test_plain_tasks_go_on_beside_those_of_a_paused_name(app, claim, end):
    paused = app.task(name="paused", ignore_result=True)(lambda: None)
    paused.delay_many([()] * 2_000)
    pausing.pause(app.database, names=["paused"])
    plain(app).delay_many([()] * 3)
    assert claims_until(claim, end, "plain") <= 3


def test_a_claim_does_not_grow_with_events_of_few_keys(app, session, claim, end):
    """One event of each key runs, and the others wait behind it."""
    counts = {"few": 1_000, "many": 4_000}
    for name in counts:
        app.on_event(name, name=name, queue=name)(lambda event: None)
    subscriptions.apply(app.database, app.name, app.features["sources"].feeds())
    cost = {}
    for name, count in counts.items():
        execute(app, RAISED.format(count=10, event=name))
        running = claim(10, queue=name)
        assert len(running) == 10
        execute(app, RAISED.format(count=count, event=name))
        before = page_fetches(session)
        assert claim(10, queue=name) == []
        cost[name] = page_fetches(session) - before
        end(running)
    assert cost["many"] <= GROWS * cost["few"]


def test_a_place_is_not_given_to_a_task_of_a_paused_queue(app, claim, end):
    app.limit("one", at_once=1)
    send = app.task(name="send", limits="one", ignore_result=True)(lambda: None)
    send.apply_async(queue="paused")
    send.apply_async(queue="open")
    pausing.pause(app.database, ["paused"])
    found = []
    for _ in range(3):
        assert claim(queue="paused") == []
        found += claim(queue="open")
    assert len(found) == 1
