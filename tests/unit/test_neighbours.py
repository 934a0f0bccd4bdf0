"""Which neighbours are put to the database as dead, when the next look comes, and what a stall of one's own changes."""

import os
import signal
import subprocess
import sys

import pytest
from support.clocks import stopped

from fbtasks.queue.register import hosts, neighbours
from fbtasks.queue.register.neighbours import BEATS, HANGS, NeighbourMonitor, Rhythm
from fbtasks.queue.register.processes import SHARE
from fbtasks.tasks.call import HeartbeatReply, Neighbour

LEASE = 28.0
HEARTBEAT, GRACE = LEASE / BEATS, LEASE / SHARE


@pytest.fixture
def clock(monkeypatch):
    return stopped(monkeypatch, neighbours)


def neighbour(silence, lease=LEASE):
    return Neighbour(1, 1, 1, silence, lease, "elsewhere")


def beat(monitor, silence=HEARTBEAT, *, alive=True, renewed=True):
    monitor.begin()
    monitor.heard(HeartbeatReply(alive, alive and renewed, silence, False, (), 1))


def suspected(monitor, *others):
    return [suspect.neighbour for suspect in monitor.suspects(others)]


@pytest.fixture
def monitor(clock):
    monitor = NeighbourMonitor(Rhythm(LEASE))
    beat(monitor)
    return monitor


def test_the_next_look_comes_when_the_first_grace_ends(monitor):
    assert monitor.pause([]) == HEARTBEAT
    assert monitor.pause([neighbour(0.5), neighbour(GRACE), neighbour(100.0)]) == HEARTBEAT
    assert 0.5 < monitor.pause([neighbour(2.5), neighbour(3.5), neighbour(1.0)]) <= 0.7, "never earlier"


def test_not_all_look_at_once():
    looks = {NeighbourMonitor(Rhythm(LEASE)).pause([neighbour(3.5)]) for _ in range(20)}
    assert max(looks) - min(looks) > 0.02


def test_only_a_neighbour_that_was_silent_for_the_grace_is_put_to_the_database(monitor):
    late, later = neighbour(GRACE - 0.01), neighbour(GRACE)
    assert suspected(monitor, late, later) == [later]


def test_each_has_the_grace_of_its_own_lease(monitor, clock):
    short, long = neighbour(5.0, 3.0), neighbour(20.0, 300.0)
    assert suspected(monitor, short, long) == [short]
    assert monitor.pause([neighbour(0.1, 3.0)]) < 3.0 / SHARE + 0.2
    assert monitor.pause([long]) == HEARTBEAT
    beat(monitor, 60.0)
    clock.now += 1.0  # after a stall as well
    assert suspected(monitor, neighbour(61.0, 3.0), neighbour(61.0, 300.0)) == [neighbour(61.0, 3.0)]


def test_after_its_own_stall_it_counts_the_silence_of_others_anew(monitor, clock):
    assert monitor.awake == clock.now, "it has had no stall since the machine started"
    beat(monitor, GRACE)
    assert monitor.awake == clock.now, "late is not a stall"
    beat(monitor, GRACE + 0.1)
    assert monitor.awake == 0.0
    other = neighbour(60.0)
    assert suspected(monitor, other) == []
    assert monitor.pause([other]) == HEARTBEAT
    clock.now += GRACE - 0.5
    beat(monitor)
    assert monitor.awake == GRACE - 0.5
    assert 0.5 < monitor.pause([other]) <= 0.7
    clock.now += 0.5
    assert suspected(monitor, other) == [other]


def test_after_an_outage_it_leaves_the_others_as_long_to_come_back(monitor, clock):
    """One came back at once, and the other's heartbeat had been due when the outage began."""
    monitor.connection_lost()
    clock.now += 0.5
    assert (monitor.awake, suspected(monitor, neighbour(60.0))) == (0.0, []), "nothing is known of the others"
    beat(monitor, 0.5)
    assert suspected(monitor, neighbour(60.0)) == []
    clock.now += GRACE
    beat(monitor)
    assert suspected(monitor, neighbour(60.0)) == [neighbour(60.0)]


def test_what_holds_its_registration_up_is_a_stall(clock):
    monitor = NeighbourMonitor(Rhythm(LEASE))
    monitor.begin()
    clock.now += GRACE
    monitor.registered()
    assert monitor.awake == clock.now
    beat(monitor)
    clock.now += GRACE + 0.1
    monitor.begin()
    monitor.registered()
    assert monitor.awake == 0.0


def test_a_process_that_was_declared_dead_had_stalled(monitor, clock):
    """A machine that was suspended: its own clock stood still, and shows nothing."""
    beat(monitor, 0.0, alive=False)
    monitor.registered()
    clock.now += 1.0
    assert monitor.awake == 1.0


def test_while_another_transaction_holds_its_row_it_is_not_overdue(monitor, clock):
    for _ in range(5):
        clock.now += GRACE - 0.1
        beat(monitor, 0.0, renewed=False)
        assert not monitor.overdue
    assert monitor.leisure == HEARTBEAT
    clock.now += GRACE + 0.1
    assert (monitor.overdue, monitor.leisure) == (True, 0.0)


def test_a_clock_that_was_set_back_is_no_stall(monitor, clock):
    beat(monitor, -3600.0)
    assert monitor.awake == clock.now


def test_a_longest_time_between_two_heartbeats():
    assert Rhythm(30.0, longest=1.0).heartbeat == 1.0
    assert Rhythm(7.0, longest=1.0).heartbeat == 0.5


def test_a_stall_is_measured_by_the_shortest_grace(clock):
    """With a lease of an hour this process may be silent for minutes, in which all were held up together."""
    monitor = NeighbourMonitor(Rhythm(10 * LEASE))
    beat(monitor)
    clock.now += 35.0
    monitor.begin()
    monitor.heard(HeartbeatReply(True, True, 35.0, False, (neighbour(35.0),), 1))
    assert suspected(monitor, neighbour(35.0)) == []
    assert monitor.awake == 0.0


def test_a_neighbour_that_is_known_to_live_has_several_leases(monitor):
    """Many processes on few processors are silent for long, and none of them is dead."""
    pid, start = os.getppid(), hosts.start_ticks(os.getppid())

    def here(silence, start=start):
        return Neighbour(1, pid, start, silence, LEASE, hosts.host_name())

    assert suspected(monitor, here(GRACE), here(LEASE + 1), here(HANGS * LEASE - 1)) == []
    assert monitor.pause([here(GRACE - 0.5)]) == HEARTBEAT, "there is nothing to look at when its grace ends"
    assert suspected(monitor, here(HANGS * LEASE + 1)) == [here(HANGS * LEASE + 1)], "it hangs"
    (suspect,) = monitor.suspects([here(0.0, start + 1)])
    assert suspect.gone, "another process has its number"


def test_a_neighbour_that_is_stopped_has_its_grace(monitor, wait_for):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            stopped = Neighbour(1, process.pid, hosts.start_ticks(process.pid), GRACE, LEASE, hosts.host_name())
            assert suspected(monitor, stopped) == []
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: hosts.is_stopped(process.pid))
            assert suspected(monitor, stopped) == [stopped]
        finally:
            process.kill()
