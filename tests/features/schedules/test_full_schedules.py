"""Schedules whose queue is full when they tick, and whose calls have to pass limits."""

import pytest
from support.draining import drain
from support.sql import execute

from fbtasks.features.schedules.duty import Ticks
from fbtasks.features.schedules.operations import list_schedules
from fbtasks.features.schedules.upkeep import sync_schedules

BACK = "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-90 MINUTE TO NEXT_TIME)"


@pytest.fixture
def tick(app):
    """Deploys the schedules of the app, of which each is due by then, and has a worker look at them."""

    def tick():
        with app.database.session() as session:
            sync_schedules(session, app, app.schedules)
        execute(app, BACK)
        with app.database.session() as session:
            ticks = Ticks(lambda: True)
            return ticks.do(session)

    return tick


def test_a_tick_into_a_full_queue_stays_due_until_there_is_room(app, tick):
    ran = []
    app.queue("small", max_length=1)
    note = app.task(name="note", queue="small")(lambda n: ran.append(n))
    app.add_periodic(note, every=3600, args=(2,), missed="one")
    note.delay(1)
    assert not tick()
    drain(app, ["small"])  # which makes room
    (schedule,) = list_schedules(app.database)
    assert schedule.state == "active"
    drain(app, ["small"])
    assert 2 in ran


def test_a_call_of_a_schedule_passes_the_limits_of_its_task(app, tick, claim):
    app.limit("one", at_once=1)
    note = app.task(name="note", limits="one", ignore_result=True)(lambda: None)
    app.add_periodic(note, every=3600)
    note.delay()
    assert len(claim()) == 1
    assert tick()
    assert claim() == []
