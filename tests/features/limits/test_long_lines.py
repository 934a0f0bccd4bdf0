"""Lines of many keys in which thousands wait: whoever could run is found at once, whatever others have waiting."""

from contextlib import closing

import pytest
from firebird.driver import Isolation, tpb


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
