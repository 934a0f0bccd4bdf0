"""Events with an order key reach each handler, whatever order and delivery that one has."""

import time

import pytest
from support.draining import drain
from support.feeding import handle
from support.sources import apply
from support.sql import one, rows

pytestmark = pytest.mark.emptied


@pytest.mark.parametrize(
    "options",
    [{"order": "total"}, {"order": None, "batch": 10}, {"order": None, "after": 0.001}],
    ids=["total", "batch", "after"],
)
def test_an_event_with_an_order_key_reaches_a_handler_that_takes_no_notice_of_keys(app, options):
    heard, keyed = [], []
    app.on_event("paid", name="other", **options)(heard.append)
    app.on_event("paid", name="keyed")(keyed.append)
    apply(app)
    for number in range(3):
        app.raise_event("paid", number, order_key=f"key {number}")
    drain(app)
    time.sleep(0.01)
    drain(app)  # what was to wait for 1 ms
    assert len(keyed) == 3
    found = [event for each in heard for event in (each if isinstance(each, list) else [each])]
    assert sorted(event.data for event in found) == [0, 1, 2]


KEYS = ("A", 'a "quoted" \\ key\\', "schlüssel", "x" * 255)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [1, 1, 3, 3, 3, 3]), ({"batch": 3}, [3, 3, 3, 3, 3]), ({"order": None}, [10])],
    ids=["one", "batch", "unordered"],
)
def test_those_that_were_kept_go_into_the_lanes_of_later_ones_of_their_keys(app, options, expected):
    """One without a key has a lane of its own, where a later one is a task at once."""
    app.database.make_ready()
    for times in (2, 1):
        for number in range(times):
            for key in (*KEYS, None):
                app.raise_event("paid", number, order_key=key)
        app.on_event("paid", name="heard", **options)(lambda event: None) if times == 2 else None
        apply(app)
    lanes = rows(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID > 0 GROUP BY LANE ORDER BY 1")
    assert [count for (count,) in lanes] == expected


def test_an_event_with_an_order_key_is_kept_behind_those_that_are_kept_still(app, session):
    """Many of them are handed on in steps."""
    app.database.make_ready()
    for number in range(3):
        app.raise_event("paid", number, order_key="A")
    handle(app, "paid", "heard", id=1, ordering="key")
    app.raise_event("paid", 3, order_key="A")
    app.raise_event("paid", 4)
    while session.run(lambda t: t.call("FBTASKS_SOURCES_UPKEEP.HAND_ON_EVENTS", 1)):
        pass
    in_lanes = rows(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 1 GROUP BY LANE ORDER BY 1")
    assert in_lanes == [(4,)]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1  # the one without
