"""Whose silence is put to the database, and when one looks again."""

import pytest

from fbtasks.call import Neighbour
from fbtasks.maintenance.watch import Watch

HEARTBEAT, GRACE = 2.0, 4.0


def neighbour(silence):
    return Neighbour(1, 1, 1, silence, "elsewhere")


@pytest.fixture
def watch():
    watch = Watch(heartbeat=HEARTBEAT, grace=GRACE)
    watch.begin()
    watch.beaten(HEARTBEAT)
    return watch


def test_the_next_look_comes_when_the_first_grace_ends(watch):
    assert watch.pause([]) == HEARTBEAT
    assert watch.pause([neighbour(0.5)]) == HEARTBEAT
    assert 0.5 < watch.pause([neighbour(2.5), neighbour(3.5), neighbour(1.0)]) <= 0.7, "never earlier"


def test_not_all_look_at_once():
    looks = {Watch(heartbeat=HEARTBEAT, grace=GRACE).pause([neighbour(3.5)]) for _ in range(20)}
    assert max(looks) - min(looks) > 0.02


def test_who_has_been_put_to_the_database_does_not_hasten_the_next_look(watch):
    assert watch.pause([neighbour(GRACE), neighbour(100.0)]) == HEARTBEAT


def test_only_who_was_silent_for_the_grace_is_put_to_the_database(watch):
    late, later = neighbour(GRACE - 0.01), neighbour(GRACE)
    assert [suspect.neighbour for suspect in watch.suspects([late, later])] == [later]


def test_the_time_in_which_one_was_held_up_oneself_does_not_count(watch):
    watch.begin()
    watch.beaten(10.0)  # 8 seconds late
    assert watch.suspects([neighbour(11.9)]) == []
    assert 1.0 < watch.pause([neighbour(11.0)]) <= 1.2
    assert [suspect.credit for suspect in watch.suspects([neighbour(12.0)])] == [8.0]
