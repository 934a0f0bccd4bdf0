"""Events with an order key reach each handler, whatever order and delivery that one has."""

import time

import pytest
from support.draining import drain
from support.sources import apply

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
