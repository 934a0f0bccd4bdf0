"""Lines of many keys in which thousands wait: whoever could run is found at once, whatever others have waiting."""

import time
from contextlib import closing

import pytest
from firebird.driver import Isolation, tpb
from support.held import unread
from support.sql import fetches_of, held, one

from fbtasks.queue import tasks


def fill(task, keys, each):
    """Calls of each key in turn, a thousand in a transaction."""
    numbers = [(number,) for _ in range(each) for number in range(keys)]
    for done in range(0, len(numbers), 1_000):
        task.delay_many(numbers[done : done + 1_000])


def test_each_claim_finds_something_while_calls_could_run(app, claim, end):
    task = app.task(name="line", ordered="k", ignore_result=True)(lambda k: None)
    fill(task, 200, 10)
    left, empty, longest = 2_000, 0, 0
    while left:
        claims = claim()
        end(claims)
        left -= len(claims)
        empty = 0 if claims else empty + 1
        longest = max(longest, empty)
        assert empty < 100
    assert longest <= 1


def test_the_first_call_of_a_key_does_not_wait_for_what_others_have_waiting(app, claim):
    task = app.task(name="line", ordered="k", ignore_result=True)(lambda k: None)
    fill(task, 1, 3_000)
    assert len(claim()) == 1
    task.apply_async((1,), priority=9)
    claims = 1
    while not claim():
        claims += 1
        assert claims < 100
    assert claims <= 2


def test_a_call_whose_snapshot_was_old_does_not_wait_for_all_others(app, claim, end):
    """Its enqueuer sees one before it that has ended since."""
    task = app.task(name="line", ordered="k", ignore_result=True)(lambda k: None)
    task.delay(0)
    with app.connect() as connection:
        connection.begin(tpb(Isolation.SNAPSHOT))
        with closing(connection.cursor()) as cursor:
            assert cursor.execute("SELECT COUNT(*) FROM QUEUE_HOLD").fetchone() == (1,)
        end(claim())
        assert claim() == []
        late = task.using(connection).delay(0)
        connection.commit()
    task.delay_many([(number,) for number in range(1, 1_001)])
    for _ in range(200):
        claims = claim(1)
        if claims[0].id == int(late.id):
            break
        end(claims)
    else:
        pytest.fail("it is behind all others")


@pytest.fixture
def pause(session):
    """Pauses a queue that no worker and no task has yet, or has it go on."""
    return lambda queue, paused=1: session.call("FBTASKS_OPERATOR.PAUSE", queue, paused)


@pytest.fixture
def in_two_queues(app):
    """A task with a limit of 3 for each key."""
    app.limit("key", at_once=3)
    return app.task(name="line", limits={"key": "k"}, ignore_result=True)(lambda k, number=0: None)


def test_calls_of_a_paused_queue_cost_nothing_until_it_goes_on(app, in_two_queues, pause, claim, end, session):
    """Neither a call of another queue with their keys, nor the look of a worker that has nothing to do."""

    def one_more():
        in_two_queues.delay(1)
        end(claim())
        assert claim() == []

    pause("other")
    in_two_queues.delay_many([(1,)], queue="other")
    one_more()
    alone = fetches_of(session, [("a call", one_more)])["a call"]
    for _ in range(3):
        in_two_queues.delay_many([(number % 2,) for number in range(200)], queue="other")
    while unread(app):
        one_more()
    assert one(app, "SELECT MIN(WAKE_TIME) FROM QUEUE_GATE") is None
    assert tasks.any_ready(session, ["default"]).ready is False
    assert fetches_of(session, [("a call", one_more)])["a call"] <= 1.2 * alone


def test_calls_of_a_paused_queue_go_on_in_their_order_when_it_does(app, in_two_queues, pause, claim, end):
    pause("other")
    pause("third")
    calls = [(number % 4, number) for number in range(600)]
    first, last = in_two_queues.delay_many(calls[:8], queue="other"), in_two_queues.apply_async((0,), queue="third")
    urgent = in_two_queues.apply_async((0,), queue="other", priority=5)
    more = in_two_queues.delay_many(calls[8:], queue="other")
    in_two_queues.delay_many([(number,) for number in range(4)])
    while unread(app) or one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE QUEUE = 'default'"):
        end(claim())
    assert claim(queue="other") == []
    pause("other", 0)
    begun = []
    while unread(app) or one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE QUEUE = 'other'"):
        claims = claim(queue="other")
        end(claims)
        begun += [each.id for each in claims]
    for key in range(4):
        of_key = [int(urgent.id)] if key == 0 else []
        of_key += [int(call.id) for call, (its_key, _) in zip([*first, *more], calls, strict=True) if its_key == key]
        assert [id for id in begun if id in of_key] == of_key
    assert len(begun) == 601
    pause("third", 0)
    assert [each.id for each in claim(queue="third")] == [int(last.id)]


def test_a_call_that_another_transaction_holds_when_its_queue_goes_on_follows_when_it_can(
    app, in_two_queues, pause, claim
):
    pause("other")
    call = in_two_queues.apply_async((1,), queue="other")
    in_two_queues.delay(1)
    while not claim():
        pass
    assert one(app, "SELECT MAX(SORT_KEY) FROM QUEUE_HOLD WHERE TASK_ID = ?", int(call.id)) == 10000
    with held(app, "QUEUE_TASK", int(call.id)) as let_go:
        pause("other", 0)
        assert claim(queue="other") == []
        let_go()
    deadline = time.monotonic() + 30
    while not (claims := claim(queue="other")):
        assert time.monotonic() < deadline
    assert [each.id for each in claims] == [int(call.id)]


def test_an_order_waits_for_its_first_one_in_a_paused_queue_and_wakes_nobody(app, pause, claim, end):
    task = app.task(name="line", ordered="k", ignore_result=True)(lambda k: None)
    pause("other")
    first, second = task.apply_async((1,), queue="other"), task.delay(1)
    assert claim() == claim() == []
    assert one(app, "SELECT MIN(WAKE_TIME) FROM QUEUE_GATE") is None
    pause("other", 0)
    claims = claim(queue="other") or claim(queue="other")
    assert [each.id for each in claims] == [int(first.id)]
    end(claims)
    assert [each.id for each in claim()] == [int(second.id)]
