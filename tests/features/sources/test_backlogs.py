"""What `health` is told of changes that wait: whether, for how long, and behind what. Nothing is counted."""

import pytest
from support.feeding import change, subscribe
from support.sql import execute

from fbtasks.features.sources.store.subscriptions import backlogs

LEAST, LAST = -9223372036854775807, 9223372036854775807


pytestmark = pytest.mark.emptied


@pytest.fixture
def fed(app):
    """A subscription without changes."""
    subscribe(app, "changed")
    return app


def backlog(app):
    with app.database.session() as session:
        return backlogs(session)[1]


def lag(app):
    found = backlog(app).lag
    return found if found is None else round(found)


def halt(app, lane, waits=0):
    execute(
        app, "INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED, WAITS) VALUES (1, ?, 5, 1, ?)", lane, waits
    )


@pytest.mark.parametrize("oldest", [LEAST, -5, 0, 7, LAST])
@pytest.mark.parametrize("turn", [LEAST, 0, 8, LAST])
def test_the_lag_is_that_of_the_oldest_change_in_whichever_lane(fed, oldest, turn):
    execute(fed, "UPDATE QUEUE_DISPATCH SET LAST_LANE = ?", turn)
    for lane in (LEAST, -5, 0, 7, LAST):
        change(fed, lane, age_ms=900_000 if lane == oldest else 300_000)
        change(fed, lane, age_ms=100_000)
    assert lag(fed) in (900, 901)
    execute(fed, "UPDATE QUEUE_CHANGE SET NEWS = NULL WHERE LANE = ?", oldest)
    assert lag(fed) in (900, 901, 902)
    assert backlog(fed).goes_on


def test_what_waits_behind_halted_lanes_alone_does_not_go_on(fed):
    halt(fed, 1)
    assert backlog(fed)[:2] == (1, False)
    change(fed, 1)
    found = backlog(fed)
    assert (found.halted, found.behind, found.goes_on) == (1, True, False)
    change(fed, 2)
    assert backlog(fed).goes_on


def test_a_task_that_is_held_behind_a_halted_lane_waits_there(fed):
    halt(fed, 1, waits=1)
    assert backlog(fed)[:2] == (1, True)


def test_changes_in_many_lanes_are_looked_at_from_the_lane_whose_turn_it_is(fed):
    """The oldest is found though more lanes have changes than are looked at."""
    for first, age in ((0, 100), (1000, 700)):
        execute(
            fed,
            f"EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 300) DO BEGIN "
            f"INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, DATA) VALUES (1, :I + {first}, "
            f"NEXT VALUE FOR QUEUE_CHANGE_SEQ, DATEADD(-{age} SECOND TO QUEUE_NOW()), ''); I = I + 1; END END",
        )
    assert lag(fed) in (100, 101)
    execute(fed, "UPDATE QUEUE_DISPATCH SET LAST_LANE = 900")
    assert lag(fed) in (700, 701)
