"""The order in which tasks run: by priority, then by time, and queues in turn."""

import json
import random
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from support.draining import drain

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded
from fbtasks.worker.claiming import LOOK_BACK, Claiming

pytestmark = pytest.mark.emptied


def test_several_queues_are_served_fairly(app):
    """A backlog of 300 does not starve three tasks of another queue, and both get their turns."""
    order = []
    note = app.task(name="note")(order.append)
    note.delay_many([("big",)] * 300, queue="big")
    note.delay_many([("small",)] * 3, queue="small")
    drain(app, ["big", "small"])
    assert len(order) == 303
    assert [place for place, queue in enumerate(order) if queue == "small"][-1] < 10


@pytest.fixture
def claimed(app, monkeypatch):
    """A function that claims up to so many tasks, as one worker does time after time, and returns their arguments."""
    claiming, now = Claiming(["default"]), [time.monotonic()]
    monkeypatch.setattr("fbtasks.worker.claiming.clock.monotonic", lambda: now[0])

    def claimed(most=1, after=0.0):
        now[0] += after
        taken = session.run(lambda t: claiming.claim(t, 1, most))
        claiming.committed(taken)
        ended = [Finished(claim, Succeeded(keep=False)) for claim in taken.claims]
        session.run(lambda t: tasks.finish(t, 1, 0, ended))
        return [json.loads(claim.payload)[0][0] for claim in taken.claims]

    with closing(app.database.open()) as session:
        yield claimed


@pytest.fixture
def note(app):
    return app.task(name="note", ignore_result=True)(lambda what: None)


def test_what_is_more_urgent_is_claimed_next(note, claimed):
    """Of a priority that was never claimed before, of one that was read to its end, and of one in between."""
    note.delay_many([("low",)] * 10, priority=-5)
    assert claimed() == ["low"]
    for priority in (9, 9, 0, 9, 20):
        note.apply_async((priority,), priority=priority)
        assert claimed() == [priority]
        assert claimed() == ["low"]
    note.apply_async((0,), priority=0)
    note.apply_async((9,), priority=9)
    assert claimed(3) == [9, 0, "low"]
    assert claimed(9) == ["low"] * 3


def test_what_is_more_urgent_and_was_committed_late_is_claimed_next(app, note, claimed):
    note.delay_many([("low",)] * 10, priority=-5)
    note.apply_async(("first",), priority=9)
    assert claimed(2) == ["first", "low"]
    with app.connect() as connection:
        note.using(connection).apply_async(("late",), priority=9)
        assert claimed() == ["low"]
        note.apply_async(("second",), priority=9)
        assert claimed(2) == ["second", "low"]
        connection.commit()
    assert claimed() == ["late"]


@pytest.mark.parametrize("priority", [9, 0, -5])
def test_what_was_due_long_before_is_found_a_second_later_or_when_there_is_room(note, claimed, priority):
    """It is below the mark of its priority."""
    for each in (9, 0, -5):
        note.delay_many([(each,)] * 2, priority=each)
    assert claimed(5) == [9, 9, 0, 0, -5]
    note.delay_many([("low",)] * 10, priority=-5)
    note.apply_async(("early",), priority=priority, eta=datetime.now(UTC) - timedelta(minutes=1))
    assert claimed(1) == [-5]
    assert claimed(1) == ["low"]
    assert claimed(1, after=LOOK_BACK + 0.1) == ["early"]
    assert claimed(1) == ["low"]
    note.apply_async(("earlier",), priority=priority, eta=datetime.now(UTC) - timedelta(minutes=2))
    assert sorted(claimed(10)) == ["earlier", *["low"] * 8], "where there is room it is found at once"


@pytest.mark.parametrize("seed", range(2))
def test_each_is_claimed_once_whatever_came_when(app, note, claimed, seed):
    """Of up to 30 priorities, more than there are marks for; some committed late, some due long before."""
    rng = random.Random(seed)
    priorities = rng.sample(range(-9998, 10_000), 30)
    made, found = 0, []
    with app.connect() as connection:
        for _ in range(150):
            late = note.using(connection) if rng.random() < 0.3 else note
            for _ in range(rng.randint(0, 3)):
                age = timedelta(seconds=rng.choice([0, 0, 1, 1000]))
                late.apply_async((made,), priority=rng.choice(priorities), eta=datetime.now(UTC) - age)
                made += 1
            if rng.random() < 0.2 and connection.main_transaction.is_active():
                connection.commit()
            found += claimed(rng.randint(1, 4), after=rng.choice([0, 0, 0.2]))
        if connection.main_transaction.is_active():
            connection.commit()
    while some := claimed(7):
        found += some
    assert sorted(found) == list(range(made))
