"""The time in which a process was held up itself."""

import pytest

from fbtasks.maintenance.pauses import Pauses


def pauses(usual, *silences):
    found = Pauses(usual)
    for silence in silences:
        found.beat(silence)
    return found


def test_only_what_is_longer_than_usual_is_a_pause():
    assert pauses(2.0, 2.0, 2.09, 1.0, 0.0).within(60) == 0
    assert pauses(2.0, 2.0, 3.9, 2.0).within(60) == pytest.approx(1.9)


def test_when_the_connection_was_lost_all_of_it_is_a_pause():
    found = pauses(2.0, 2.0)
    found.beat(1.5, lost=True)
    assert found.within(60) == 1.5


def test_a_pause_begins_when_a_heartbeat_was_due():
    assert pauses(2.0, 2.0, 10.0).within(60) == 8
    assert pauses(2.0, 2.0, 10.0).within(5) == 5
    assert pauses(2.0, 2.0, 10.0, 2.0).within(5) == 3
    assert pauses(2.0, 2.0, 10.0, *[2.0] * 4).within(5) == 0
    assert pauses(2.0, 2.0, 10.0, *[2.0] * 4).within(60) == 8


def test_pauses_add_up_and_are_never_more_than_the_time():
    found = pauses(1.0, *[10.0] * 1000)
    assert found.within(100) == 90
    assert found.within(5) == 5


def test_what_a_companion_has_seen_is_added():
    companion, worker = pauses(2.0, 2.0, 2.0, 60.0, 2.0), Pauses(2.0)
    worker.add(*companion.total)
    worker.beat(1.0)
    assert worker.within(40) == 39
    worker.add(30.0, 0.0)
    assert worker.within(40) == 9
    assert worker.total == (97.0, 58.0)


def test_a_clock_that_was_set_back_is_no_pause():
    assert pauses(2.0, 2.0, -3600.0, 2.0).within(60) == 0
    assert pauses(2.0, 2.0, 3600.0, 2.0, -3600.0, *[2.0] * 10).within(20) == 0
