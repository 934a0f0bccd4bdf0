"""Whose silence is put to the database, and when one looks again."""

import pytest

from fbtasks.call import Neighbour
from fbtasks.maintenance.watch import BEATS, SHARE, Rhythm, Watch

LEASE = 28.0
HEARTBEAT, GRACE = LEASE / BEATS, LEASE / SHARE


def neighbour(silence, lease=LEASE):
    return Neighbour(1, 1, 1, silence, lease, "elsewhere")


@pytest.fixture
def watch():
    watch = Watch(Rhythm(LEASE))
    watch.begin()
    watch.beaten(HEARTBEAT)
    return watch


def test_the_next_look_comes_when_the_first_grace_ends(watch):
    assert watch.pause([]) == HEARTBEAT
    assert watch.pause([neighbour(0.5)]) == HEARTBEAT
    assert 0.5 < watch.pause([neighbour(2.5), neighbour(3.5), neighbour(1.0)]) <= 0.7, "never earlier"


def test_not_all_look_at_once():
    looks = {Watch(Rhythm(LEASE)).pause([neighbour(3.5)]) for _ in range(20)}
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


def test_everybody_has_the_grace_of_his_own_lease(watch):
    short, long = neighbour(5.0, 3.0), neighbour(20.0, 300.0)
    assert [suspect.neighbour for suspect in watch.suspects([short, long])] == [short]
    assert watch.pause([neighbour(0.1, 3.0)]) < 3.0 / SHARE + 0.2
    assert watch.pause([long]) == HEARTBEAT


def test_who_lost_the_connection_leaves_the_others_as_long_to_come_back(watch):
    """An outage of 4 seconds: one came back at once, and the other's heartbeat had been due when it began."""
    watch.lost()
    watch.begin()
    watch.beaten(4.0)
    assert watch.suspects([neighbour(6.0)]) == []
    assert watch.pause([neighbour(6.0)]) == HEARTBEAT
    watch.begin()
    watch.beaten(HEARTBEAT)
    assert [suspect.credit for suspect in watch.suspects([neighbour(8.1)])] == [4.0]


def test_a_longest_time_between_two_heartbeats():
    assert Rhythm(30.0, longest=1.0).heartbeat == 1.0
    assert Rhythm(7.0, longest=1.0).heartbeat == 0.5
