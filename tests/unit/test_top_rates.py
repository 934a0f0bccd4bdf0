"""The numbers of ``fbtasks top``, and how its lists share the screen."""

from datetime import UTC, datetime, timedelta

import pytest

from fbtasks.cli.top.pages import shares
from fbtasks.cli.top.sight import Rates, Sight, rates
from fbtasks.queue.operations.overview import Overview
from fbtasks.queue.results import QueueRow, StatRow

COUNTERS = ("succeeded", "failed", "cancelled", "retried", "released", "elapsed_ms", "conflicts")
NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


def sight(time, running=0, **counters):
    counted = StatRow("q", **dict.fromkeys(COUNTERS, 0) | counters)
    found = Overview(time, [QueueRow(queue="q", running=running)], [], [counted], 0)
    return Sight(found, [], [], [], {"q": Rates(9, 9, 9, 9)})


def test_rates_are_those_between_two_looks():
    before = sight(NOON, running=3, succeeded=10, failed=1)
    after = sight(NOON + timedelta(seconds=2), 5, succeeded=20, failed=3, cancelled=2, retried=4, released=2)
    assert rates(before, after.overview) == {"q": Rates(11, 7, 1, 2)}


def test_rates_stay_as_they_are_when_the_hour_ends_since_which_is_counted():
    later = sight(NOON, succeeded=2)
    assert rates(sight(NOON - timedelta(seconds=1), succeeded=10), later.overview) == {"q": Rates(9, 9, 9, 9)}
    assert rates(sight(NOON, succeeded=10), later.overview) == {"q": Rates(9, 9, 9, 9)}


@pytest.mark.parametrize(
    ("needs", "room", "found"),
    [([1, 9, 9], 13, [1, 6, 6]), ([2, 2, 2], 13, [2, 2, 2]), ([0, 50, 3], 13, [0, 10, 3]), ([5, 5, 5], 2, [0, 1, 1])],
)
def test_lists_share_the_room_and_leave_what_they_do_not_need(needs, room, found):
    assert shares(needs, room) == found
