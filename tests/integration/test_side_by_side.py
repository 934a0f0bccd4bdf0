"""Tasks of one queue that share what a worker has: none is kept from running by what others have waiting."""

import pytest

from fbtasks.queue.operations import pausing

pytestmark = pytest.mark.emptied


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


def test_plain_tasks_and_a_backlog_of_batch_calls_share_each_claim(app, claim, end):
    add = app.task(name="add", batch=100, wait=60, ignore_result=True)(lambda calls: None)
    add.delay_many([(1,)] * 2_000)
    plain(app).delay_many([()] * 5)
    assert claims_until(claim, end, "plain") <= 2


def test_plain_tasks_go_on_beside_those_of_a_paused_name(app, claim, end):
    paused = app.task(name="paused", ignore_result=True)(lambda: None)
    paused.delay_many([()] * 2_000)
    pausing.pause(app.database, names=["paused"])
    plain(app).delay_many([()] * 3)
    assert claims_until(claim, end, "plain") <= 3


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
