"""Limits on tasks: how many at once, how often, in which order, whatever becomes of them."""

from collections import Counter
from datetime import timedelta

import pytest
from support.held import leaves_nothing
from support.sql import NOW, execute, held, one, rows

from fbtasks import Ordered
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Failed, Reason, Requeue

pytestmark = pytest.mark.emptied

FAILED = Failed("builtins.ValueError", "no")


def state(app, result):
    return one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", int(result.id))


def customer(app, at_once=2, **options):
    app.limit("customer", at_once=at_once)
    options = {"limits": {"customer": "number"}, "ignore_result": True, **options}
    return app.task(name="bill", **options)(lambda number, text="": text)


def test_as_many_of_each_key_as_the_limit_says(app, claim, end):
    bill = customer(app)
    bill.delay_many([(n % 3,) for n in range(12)])
    counts = []
    while claims := claim():
        counts.append(Counter(each.payload for each in claims))
        end(claims)
    assert counts == [{b"[[0],{}]": 2, b"[[1],{}]": 2, b"[[2],{}]": 2}] * 2
    assert leaves_nothing(app)


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("number", [((1,), {}), ((), {"number": 1}), (("1",), {})]),
        (("number", "text"), [((1,), {}), ((1, ""), {}), ((), {"text": "", "number": 1})]),
        (lambda number, text="": number % 10, [((1,), {}), ((11,), {}), ((21,), {})]),
        (None, [((1,), {}), ((2,), {}), ((3,), {})]),
    ],
)
def test_what_a_key_is(app, claim, key, calls):
    app.limit("customer", at_once=1)
    bill = app.task(limits={"customer": key})(lambda number, text="": text)
    for args, kwargs in calls:
        bill.apply_async(args, kwargs)
    assert len(claim()) == 1
    bill.delay(5, "other")
    assert len(claim()) == (0 if key is None else 1)


@pytest.mark.parametrize(("rank", "expected"), [(0, [10, 10]), (5, [20, 0]), (-5, [0, 20])])
def test_the_room_is_shared_with_what_is_ready_and_as_urgent(app, claim, rank, expected):
    plain = app.task(name="plain")(lambda: None)
    bill = customer(app, 1000, priority=rank)
    bill.delay_many([(1,)] * 100)
    plain.delay_many([()] * 100)
    found = Counter(each.name for each in claim(20))
    assert [found["bill"], found["plain"]] == expected
    ones = {each.name for _ in range(20) for each in claim(1)}
    assert ones == {name for name, count in zip(("bill", "plain"), expected, strict=True) if count}


def test_of_one_key_the_most_urgent_comes_first(app, claim, end):
    bill = customer(app, 1)
    for priority in (0, 5, 9, 5):
        bill.apply_async((1,), priority=priority)
    found = []
    while claims := claim():
        found += [each.priority for each in claims]
        end(claims)
    assert found == [9, 5, 5, 0]


def expired(app, _claim, _end, result):
    execute(app, f"UPDATE QUEUE_TASK SET EXPIRE_TIME = DATEADD(-1 SECOND TO {NOW}) WHERE ID = ?", int(result.id))


def deleted(app, _claim, _end, result):
    execute(app, "DELETE FROM QUEUE_TASK WHERE ID = ?", int(result.id))


def deleted_while_it_runs(app, claim, end, result):
    claim()
    deleted(app, claim, end, result)


