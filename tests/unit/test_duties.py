"""What a worker does now and then: one thing a turn, and whatever becomes of it, the others go on."""

import threading

import pytest

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, DatabaseUnavailable, StatementRefused
from fbtasks.feature import Duty, Every
from fbtasks.tasks.call import Said
from fbtasks.worker.duties import Duties


@pytest.fixture
def now(monkeypatch):
    moment = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: moment[0])
    return moment


def kept(duties, connect=None, wake=None):
    return Duties(duties, connect, wake)


class Scripted(Duty):
    """It is always due, and raises what it is given."""

    def __init__(self, name, *raises, while_draining=False, apart=False):
        self.name = name
        self.apart = apart
        self.raises = list(raises)
        self.while_draining = while_draining
        self.times = []
        self.said = []

    def due(self):
        return 0.0

    def do(self, session):
        self.times.append(clock.monotonic())
        if self.raises:
            raise self.raises.pop(0)
        return True

    def told(self, said):
        self.said.append(said.data)

    def finish(self, session):
        raise KeyError("left over")


def run(duties, turns, draining=False):
    return [duties.do(None, draining=draining) for _ in range(turns)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConflictError("held"), "Another transaction is in the way of one: held. It is tried again; all else goes on."),
        (StatementRefused("no."), "The database refuses one: no. It is tried again; all else goes on."),
        (KeyError("x"), "one raised KeyError: 'x'. It is tried again; all else goes on."),
    ],
)
def test_one_that_fails_is_left_alone_for_a_while_that_grows(now, caplog, error, said):
    bad, good = Scripted("one", error, error, error), Scripted("two")
    duties = kept([("", bad), ("", good)])
    began = now[0]
    for _ in range(40):
        run(duties, 2)
        now[0] += 0.1
    assert [round(moment - began, 1) for moment in bad.times[:4]] == [0.0, 0.2, 0.6, 1.4]
    assert len(good.times) > 30
    assert [record.getMessage() for record in caplog.records] == [said]
    assert bool(caplog.records[0].exc_info) == isinstance(error, KeyError)
    bad.raises.append(error)
    now[0] += 60
    run(duties, 2)
    assert len(caplog.records) == 2


def test_a_lost_connection_is_the_workers_business(now):
    with pytest.raises(DatabaseUnavailable):
        kept([("", Scripted("one", DatabaseUnavailable()))]).do(None, draining=False)


def test_some_are_done_while_a_worker_drains_too(now):
    first, second = Scripted("one"), Scripted("two", while_draining=True)
    duties = kept([("", first), ("", second)])
    assert run(duties, 2) == run(duties, 2, draining=True) == [True, True]
    assert (len(first.times), len(second.times)) == (1, 3)
    assert kept([("", first)]).due(draining=True) == float("inf")


def test_each_hears_what_was_said_to_its_feature_and_all_finish(now, caplog):
    first, second = Scripted("one"), Scripted("two")
    duties = kept([("a", first), ("b", second)])
    duties.tell(Said(1, 1, "b", b"x"))
    duties.tell(Said(1, 1, "c", b"y"))
    assert (first.said, second.said) == ([], [b"x"])
    duties.finish(None)
    assert len(caplog.records) == 2


def test_a_part_of_upkeep_comes_sooner_while_there_is_more(now):
    left, done = [True, True, False, False], []

    def part(session):
        done.append(now[0] - 1000)
        return left.pop(0)

    each = Every("forgetting", 600.0, part, feeds=True)
    duties = kept([("", each)])
    assert duties.pending()
    for _ in range(700):
        duties.do(None, draining=False)
        now[0] += 1
        if len(done) == 1:
            assert each.pending()
    assert done == [0, 1, 2, 602]
    assert not duties.pending()


def test_a_part_of_upkeep_that_meets_another_transaction_comes_again_in_a_minute(now):
    def part(session):
        raise ConflictError("held")

    each = Every("forgetting", 600.0, part)
    duties = kept([("", each)])
    duties.do(None, draining=False)
    assert duties.due(draining=False) == now[0] + 60


class Lent:
    """A session that is closed once."""

    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


def take_turn(duties, woken):
    """Begins a turn that is taken apart. Returns what the worker's thread sees of its end."""
    woken.clear()
    assert duties.do(None, draining=False) is False
    assert woken.wait(20)
    return duties.do(None, draining=True)


def test_what_becomes_of_a_turn_apart_is_seen_as_of_any_other(now, caplog):
    """Each turn has a session of its own. Its back-off grows, and a connection that it loses is not the worker's."""
    errors = [ConflictError("held"), DatabaseUnavailable("gone."), KeyError("x")]
    each, lent, woken = Scripted("one", *errors, apart=True), [], threading.Event()

    def connect():
        lent.append(Lent())
        return lent[-1]

    duties = kept([("", each)], connect, woken.set)
    for pause in (0.2, 0.4, 0.8):
        assert take_turn(duties, woken) is False
        assert duties.due(draining=False) == now[0] + pause
        assert duties.do(None, draining=False) is False
        now[0] += 60
    assert take_turn(duties, woken) is True
    assert duties.due(draining=False) == 0.0
    assert [session.closed for session in lent] == [1] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "Another transaction is in the way of one: held. It is tried again; all else goes on.",
        "The database is away from one: gone. It is tried again; all else goes on.",
        "one raised KeyError: 'x'. It is tried again; all else goes on.",
    ]
    assert caplog.records[2].exc_info


def test_a_turn_apart_cannot_begin_without_a_connection_or_a_thread(now, caplog, monkeypatch):
    def connect():
        raise DatabaseUnavailable("away.")

    each, woken = Scripted("one", apart=True), threading.Event()
    duties = kept([("", each)], connect, woken.set)
    assert take_turn(duties, woken) is False
    now[0] += 60

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert take_turn(duties, woken) is False
    assert each.times == []
    assert [record.getMessage() for record in caplog.records] == [
        "The database is away from one: away. It is tried again; all else goes on.",
        "one raised RuntimeError: can't start new thread. It is tried again; all else goes on.",
    ]


def test_a_turn_apart_is_not_due_while_it_is_under_way(now, caplog):
    go, woken = threading.Event(), threading.Event()
    each = Every("waiting", 600.0, lambda session: go.wait(20) and False, apart=True)
    other = Scripted("two")
    duties = kept([("", each), ("", other)], Lent, woken.set)
    run(duties, 4)
    assert (len(other.times), duties.under_way(), duties.pending()) == (3, ["waiting"], True)
    assert kept([("", each)]).due(draining=True) == duties.due(draining=True) == float("inf")
    duties.finish(None)
    assert "waiting has not ended; the worker ends without it." in caplog.text
    go.set()
    assert woken.wait(20)
    assert duties.due(draining=True) == 0.0
    duties.finish(None)
    assert duties.under_way() == []
