"""The time in which a process was held up itself."""

from fbtasks.maintenance.pauses import Pauses


def test_only_what_is_longer_than_usual_is_a_pause():
    pauses = Pauses(2.0, 100.0)
    for now in (102.0, 104.0, 107.9):
        pauses.beat(now)
    assert pauses.within(60, 108.0) == 0


def test_a_pause_counts_from_when_a_heartbeat_was_due():
    pauses = Pauses(2.0, 100.0)
    pauses.beat(102.0)
    pauses.beat(112.0)
    assert pauses.within(60, 112.0) == 8
    assert pauses.within(60, 150.0) == 8
    assert pauses.within(5, 112.0) == 5
    assert pauses.within(5, 114.0) == 3
    assert pauses.within(5, 120.0) == 0


def test_the_time_before_the_first_heartbeat_is_one():
    pauses = Pauses(2.0, 100.0)
    pauses.beat(130.0)
    assert pauses.within(60, 130.0) == 28


def test_pauses_add_up_and_are_not_more_than_the_time():
    pauses = Pauses(1.0, 0.0)
    for now in range(10, 10_000, 10):
        pauses.beat(float(now))
    assert pauses.within(100, 9_990.0) == 90
    assert pauses.within(5, 9_990.0) == 5