ENDS = {
    "failed": lambda _app, claim, end, _: end(claim(), FAILED),
    "revoked while it waits": lambda _app, _claim, _end, result: result.revoke(),
    "deleted while it runs": deleted_while_it_runs,
    "deleted while it waits": deleted,
    "expired": expired,
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("limits", [{"customer": "number"}, {"customer": "number", "all": None}])
def test_each_end_gives_the_places_back(app, claim, end, how, limits):
    app.limit("customer", at_once=1)
    app.limit("all", at_once=3)
    bill = app.task(name="bill", limits=limits)(lambda number: None)
    first = bill.delay(1)
    ENDS[how](app, claim, end, first)
    second = bill.delay(1)
    claims = claim() or claim()
    assert [each.id for each in claims] == [int(second.id)]
    end(claims)
    execute(app, "DELETE FROM QUEUE_HISTORY")
    assert leaves_nothing(app)


@pytest.mark.parametrize(
    ("outcome", "next_one"),
    [
        (Requeue(Reason.RETRY, 60.0, "later", "E"), 1),
        (Requeue(Reason.RETRY, 0.0, "again", "E"), 0),
        (Requeue(Reason.CLOSED, 60.0), 1),
        (Requeue(Reason.PARKED), 1),
        (RELEASED, 0),
        ("its worker is gone", 0),
    ],
)
def test_a_task_that_has_to_wait_gives_its_place_back_and_one_that_was_not_tried_keeps_it(
    app, claim, end, session, outcome, next_one
):
    bill = customer(app, 1)
    results = bill.delay(1), bill.delay(1)
    claims = claim()
    if isinstance(outcome, str):
        assert session.call("FBTASKS_WORKER.ORPHANS", 999, 200) == 1
    else:
        end(claims, outcome)
    assert [each.id for each in claim()] == [int(results[next_one].id)]
    if next_one == 0:
        assert state(app, results[1]) == 4


def test_a_rate_lets_them_begin_one_after_the_other(app, claim, end, wait_for):
    app.limit("sms", rate="50/s", burst=2)
    send = app.task(name="send", limits="sms")(lambda n: None)
    send.delay_many([(n,) for n in range(8)])
    taken = []

    def all_taken():
        taken.extend(claim())
        return len(taken) == 8

    wait_for(all_taken)
    times = sorted(moment for (moment,) in rows(app, "SELECT CLAIM_TIME FROM QUEUE_TASK"))
    assert len([moment for moment in times if moment - times[0] < timedelta(milliseconds=20)]) <= 2
    assert times[-1] - times[0] >= timedelta(milliseconds=20 * 6 - 2)  # two at once, then one each
    end(taken)


def test_a_rate_has_a_burst_and_no_more_after_a_pause(app, claim, end, session):
    app.limit("sms", rate="1/h", burst=3)
    send = app.task(name="send", limits="sms")(lambda n: None)
    found = []
    for n in range(4):
        send.delay(n)
        found.append(len(claims := claim()))
        end(claims)
    assert found == [1, 1, 1, 0]
    look = tasks.any_ready(session, ["default"])
    assert not look.ready
    assert 3590 < look.again <= 3601
    execute(app, f"UPDATE QUEUE_GATE SET FREE_US = 0, WAKE_TIME = {NOW}")  # as if that had been long ago
    send.delay_many([(n,) for n in range(10)])
    assert len(claim()) == 3
    assert claim() == []


@pytest.fixture
def move(app):
    def define(**options):
        return app.task(name="move", ordered=Ordered("key", **options), ignore_result=True)(lambda key, n: None)

    return define


def test_one_at_a_time_in_the_order_of_enqueueing_whatever_the_priority(app, claim, end, move):
    moves = move()
    for n in range(6):
        moves.apply_async((n % 2, n), priority=n)
    found = []
    while claims := claim():
        found += [each.id for each in sorted(claims, key=lambda each: each.id)]
        end(claims)
    assert found == sorted(found)
    assert leaves_nothing(app)


@pytest.mark.parametrize(("during_retry", "expected"), [("wait", []), ("pass", ["second"])])
def test_whether_others_pass_one_that_is_to_be_tried_again(claim, end, move, during_retry, expected):
    moves = move(during_retry=during_retry)
    moves.delay(1, 1)
    second = moves.delay(1, 2)
    end(claim(), Requeue(Reason.RETRY, 60.0, "later", "E"))
    assert [each.id for each in claim()] == [int(second.id) for _ in expected]


def test_a_locked_task_is_passed_but_not_in_an_order(app, claim, move):
    moves, bill = move(), customer(app, 1)
    first, second = bill.delay(1), bill.delay(1)
    moved = [moves.delay(1, 1), moves.delay(1, 2)]
    with held(app, "QUEUE_TASK", int(first.id), int(moved[0].id)):
        assert [each.id for each in claim()] == [int(second.id)]


def test_several_limits_are_passed_in_one_order(app, claim, end):
    app.limit("a", at_once=1)
    app.limit("b", at_once=1)
    one_way = app.task(name="one", limits={"a": None, "b": None})(lambda: None)
    other_way = app.task(name="other", limits={"b": None, "a": None})(lambda: None)
    for _ in range(3):
        one_way.delay()
        other_way.delay()
    total = 0
    for _ in range(20):
        claims = claim()
        assert len(claims) <= 1
        total += len(claims)
        end(claims)
    assert total == 6
    assert leaves_nothing(app)


def test_tasks_of_other_queues_are_let_in_too(app, claim, end):
    app.limit("all", at_once=1)
    one_task = app.task(name="one", limits="all")(lambda: None)
    first = one_task.apply_async(queue="other")
    second = one_task.delay()
    assert claim() == []  # the first has its turn
    claims = claim(queue="other")
    assert [each.id for each in claims] == [int(first.id)]
    end(claims)
    assert [each.id for each in claim()] == [int(second.id)]
