"""Polled tables: each shape, what is written back, and what keeps back itself alone."""

import math
import re
from contextlib import ExitStack, closing, contextmanager
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from firebird.driver import TPB, Isolation, TableAccessMode, TableShareMode
from support.clocks import stopped
from support.draining import drain
from support.duties import Worker
from support.polls import Poller, fill
from support.programs import command_line
from support.sources import apply, diff, inspected, listed, register
from support.sql import NOW, execute, one, rows
from support.users import with_role
from support.variants import slow
from support.waking import listening

from fbtasks import FBTasks, testing
from fbtasks.errors import ConfigurationError
from fbtasks.features.queues import store as limits
from fbtasks.features.sources import duty as looking
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.duty import Polling
from fbtasks.features.sources.feeds import poll_source
from fbtasks.features.sources.store import polling
from fbtasks.firebird.session import READ, UPDATE
from fbtasks.queue import results, tasks
from fbtasks.queue.operations import workers
from fbtasks.tasks.call import Failed

pytestmark = pytest.mark.emptied

STATUS = {"status": "S", "ready": "R", "taken": "T", "done": "D", "failed": "E"}
NAMED = {name: value for name, value in STATUS.items() if name != "taken"}
INBOX = "CREATE TABLE INBOX (ID INTEGER NOT NULL PRIMARY KEY, S VARCHAR(30), DATA VARCHAR(20), ERR VARCHAR(20))"
BARE = "CREATE TABLE INBOX (ID INTEGER, S VARCHAR(30), DATA VARCHAR(20), ERR VARCHAR(20))"
SHAPES = {
    "ids and status": (INBOX, {**STATUS, "error": "ERR"}),
    "ids, no status": (INBOX, {}),
    "sequence and status": (BARE, {"sequence": "ID", **STATUS, "error": "ERR"}),
    "sequence, no status": (BARE, {"sequence": "ID"}),
    "ids, hard delete": (INBOX, {"delete": True, "error": "ERR"}),
    "sequence, hard delete": (BARE, {"sequence": "ID", "delete": True, "error": "ERR"}),
    "no ids, hard delete": (BARE, {"delete": True}),
    "no ids, wide status": (BARE, {**NAMED, "error": "ERR"}),
}
WITH_RIGHTS_OF_OTHERS = [
    "ids, no status", "sequence and status", "ids, hard delete", "sequence, hard delete", "no ids, wide status"
]  # fmt: skip
"""Shapes that need the rights of another one, but for what they write."""
COUNT = 7


class Handler:
    """Takes rows down by their DATA, and fails for those that it is told."""

    def __init__(self):
        self.seen = []
        self.bad = set()

    def handle(self, row):
        self.seen.append(row.values["DATA"])
        if row.values["DATA"] in self.bad:
            raise ValueError(f"{row.values['DATA']} is bad, and this is too long")


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def stop_clock(monkeypatch):
    """Has looks go by a clock that stands still from then on, which nothing but a look can bear."""

    return lambda: stopped(monkeypatch, looking)


@pytest.fixture
def clock(stop_clock):
    return stop_clock()


def polls(app, handler, **options):
    """The task, without tries after the first."""
    options = {"columns": ("DATA",), "max_retries": 0, "name": "handle", **options}
    return app.poll_table("INBOX", **options)(handler.handle)


def insert(*numbers, status="R"):
    return [f"INSERT INTO INBOX (ID, S, DATA) VALUES ({n}, '{status}', 'd{n}')" for n in numbers]


def poller_of(app, handler, *numbers, **options):
    """Of a table that has rows with these ids."""
    fill(app, INBOX, *insert(*numbers))
    return Poller(app, polls(app, handler, **options))


def statuses(app):
    return dict(rows(app, "SELECT DATA, TRIM(S) FROM INBOX"))


def live(app):
    return sorted(number for (number,) in rows(app, "SELECT ID FROM QUEUE_TASK"))


@contextmanager
def transaction(app, *statements):
    """A transaction of another connection, which is open in the block; the block gets the connection."""
    with closing(app.connect()) as connection:
        for statement in statements:
            connection.execute_immediate(statement)
        yield connection
        if connection.main_transaction.is_active():
            connection.rollback()


def nothing_left(app):
    assert rows(app, "SELECT * FROM QUEUE_NOTE") == rows(app, "SELECT * FROM QUEUE_TASK") == []


def locked(app, number):
    """Another transaction has changed the row, and not ended."""
    return transaction(app, f"UPDATE INBOX SET ERR = 'mine' WHERE ID = {number}")


TELLING = ["ids and status", "sequence, no status", "no ids, hard delete"]
"""One of each way in which rows are known, and of each in which it is known what became of them."""


@pytest.fixture(params=[shape if shape in TELLING else slow(shape) for shape in SHAPES])
def shape(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_becomes_one_task_and_shows_what_became_of_it(app, handler, shape):
    ddl, options = SHAPES[shape]
    fill(app, ddl, *insert(*range(COUNT)))
    handler.bad = {"d3"}
    polls(app, handler, **options)
    drain(app)
    drain(app)
    assert sorted(handler.seen) == [f"d{n}" for n in range(COUNT)]
    fill(app, *insert(100))
    drain(app)
    assert handler.seen[COUNT:] == ["d100"]
    assert [each.taken for each in inspected(app)] == [COUNT + 1]
    everything = [f"d{n}" for n in (*range(COUNT), 100)]
    if "hard delete" in shape:
        assert list(statuses(app)) == ([] if shape.startswith("no ids") else ["d3"])
    elif "no status" in shape:
        assert statuses(app) == dict.fromkeys(everything, "R")
    else:
        assert statuses(app) == {name: "E" if name == "d3" else "D" for name in everything}
    if "error" in options:
        assert rows(app, "SELECT DATA, ERR FROM INBOX WHERE ERR IS NOT NULL") == [("d3", "ValueError: d3 is ba")]
    nothing_left(app)
    assert rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []


@pytest.mark.parametrize("shape", ["ids and status", "sequence and status", "no ids, wide status"])
def test_what_has_a_status_may_be_deleted_when_it_is_done(app, handler, shape):
    ddl, options = SHAPES[shape]
    fill(app, ddl, *insert(1, 2, 3))
    handler.bad = {"d2"}
    polls(app, handler, **{name: value for name, value in options.items() if name != "done"}, delete=True)
    drain(app)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d2", "d3"]
    assert rows(app, "SELECT DATA, S, ERR FROM INBOX") == [("d2", "E", "ValueError: d2 is ba")]
    nothing_left(app)


def test_a_failed_one_is_run_again_on_request(app, handler, shape):
    ddl, options = SHAPES[shape]
    fill(app, ddl, *insert(1, 2))
    handler.bad = {"d2"}
    poller = Poller(app, polls(app, handler, **options))
    drain(app)
    handler.bad = set()
    assert poller.retry(one(app, "SELECT ID FROM QUEUE_HISTORY"))
    drain(app)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d2", "d2"]
    if options.get("taken"):
        assert statuses(app) == {"d1": "D", "d2": "D"}
        assert rows(app, "SELECT ERR FROM INBOX") == [(None,), (None,)]
    if "hard delete" in shape:
        assert statuses(app) == {}
    nothing_left(app)


def test_a_retry_is_cancelled_when_the_row_is_another_one_now(app, handler):
    handler.bad = {"d1", "d2"}
    poller = poller_of(app, handler, 1, 2, **STATUS)
    drain(app)
    fill(app, "UPDATE INBOX SET S = 'X' WHERE ID = 1", "DELETE FROM INBOX WHERE ID = 2")
    handler.seen.clear()
    numbers = [number for (number,) in rows(app, "SELECT ID FROM QUEUE_HISTORY")]
    for number in numbers:
        assert poller.retry(number)
    drain(app)
    assert (handler.seen, statuses(app)) == ([], {"d1": "X"})
    said = rows(app, "SELECT STATE, CAST(ERROR_MSG AS VARCHAR(100)) FROM QUEUE_HISTORY")
    assert said == [(12, "not run again: its row is gone, or its status was changed")] * 2
    assert rows(app, "SELECT * FROM QUEUE_NOTE") == rows(app, "SELECT * FROM QUEUE_GATE") == []


def test_a_retry_waits_while_the_row_is_another_task(app, handler):
    handler.bad = {"d1"}
    poller = poller_of(app, handler, 1, **STATUS)
    drain(app)
    fill(app, "UPDATE INBOX SET S = 'R'")
    assert poller.look().made == 1
    assert poller.retry(one(app, "SELECT ID FROM QUEUE_HISTORY"))
    poller.look()
    assert poller.look() == polling.Looked(room=99)  # one is ready
    handler.bad = set()
    drain(app)
    assert (handler.seen, statuses(app)) == (["d1", "d1"], {"d1": "D"})
    assert rows(app, "SELECT STATE FROM QUEUE_HISTORY") == [(12,)]
    assert rows(app, "SELECT * FROM QUEUE_NOTE") == []


def test_a_row_has_one_live_task_whatever_its_status_says_and_another_status_stays(app, handler):
    poller = poller_of(app, handler, 1, 2, **STATUS)
    assert poller.look().made == 2
    fill(app, "UPDATE INBOX SET S = IIF(ID = 1, 'R', 'X')")
    assert poller.look().made == 0
    drain(app)
    assert handler.seen == ["d1", "d2", "d1"]  # one after the other: it was ready again
    assert statuses(app) == {"d1": "D", "d2": "X"}
    assert rows(app, "SELECT * FROM QUEUE_GATE") == []


def test_a_task_that_is_cancelled_or_deleted_has_failed(app, session, handler):
    poller = poller_of(app, handler, 1, 2, 3, 4, **STATUS, error="ERR")
    poller.look(room=1)
    session.run(lambda t: tasks.revoke(t, live(app)[0]))
    assert poller.look(room=1)[:3] == (1, 1, 0)
    assert session.call("FBTASKS_OPERATOR.PURGE", "default", 200) == 1
    poller.look(room=1)
    execute(app, "DELETE FROM QUEUE_TASK")
    drain(app)
    assert handler.seen == ["d4"]
    found = rows(app, "SELECT S, ERR FROM INBOX ORDER BY ID")
    deleted = "its task was deleted"
    assert found == [("E", "cancelled on request"), ("E", deleted), ("E", deleted), ("D", None)]


@pytest.mark.parametrize("then", ["FBTASKS_OPERATOR.RETRY", "FBTASKS_READER.DISMISS"])
def test_a_cancelled_one_that_is_retried_or_discarded_before_its_end_was_written(app, session, handler, then):
    poller = poller_of(app, handler, 1, **STATUS)
    poller.look()
    (number,) = live(app)
    session.run(lambda t: tasks.revoke(t, number))
    session.call(then, number)
    assert statuses(app) == {"d1": "T"}
    drain(app)
    assert (handler.seen, statuses(app)) == ((["d1"], {"d1": "D"}) if "RETRY" in then else ([], {"d1": "E"}))
    nothing_left(app)


@pytest.mark.parametrize(
    "taken", ["ids and status", "sequence and status", "no ids, hard delete", "no ids, wide status"]
)
def test_a_row_that_is_locked_is_taken_later(app, handler, taken):
    ddl, options = SHAPES[taken]
    fill(app, ddl, *insert(1, 2, 3))
    poller = Poller(app, polls(app, handler, **options))
    with locked(app, 2) as other:
        assert poller.look() == polling.Looked(made=2, room=100)
        assert poller.look().made == 0
        other.rollback()
        assert poller.look().made == 1


@pytest.mark.parametrize("ended", ["ids and status", "ids, hard delete", "no ids, wide status"])
def test_the_end_of_a_row_that_is_locked_is_written_later(app, handler, ended):
    ddl, options = SHAPES[ended]
    fill(app, ddl, *insert(1, 2, 3))
    poller = Poller(app, polls(app, handler, **options))
    assert poller.look().made == 3
    done = {} if "delete" in ended else {"d1": "D", "d2": "D", "d3": "D"}
    with locked(app, 2) as other:
        drain(app)
        assert sorted(handler.seen) == ["d1", "d2", "d3"]
        found = statuses(app)
        held = found.pop("d2")
        assert held == ("R" if "delete" in ended else held)
        assert found == {name: value for name, value in done.items() if name != "d2"}
        assert poller.anything()
        assert poller.look() == polling.Looked(bad=1, room=100)
        other.rollback()
        assert poller.look() == polling.Looked(settled=1, room=100)
        assert not poller.anything()
    assert statuses(app) == done
    drain(app)
    assert len(handler.seen) == 3


@pytest.mark.parametrize("late", ["ids, no status", "sequence, no status"])
def test_what_is_committed_late_is_found_once(app, handler, late):
    ddl, options = SHAPES[late]
    fill(app, ddl)
    polls(app, handler, **options)
    with transaction(app, *insert(1, 2)) as early, transaction(app, *insert(4)) as later:
        fill(app, *insert(3, 5))
        drain(app)
        assert handler.seen == ["d3", "d5"]
        later.commit()
        drain(app)
        assert handler.seen == ["d3", "d5", "d4"]
        early.commit()
        drain(app)
    assert sorted(handler.seen) == ["d1", "d2", "d3", "d4", "d5"]
    fill(app, *insert(6))
    drain(app)
    drain(app)
    assert handler.seen[5:] == ["d6"]


@pytest.mark.parametrize("late", ["ids, no status", "sequence, no status"])
def test_what_is_prepared_may_still_come(app, handler, late):
    """Neither active nor committed, for as long as a two-phase commit takes."""
    ddl, options = SHAPES[late]
    fill(app, ddl)
    polls(app, handler, **options)
    with transaction(app, *insert(1)) as early:
        early.main_transaction._tra.prepare()
        for number in (2, 3):
            fill(app, *insert(number))
            drain(app)
        early.commit()
    fill(app, *insert(4))
    drain(app)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d2", "d3", "d4"]


KEYS = {"a number": INBOX, "a text": INBOX.replace("ID INTEGER", "ID VARCHAR(10)")}


@pytest.mark.parametrize("key", KEYS)
def test_rows_that_are_gone_are_forgotten_some_at_a_time(app, handler, key, monkeypatch):
    monkeypatch.setattr(polling, "SWEPT", 3)
    fill(app, KEYS[key], *insert(*range(10)))
    poller = Poller(app, polls(app, handler))
    drain(app)
    poller.look(sweep=True)
    assert marks(app) == (10, 0 if key == "a number" else 10)
    with transaction(app, "DELETE FROM INBOX WHERE ID < '5'") as other:
        for _ in range(5):
            poller.look(sweep=True)
        assert marks(app)[0] == 10  # not committed
        other.commit()
    left = []
    for _ in range(5):
        poller.look(sweep=True)
        left.append(marks(app)[0])
    assert left[-1] == 5
    assert all(before - after <= 3 for before, after in pairwise([10, *left]))  # a few each time
    assert marks(app) == (5, 0 if key == "a number" else 5)
    fill(app, *insert(3))  # a new row with a former key
    drain(app)
    assert sorted(handler.seen) == sorted([*(f"d{n}" for n in range(10)), "d3"])


def marks(app):
    return one(app, "SELECT COUNT(*) FROM QUEUE_GATE"), one(app, "SELECT COUNT(*) FROM QUEUE_POLL_KEY")


def test_a_failed_row_that_was_deleted_by_hand_is_forgotten(app, handler):
    handler.bad = {"d1", "d2"}
    poller = poller_of(app, handler, 1, 2, delete=True)
    drain(app)
    fill(app, "DELETE FROM INBOX WHERE ID = 1")
    poller.look(sweep=True)
    assert rows(app, "SELECT LANE FROM QUEUE_GATE") == [(2,)]
    numbers = [number for (number,) in rows(app, "SELECT ID FROM QUEUE_HISTORY")]
    assert [poller.retry(number) for number in numbers] == [True, True]
    handler.bad = set()
    drain(app)
    assert rows(app, "SELECT COUNT(*) FROM INBOX") == [(0,)]
    assert marks(app) == (0, 0)


def test_a_worker_forgets_rows_that_are_gone_once_a_minute(app, session, handler, stop_clock):
    fill(app, INBOX, *insert(1, 2))
    polls(app, handler)
    drain(app)
    clock = stop_clock()
    polled = Polling(app, Worker())
    polled.look(session, 1)
    fill(app, "DELETE FROM INBOX WHERE ID = 1")
    counts = []
    for _ in range(8):
        clock.now += 10
        polled.look(session, 1)
        counts.append(marks(app)[0])
    assert counts == [2, 2, 2, 2, 2, 1, 1, 1]


def test_a_missing_number_is_looked_for_as_long_as_it_may_come(app, handler):
    fill(app, BARE)
    poller = Poller(app, polls(app, handler, sequence="ID"))
    with transaction(app, "INSERT INTO INBOX (ID) VALUES (-100)"):  # begun before the look that finds 1 and 5 missing
        fill(app, *insert(2, 3, 4, 6))
        assert poller.look().made == 4
        for _ in range(3):
            assert poller.look().made == 0
        assert gaps(app) == [(1, None), (5, 5)]
    poller.look()
    assert gaps(app) == []
    fill(app, *insert(5, 7))  # too late: it was drawn by a transaction that has ended
    assert poller.look().made == 1
    assert one(app, "SELECT LAST_LANE FROM QUEUE_DISPATCH WHERE SUBSCRIPTION_ID > 0") == 7


def gaps(app):
    """The missing numbers; of those below the first the last one."""
    found = rows(app, "SELECT LANE, LAST_LANE FROM QUEUE_GAP ORDER BY LANE")
    return [(last, None) if first < -100 else (first, last) for first, last in found]


def test_a_range_of_missing_numbers_is_split_by_those_that_come(app, handler):
    fill(app, BARE)
    poller = Poller(app, polls(app, handler, sequence="ID"))
    with transaction(app, *insert(50)) as other:
        fill(app, *insert(100))
        poller.look()
        fill(app, *insert(10, 20))
        assert [poller.look(room=2).made, poller.look(room=3).made] == [1, 1]
        assert gaps(app) == [(9, None), (11, 19), (21, 99)]
        other.commit()
    assert poller.look().made == 1
    poller.look()
    assert gaps(app) == []


def test_rows_are_taken_in_their_order_as_far_as_there_is_room(app, handler):
    fill(app, INBOX, *insert(3, 1, 2), "UPDATE INBOX SET ERR = 'z' WHERE ID = 1")
    poller = Poller(app, polls(app, handler, **STATUS, order_by=("ERR", "ID"), when="DATA <> 'd9' -- not that"))
    fill(app, *insert(9))
    assert poller.look(room=2) == polling.Looked(made=2, room=2)
    assert statuses(app) == {"d1": "R", "d2": "T", "d3": "T", "d9": "R"}
    assert poller.look(room=3) == polling.Looked(made=1, room=1)  # two of three are ready already
    assert not poller.anything()


def test_a_queue_with_a_limit_has_no_more_tasks_than_places(app, session, handler):
    fill(app, INBOX, *insert(*range(9)))
    app.queue("default", max_length=3, when_full="reject")
    load = app.task(name="load")(lambda: None)
    load.delay()
    poller = Poller(app, polls(app, handler, **STATUS))
    assert poller.look() == polling.Looked(made=2, room=2)
    assert poller.look() == polling.Looked(room=0)
    drain(app)
    assert len(handler.seen) == 9
    assert all(each.places_are_right for each in limits.policies(session))


def minutes_from_now(app, begin, end):
    with app.database.session() as session:
        now = results.now(session)
    return tuple(f"{now + timedelta(minutes=each):%H:%M}" for each in (begin, end))


def test_a_closed_queue_takes_no_rows_and_goes_on_when_it_opens(app, session, handler):
    fill(app, INBOX, *insert(1))
    app.queue("default", run_between=minutes_from_now(app, -60, 60), tz="UTC")
    poller = Poller(app, polls(app, handler, **STATUS))
    drain(app)
    assert handler.seen == ["d1"]
    fill(app, *insert(2))
    poller.look(room=1)
    (number,) = live(app)
    fill(app, *insert(3))
    close = f"OPEN_TIME = DATEADD(1 HOUR TO {NOW}), CLOSE_TIME = DATEADD(2 HOUR TO {NOW})"
    fill(app, f"UPDATE QUEUE_SHIFT SET {close}")
    assert poller.look() == polling.Looked()
    session.run(lambda t: tasks.revoke(t, number))
    assert poller.waits()[:2] == (1, 0)
    assert poller.look() == polling.Looked(settled=1)  # ends are written all the same
    assert poller.waits()[:2] == (0, 0)  # what waits is not looked at before it opens
    assert statuses(app) == {"d1": "D", "d2": "E", "d3": "R"}
    fill(app, f"UPDATE QUEUE_SHIFT SET OPEN_TIME = DATEADD(-1 HOUR TO {NOW})")
    drain(app)
    assert statuses(app) == {"d1": "D", "d2": "E", "d3": "D"}


def test_a_closed_task_takes_no_rows_and_goes_on_when_it_opens(app, session, handler, monkeypatch, clock):
    fill(app, INBOX, *insert(1, 2))
    polls(app, handler, **STATUS, run_between=minutes_from_now(app, 120, 240), tz="UTC")
    polled = Polling(app, Worker())
    assert polled.look(session, 5) == 0
    assert statuses(app) == {"d1": "R", "d2": "R"}
    clock.now += 30
    now = results.now(session)
    monkeypatch.setattr(looking.results, "now", lambda session: now + timedelta(hours=3))
    assert polled.look(session, 5) == 0  # the database's clock is asked once a minute
    clock.now += 31
    assert polled.look(session, 5) == 2


def test_the_end_of_a_polled_row_wakes_no_worker(app, claim, end, handler):
    fill(app, INBOX, *insert(1, 2, 3))
    poller = Poller(app, polls(app, handler, **STATUS))
    poller.look(room=2)
    done, failed = claim()
    with listening(app) as wakes:
        assert not wakes(end, [done])
        assert not wakes(end, [failed], Failed("builtins.ValueError", "no"))
        assert wakes(poller.look)  # there is a new row


def test_one_worker_looks_at_a_time(app, handler):
    poller = poller_of(app, handler, 1, **STATUS)
    with app.database.session() as session, session.transaction(UPDATE) as held:
        assert held.rows("FBTASKS_POLLS.BEGIN_POLL", poller.id, 1, 1) == [(1, 0, 0)]
        assert poller.look() == polling.Looked(missed=True)
    assert poller.look().made == 1


def test_a_paused_poll_takes_nothing_and_writes_ends(app, handler):
    poller = poller_of(app, handler, 1, **STATUS)
    poller.look()
    fill(app, "UPDATE QUEUE_SUBSCRIPTION SET STATE = 'paused'", *insert(2))
    drain(app)
    assert statuses(app) == {"d1": "D", "d2": "R"}


def test_a_row_that_cannot_be_taken_keeps_back_itself_alone(app, session, handler):
    refuses = (
        "CREATE TRIGGER REFUSES FOR INBOX BEFORE UPDATE AS BEGIN "
        "IF (NEW.ID IN (1, 2) AND NEW.S = IIF(NEW.ID = 1, 'T', 'D')) THEN EXCEPTION NOT_NOW; END"
    )
    fill(app, INBOX, "CREATE EXCEPTION NOT_NOW 'not on a Sunday'", refuses, *insert(1, 2, 3))
    poller = Poller(app, polls(app, handler, **STATUS))
    found = poller.look()
    assert (found.made, found.bad) == (2, 1)
    assert "not on a Sunday" in found.error
    drain(app)
    assert sorted(handler.seen) == ["d2", "d3"]
    assert statuses(app) == {"d1": "R", "d2": "T", "d3": "D"}
    (failing,) = rows(app, "SELECT CAST(ERROR_MSG AS VARCHAR(1000)) FROM QUEUE_POLL_FAILURE")
    assert "not on a Sunday" in failing[0]
    (told,) = polling.failing(session)
    assert (told.task, told.table) == ("handle", "INBOX")
    assert [each.what for each in workers.get_health(app.database, 300).problems["sources"]] == [
        "polling INBOX for handle fails"
    ]
    fill(app, "DROP TRIGGER REFUSES")
    drain(app)
    assert statuses(app) == {"d1": "D", "d2": "D", "d3": "D"}
    assert rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []


BAD = "_OCTETS x'61FF22'"


def with_a_bad_text(ddl):
    """A table whose texts say not in which character set they are; the one of row 2 is in no UTF-8."""
    column = "A VARCHAR(10) CHARACTER SET NONE, "
    return (
        ddl.replace("DATA VARCHAR", column + "DATA VARCHAR"),
        *(
            f"INSERT INTO INBOX (ID, S, DATA, A) VALUES ({n}, 'R', 'd{n}', {BAD if n == 2 else 'NULL'})"
            for n in (1, 2, 3)
        ),
    )


def test_a_row_that_cannot_be_read_fails_alone(app, handler, shape):
    ddl, options = SHAPES[shape]
    fill(app, *with_a_bad_text(ddl))
    poller = Poller(app, polls(app, handler, **options, columns=("DATA", "A"), charset="UTF8"))
    drain(app)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d3"]
    found = rows(
        app, "SELECT NAME, STATE, CAST(ERROR_MSG AS VARCHAR(200)), CAST(PAYLOAD AS VARCHAR(300)) FROM QUEUE_HISTORY"
    )
    ((name, state, said, payload),) = found
    key = "none" if shape.startswith("no ids") else "ID=2"
    assert (name, state) == ("handle", 11)
    assert said == f"a row of 'INBOX' cannot be read (key: {key}): Malformed string"
    assert '"A":{"__type__":"base64","__value__":"Yf8i"}' in payload  # also of a row that is deleted nothing is lost
    if "and status" in shape or "wide status" in shape:
        assert rows(app, "SELECT TRIM(S), ERR FROM INBOX WHERE ID = 2") == [("E", "SerializationError: ")]
    elif shape in ("ids, hard delete", "sequence, hard delete"):
        assert rows(app, "SELECT DATA, ERR FROM INBOX") == [("d2", "SerializationError: ")]
    assert poller.look() == polling.Looked(room=100)
    assert rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []


def test_a_text_that_the_named_character_set_does_not_have_fails_its_row_alone(app, handler):
    fill(app, INBOX.replace("DATA VARCHAR", "A VARCHAR(10) CHARACTER SET NONE, DATA VARCHAR"), *insert(1, 2, 3))
    fill(app, "UPDATE INBOX SET A = IIF(ID = 2, _OCTETS x'C3A4', 'a')")
    polls(app, handler, **STATUS, columns=("DATA", "A"), charset="ASCII")
    drain(app)
    drain(app)
    assert (sorted(handler.seen), statuses(app)) == (["d1", "d3"], {"d1": "D", "d2": "E", "d3": "D"})
    ((said,),) = rows(app, "SELECT CAST(ERROR_MSG AS VARCHAR(200)) FROM QUEUE_HISTORY")
    assert said.startswith("a row of 'INBOX' cannot be read (key: ID=2): ")


def test_a_key_that_cannot_be_read_fails_its_row_alone(app, handler):
    fill(app, *with_a_bad_text(BARE))
    fill(app, "UPDATE INBOX SET A = ID WHERE A IS NULL")
    polls(app, handler, key="A", charset="UTF8", error="ERR")
    drain(app)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d3"]
    (said,) = rows(app, "SELECT CAST(ERROR_MSG AS VARCHAR(200)) FROM QUEUE_HISTORY")
    assert said == ("a row of 'INBOX' cannot be read (key: A=b'a\\xff\"'): Malformed string",)
    assert rows(app, "SELECT ID FROM INBOX WHERE ERR IS NOT NULL") == [(2,)]  # found by the bytes of its key


def test_a_date_beyond_the_calendar_fails_its_row_alone(app, handler):
    """The engine stores none, but may compute one: years go from 1 to 9999 there as they do in Python."""
    late = "T TIMESTAMP WITH TIME ZONE, DUE COMPUTED BY (DATEADD(ID YEAR TO DATE '9000-01-01'))"
    fill(app, INBOX.replace("DATA VARCHAR(20)", f"DATA VARCHAR(20), {late}"), *insert(-8999, -9000, 999, 1000))
    fill(app, "UPDATE INBOX SET T = TIMESTAMP '0001-01-01 00:00:00 -14:00'")
    seen = []
    options = {**STATUS, "columns": ("DATA", "DUE", "T"), "error": "ERR", "max_retries": 0, "name": "handle"}
    app.poll_table("INBOX", **options)(lambda row: seen.append((row.values["DUE"], row.values["T"].year)))
    drain(app)
    drain(app)
    assert sorted(seen) == [(date(1, 1, 1), 1), (date(9999, 1, 1), 1)]
    assert statuses(app) == {"d-8999": "D", "d999": "D", "d-9000": "E", "d1000": "E"}
    said = sorted(each for (each,) in rows(app, "SELECT CAST(ERROR_MSG AS VARCHAR(300)) FROM QUEUE_HISTORY"))
    assert said == [
        f"a row of 'INBOX' cannot be read (key: ID={number}): value exceeds the range for valid dates"
        for number in (-9000, 1000)
    ]
    assert rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []


def test_the_widest_values_arrive(app, handler):
    fill(
        app, INBOX.replace("DATA VARCHAR(20)", "DATA VARCHAR(20), T TIMESTAMP WITH TIME ZONE, D DECFLOAT(34), N INT128")
    )
    fill(app, *insert(1, 2, 3))
    fill(
        app,
        "UPDATE INBOX SET T = TIMESTAMP '9999-12-31 11:59:59 -12:00', D = 1E6144",
        "UPDATE INBOX SET N = 170141183460469231731687303715884105727",
    )
    seen = []
    app.poll_table("INBOX", **STATUS, columns=("T", "D", "N"), name="all")(lambda row: seen.append(row.values["N"]))
    drain(app)
    assert seen == [170141183460469231731687303715884105727] * 3
    assert set(rows(app, "SELECT S FROM INBOX")) == {("D",)}


def test_a_table_that_was_altered_meanwhile_fails_no_row(app, session, handler, monkeypatch, clock):
    fill(app, BARE, *insert(1))
    polls(app, handler, sequence="ID")
    polled = Polling(app, Worker())
    assert polled.look(session, 5) == 1
    fill(app, "ALTER TABLE INBOX ALTER DATA TYPE VARCHAR(500)", *insert(2), f"UPDATE INBOX SET DATA = '{'x' * 400}'")
    made = 0
    for _ in range(3):
        clock.now += 100
        made += polled.look(session, 5)
    assert made == 1
    monkeypatch.undo()
    drain(app)
    assert handler.seen == ["d1", "x" * 400]
    assert rows(app, "SELECT * FROM QUEUE_HISTORY") == []


def test_a_status_column_that_becomes_too_narrow_is_said_by_name(url, app, session, handler, caplog, capsys):
    fill(app, INBOX, *insert(1))
    polls(app, handler, **{**STATUS, "taken": "TAKEN"})
    drain(app)
    fill(app, "ALTER TABLE INBOX DROP S")
    fill(app, "ALTER TABLE INBOX ADD S VARCHAR(3)", "UPDATE INBOX SET S = 'R'")
    polled = Polling(app, Worker())
    polled.look(session, 5)
    polled.look(session, 5)
    said = "the status column 'S' of 'INBOX' has 3 characters: taken='TAKEN' is too long for it."
    assert said in caplog.text
    assert command_line("inspect", "sources", "--url", url) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert statuses(app) == {"d1": "R"}


def test_a_table_that_is_locked_is_left_alone_and_said_after_a_while(app, handler, clock, caplog):
    fill(app, INBOX, *insert(1))
    polls(app, handler, **STATUS, every=(0.1, 2))
    polled = Polling(app, Worker())
    reserved = TPB(isolation=Isolation.SNAPSHOT)
    reserved.reserve_table("INBOX", TableShareMode.PROTECTED, TableAccessMode.LOCK_WRITE)
    with app.database.session() as session, closing(app.connect()) as other:
        polled.look(session, 0)
        with closing(other.transaction_manager(reserved.get_buffer())) as transaction:
            transaction.begin()
            began, pauses = clock.now, []
            while clock.now < began + 30:
                assert polled.look(session, 5) == 0
                pauses.append(due(polled, 5) - clock.now)
                clock.now = due(polled, 5)
                if clock.now < began + 9:
                    assert "fails" not in caplog.text
        assert pauses[-1] == pytest.approx(2)
        assert (
            caplog.text.count("Polling INBOX for handle fails: another transaction has it locked: lock conflict") == 1
        )
        assert "col:" not in caplog.text
        assert [each.task for each in polling.failing(session)] == ["handle"]
        assert polled.look(session, 5) == 1
        assert polling.failing(session) == []


def test_keys_of_other_types_lead_back_to_their_rows(app, session, handler):
    ddl = (
        "CREATE TABLE INBOX (A VARCHAR(10) CHARACTER SET WIN1252, B NUMERIC(9, 2), C DATE, S VARCHAR(1), "
        "DATA VARCHAR(20), ERR VARCHAR(100) CHARACTER SET WIN1252)"
    )
    keys = [("it's ä\"", 1.5, "2026-01-02"), ("b", -3, "1999-12-31"), ("b", -3, "2000-01-01")]
    fill(app, ddl)
    for number, key in enumerate(keys):
        execute(app, "INSERT INTO INBOX (A, B, C, S, DATA) VALUES (?, ?, ?, 'R', ?)", *key, f"d{number}")
    seen = []

    def handle(row):
        seen.append(dict(row.key))
        if row.values["DATA"] == "d2":
            raise ValueError("ein Żółw")  # which the column's character set does not have

    task = app.poll_table(
        "INBOX", key=("A", "B", "C"), columns="DATA", **STATUS, error="ERR", max_retries=0, name="handle"
    )(handle)
    poller = Poller(app, task)
    drain(app)
    assert {"A": "it's ä\"", "B": Decimal("1.50"), "C": date(2026, 1, 2)} in seen
    assert statuses(app) == {"d0": "D", "d1": "D", "d2": "E"}
    (said,) = rows(app, "SELECT ERR FROM INBOX WHERE S = 'E'")
    number = one(app, "SELECT ID FROM QUEUE_HISTORY")
    assert said == ("ValueError: ein ?ó?w",)
    assert len(rows(app, "SELECT * FROM QUEUE_POLL_KEY")) == 3
    assert poller.retry(number)
    drain(app)
    assert len(seen) == 4
    assert statuses(app)["d2"] == "E"
    session.call("FBTASKS_READER.DISMISS", number)
    drain(app)
    assert rows(app, "SELECT * FROM QUEUE_POLL_KEY") == []


def test_long_rows_arrive_whole(app):
    fill(app, "CREATE TABLE INBOX (ID INTEGER NOT NULL PRIMARY KEY, A VARCHAR(8000), B VARCHAR(8000))")
    lengths = [(1, 900, 900), (2, 1200, 1200), (3, 8000, 8000), (4, 0, 0)]
    for number, a, b in lengths:
        execute(app, "INSERT INTO INBOX VALUES (?, ?, ?)", number, "ü" * a, '"' * b)
    seen = {}

    @app.poll_table("INBOX", columns=("A", "B"), max_retries=0)
    def handle(row):
        seen[row.key["ID"]] = row.values["A"], row.values["B"]

    drain(app)
    assert seen == {number: ("ü" * a, '"' * b) for number, a, b in lengths}


def test_options_of_tasks_hold(app, session, handler):
    fill(app, INBOX, *insert(1))
    task = polls(app, handler, **STATUS, queue="mail", priority=7, expires=60)
    looked = Polling(app, Worker(("mail",))).look(session, 5)
    assert looked == 1
    (found,) = rows(app, "SELECT QUEUE, PRIORITY, DATEDIFF(SECOND FROM START_TIME TO EXPIRE_TIME) FROM QUEUE_TASK")
    assert found == ("mail", 7, 60)
    assert not Polling(app, Worker())
    drain(app)
    assert (task.name, handler.seen) == ("handle", ["d1"])


def test_a_try_that_fails_keeps_the_row_taken(app, handler):
    fill(app, INBOX, *insert(1))
    handler.bad = {"d1"}
    polls(app, handler, **STATUS, max_retries=1, default_retry_delay=3600, autoretry_for=[ValueError])
    drain(app)
    assert (handler.seen, statuses(app)) == (["d1"], {"d1": "T"})
    assert rows(app, "SELECT STATE, TRY_COUNT FROM QUEUE_TASK") == [(1, 1)]


def test_operators_pause_and_drop_a_poll_as_other_subscriptions(app, handler):
    fill(app, INBOX, *insert(1))
    task = polls(app, handler, key=("DATA",), error="ERR")
    fill(app, "ALTER TABLE INBOX ALTER DATA SET NOT NULL")
    handler.bad = {"d1"}
    drain(app)
    assert subscriptions.pause(app.database, [task.name]) == [task.name]
    fill(app, *insert(2))
    drain(app)
    assert handler.seen == ["d1"]
    assert subscriptions.resume(app.database, [task.name]) == [task.name]
    drain(app)
    assert handler.seen == ["d1", "d2"]
    assert workers.get_health(app.database, 300).problems["sources"] == []
    (dropped,) = subscriptions.drop(app.database, [task.name])
    assert dropped.gone
    assert rows(app, "SELECT * FROM QUEUE_POLL_KEY") == rows(app, "SELECT * FROM QUEUE_GATE") == []


def steps(app, act=apply):
    done = act(app)
    assert done.problems == {}
    return [(step.name, step.kind, step.source, step.action, step.reason) for step in done.steps]


@pytest.fixture
def again(url):
    """Other versions of the app's code."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(FBTasks("test", url)))


def states(app):
    return [(row.name, row.kind, row.state, row.version, row.problems) for row in listed(app)]


def test_polls_are_deployed_as_other_subscriptions_are(app, handler, again):
    fill(app, INBOX, *insert(1))
    polls(app, handler)
    assert steps(app, diff) == [("handle", "poll", "INBOX", "create", "")]
    assert states(app) == []
    assert steps(app) == [("handle", "poll", "INBOX", "create", "")]
    assert steps(app) == [("handle", "poll", "INBOX", "none", "")]
    drain(app)
    assert states(app) == [("handle", "poll", "active", 1, [])]
    changed = again()
    polls(changed, handler, every=(1, 2))
    assert steps(changed, diff) == [("handle", "poll", "INBOX", "alter", "the definition has changed")]
    steps(changed)
    drain(changed)
    assert (handler.seen, states(app)) == (
        ["d1"],
        [("handle", "poll", "active", 2, [])],
    )  # it is known what was handled
    gone = again()
    gone.on_event("order.paid", name="mail")(id)
    assert ("handle", "poll", "INBOX", "orphan") in [step[:4] for step in steps(gone)]
    assert states(app)[0] == ("handle", "poll", "orphaned", 2, [])
    fill(app, *insert(2))
    poller = Poller.__new__(Poller)
    poller.app, poller.polled = app, prepared(app, "handle")
    assert poller.look() == polling.Looked()  # a worker that still has the code
    drain(changed)
    assert handler.seen == ["d1", "d2"]  # the code is back
    assert states(app)[0][:3] == ("handle", "poll", "active")


def prepared(app, name):
    with app.database.session() as session:
        known = polling.known(session, app.name, name)[-1]
        return polling.prepare(session, known.id, poll_source(known.definition))


def test_what_cannot_be_polled_is_said_when_it_is_deployed(app, handler):
    fill(app, INBOX, "CREATE VIEW INBOX_VIEW AS SELECT * FROM INBOX")
    for table in ("INBOX_VIEW", "INBOXX"):
        app.poll_table(table, key="ID", name=table)(id)
    polls(app, handler, **STATUS, order_by="CREATED")
    found = apply(app).problems
    assert found == {
        "INBOX_VIEW": "rows of 'INBOX_VIEW' cannot be polled: it is a view, which has no changes of its own. Name the "
        "table behind it.",
        "INBOXX": "the database has no table 'INBOXX'. Did you mean 'INBOX'?",
        "handle": "the table 'INBOX' has no column 'CREATED'.",
    }
    assert states(app) == []


BAD_CONDITIONS = {
    "DATUM = 'x'": "Column unknown -DATUM",
    "ID > ?": "undefined parameter",
    "ID > 5) OR (ID < 3": "a ')' has no '(' before it",  # which compiles between the parentheses that it is put into
}


@pytest.mark.parametrize("when", BAD_CONDITIONS)
def test_a_condition_that_does_not_compile_is_said_when_it_is_deployed(app, handler, when):
    fill(app, INBOX)
    polls(app, handler, when=when)
    app.poll_table("INBOX", key="ID", when="ID > 5 -- or so", name="other")(id)
    said = diff(app).problems
    assert list(said) == ["handle"]
    assert said["handle"].startswith(f"poll_table('INBOX'): when={when!r} does not compile (")
    assert said["handle"].endswith("). Give a condition in SQL that names columns of 'INBOX'.")
    assert BAD_CONDITIONS[when] in said["handle"]
    assert " line " not in said["handle"]  # of a statement that its author does not know
    assert states(app) == []
    assert apply(app).problems == said
    assert register(app) == said
    assert [name for name, *_ in states(app)] == ["other"]


def test_other_marks_of_rows_make_another_poll_and_the_former_is_brought_to_its_end(app, handler, again):
    fill(app, INBOX, *insert(1, 2))
    former = Poller(app, polls(app, handler, **STATUS))
    former.look(room=1)
    changed = again()
    polls(changed, handler, **{**STATUS, "taken": "W"})
    why = "its rows are known by other marks; the definition has changed"
    assert steps(changed) == [("handle", "poll", "INBOX", "replace", why.split("; ")[0])]
    assert former.look() == polling.Looked()  # a worker with the former code takes nothing any more
    worker = Polling(changed, Worker())
    with changed.database.session() as session:
        assert worker.look(session, 5) == 0  # the former one has a task of that table
    assert statuses(app) == {"d1": "T", "d2": "R"}
    drain(changed)
    assert [row.ends for row in listed(app)] == [True, False]
    assert (handler.seen, statuses(app)) == (["d1", "d2"], {"d1": "D", "d2": "D"})
    steps(changed)  # which finds that the former one has come to its end
    assert [row.ends for row in listed(app)] == [False]


def test_an_end_of_the_former_poll_that_cannot_be_written_is_told(app, handler, again, caplog):
    fill(app, INBOX, *insert(1, 2))
    Poller(app, polls(app, handler, **STATUS)).look(room=1)
    fill(app, "UPDATE INBOX SET ID = 7 WHERE ID = 1")
    changed = again()
    polls(changed, handler, **{**STATUS, "failed": "F"})
    assert [action for *_, action, _ in steps(changed)] == ["replace"]
    drain(changed)
    assert "the key ID = 7 has the status 'T'" in caplog.text
    fill(app, "UPDATE INBOX SET S = 'D' WHERE ID = 7")
    drain(changed)
    assert (handler.seen, statuses(app)) == (["d1", "d2"], {"d1": "D", "d2": "D"})


def test_another_table_or_key_does_not_begin_where_the_former_one_was(app, handler, again):
    fill(app, INBOX, INBOX.replace("INBOX", "OTHER"), *insert(1, 2), "INSERT INTO OTHER SELECT * FROM INBOX")
    polls(app, handler)
    drain(app)
    assert sorted(handler.seen) == ["d1", "d2"]
    other = again()
    other.poll_table("OTHER", columns="DATA", max_retries=0, name="handle")(handler.handle)
    steps(other)
    drain(other)
    assert sorted(handler.seen) == ["d1", "d1", "d2", "d2"]
    steps(other)
    assert [row.source for row in listed(app)] == ["OTHER"]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE") == 2


def test_a_poll_that_was_dropped_while_it_fails_is_not_looked_at_all_the_time(app, session, handler, clock, caplog):
    refuses = "CREATE TRIGGER REFUSES FOR INBOX BEFORE UPDATE AS BEGIN NEW.ID = 1 / 0; END"
    fill(app, INBOX, refuses, *insert(1))
    polls(app, handler, **STATUS)
    polled = Polling(app, Worker())
    for _ in range(3):  # the first describes the table, and so does the one after the failure
        polled.look(session, 1)
        clock.now = due(polled, 1)
    assert len(polling.failing(session)) == 1
    assert subscriptions.drop(app.database, ["handle"])[0].gone
    pauses = []
    caplog.clear()
    for _ in range(10):
        clock.now = due(polled, 1)
        polled.look(session, 1)
        pauses.append(due(polled, 1) - clock.now)
    assert pauses == pytest.approx([0.1, 1, 2, 4, 8, 16, 32, 60, 60, 60])
    assert "it was dropped, or is registered with other marks" in caplog.text
    assert caplog.text.count("fails") <= 5  # once a minute
    assert states(app) == []


def test_a_poll_is_not_silenced(app, handler):
    fill(app, INBOX)
    Poller(app, polls(app, handler))
    with pytest.raises(ConfigurationError, match="Pause it without --silent"):
        subscriptions.pause(app.database, ["handle"], silent=True)
    with pytest.raises(ConfigurationError, match="'handle' is called for all rows that wait"):
        subscriptions.backfill(app.database, ["handle"])


def due(polled, room):
    """When tables are to be looked at next, by a worker that has *room*."""
    polled._worker.room = room
    return polled.due()


def refused_at_its_start(app, handler, clock):
    """A worker whose poll names a column that the table does not have yet; with its clock."""
    app.on_event("order.paid", name="mail")(id)
    polls(app, handler, columns=("DATA", "LATE"))
    polled = Polling(app, Worker())
    assert list(register(app)) == ["handle"]
    with app.database.session() as session:
        assert polled.look(session, 1) == 0
    clock.now = due(polled, 1)
    return polled


def test_a_poll_that_was_refused_is_registered_alone(app, handler, again, clock):
    """What a worker has registered that started later stays as it is."""
    fill(app, INBOX, *insert(1))
    polled = refused_at_its_start(app, handler, clock)
    newer = again()
    newer.on_event("order.paid", name="mail", queue="letters")(id)
    newer.on_event("order.sent", name="sent")(id)
    assert register(newer) == {}
    app.close()
    newer.close()
    execute(app, "ALTER TABLE INBOX ADD LATE INTEGER")
    with app.database.session() as session:
        assert polled.look(session, 1) == 1
    assert {(row.name, row.queue, row.state) for row in listed(app)} == {
        ("mail", "letters", "active"),
        ("sent", "default", "active"),
        ("handle", "default", "active"),
    }


def test_a_poll_that_was_refused_does_not_take_the_place_of_a_newer_one(app, handler, again, clock):
    fill(app, INBOX, *insert(1))
    polled = refused_at_its_start(app, handler, clock)
    newer = again()
    polls(newer, handler, columns=("DATA", "S"))
    assert register(newer) == {}
    app.close()
    newer.close()
    before = rows(app, "SELECT ID, HASH, STATE FROM QUEUE_SUBSCRIPTION WHERE KIND = 'poll'")
    execute(app, "ALTER TABLE INBOX ADD LATE INTEGER")
    with app.database.session() as session:
        assert polled.look(session, 1) == 1  # it goes on as a worker does whose poll was registered before
    assert rows(app, "SELECT ID, HASH, STATE FROM QUEUE_SUBSCRIPTION WHERE KIND = 'poll'") == before


def test_looks_come_quickly_while_rows_come_and_seldom_while_none_do(app, session, handler, monkeypatch, clock):
    fill(app, INBOX, *insert(*range(20)))
    polls(app, handler, **STATUS, every=(0.1, 5))
    looks = []
    for name in ("waits", "look"):
        real = getattr(polling, name)
        monkeypatch.setattr(
            polling, name, lambda *given, n=name, r=real, **named: (looks.append((n, clock.now)), r(*given, **named))[1]
        )
    polled = Polling(app, Worker())

    def until(end, room=4):
        looks.clear()
        while (deadline := due(polled, room)) <= end:
            clock.now = max(clock.now, deadline)
            polled.look(session, room)
            execute(app, "UPDATE QUEUE_TASK SET STATE = 3")  # so that there is room again
        clock.now = end
        return len(looks)

    assert due(polled, 0) == math.inf  # not without room
    assert until(1000.0) == 6  # as long as a look fills the room, at once
    assert len(live(app)) == 20
    idle = until(1060.0)
    assert 14 <= idle <= 20
    assert until(1120.0) <= 14
    assert [name for name, _ in looks].count("look") <= 2  # all others read one statement, and change nothing
    fill(app, *insert(50))
    assert until(1125.1) <= 8
    assert len(live(app)) == 21
    times = [moment for _, moment in looks]
    assert min(after - before for before, after in pairwise(times)) == pytest.approx(0.1)  # quick again


def test_a_row_whose_task_is_retried_is_taken_with_the_next_look(app, session, handler, monkeypatch, stop_clock):
    fill(app, INBOX, *insert(1))
    handler.bad = {"d1"}
    poller = Poller(app, polls(app, handler, **STATUS, error="ERR", every=(0.1, 5)))
    drain(app)
    handler.bad = set()
    clock = stop_clock()
    monkeypatch.setattr(looking, "WHOLE", 1e6)  # by the look that reads alone, as most are
    polled = Polling(app, Worker())
    states = "SELECT (SELECT LIST(STATE) FROM QUEUE_TASK), TRIM(S), ERR IS NULL FROM INBOX"
    while (pause := due(polled, 1) - clock.now) < 4.9:
        clock.now = max(clock.now, due(polled, 1))
        polled.look(session, 1)
    assert poller.retry(one(app, "SELECT ID FROM QUEUE_HISTORY"))
    clock.now += pause - 0.01
    assert polled.look(session, 1) == 0
    assert rows(app, states) == [("4", "E", False)]
    assert due(polled, 1) == pytest.approx(clock.now + 0.01)
    clock.now += 0.01
    polled.look(session, 1)
    assert rows(app, states) == [("0", "T", True)]
    monkeypatch.undo()
    drain(app)
    assert (handler.seen, statuses(app)) == (["d1", "d1"], {"d1": "D"})


def test_an_idle_look_is_one_transaction_that_writes_nothing(app, session, handler, shape, stop_clock):
    ddl, options = SHAPES[shape]
    fill(app, ddl, *insert(1))
    polls(app, handler, **options)
    drain(app)
    clock = stop_clock()
    next_transaction = "SELECT MON$NEXT_TRANSACTION FROM MON$DATABASE"
    writes = (
        "SELECT R.MON$RECORD_UPDATES + R.MON$RECORD_INSERTS + R.MON$RECORD_DELETES + R.MON$RECORD_LOCKS FROM "
        "MON$DATABASE D JOIN MON$RECORD_STATS R ON R.MON$STAT_ID = D.MON$STAT_ID"
    )
    polled = Polling(app, Worker())

    def look():
        clock.now = max(clock.now, due(polled, 5))
        polled.look(session, 5)

    look()
    look()  # the first is a whole one
    number = execute_number(session, next_transaction)
    written = execute_number(session, writes)
    for _ in range(10):
        look()
    assert execute_number(session, writes) == written
    assert execute_number(session, next_transaction) - number == 10 + 3  # and those that count
    assert handler.seen == ["d1"]


def execute_number(session, statement):
    with session.transaction(READ) as transaction:
        return transaction.sql(statement)[0][0]


def test_rooms_are_shared_by_tables(app, session, handler):
    fill(app, INBOX, INBOX.replace("INBOX", "OTHER"), *insert(*range(10)))
    fill(app, "INSERT INTO OTHER SELECT * FROM INBOX")
    for table in ("INBOX", "OTHER"):
        app.poll_table(table, **STATUS, name=table)(lambda row: None)
    polled = Polling(app, Worker())
    assert polled.look(session, 7) == 7
    found = rows(app, "SELECT NAME, COUNT(*) FROM QUEUE_TASK GROUP BY NAME ORDER BY COUNT(*)")
    assert [count for _, count in found] == [3, 4]


PLACES = 4
"""How many tasks one worker runs at once."""
LASTS = 0.05
"""Seconds that each of them takes."""


class Puller:
    """A worker as far as rows are concerned: it looks when its time has come, and claims what its look has made.

    It hears of no task that another one has made, as where events do not arrive.
    """

    def __init__(self, app, number):
        self.app = app
        self.number = number
        self.polling = Polling(app, Worker())
        self.session = app.database.open()
        self.running = []
        """When each of its tasks ends."""
        self.taken = 0

    def turn(self, now):
        """One turn of its loop. Returns when the next one is due."""
        self.running = [end for end in self.running if end > now]
        room = PLACES - len(self.running)
        if room and due(self.polling, room) <= now and self.polling.look(self.session, room):
            claimed = self.session.run(lambda t: list(tasks.claim(t, self.number, "default", room, None)))
            self.taken += len(claimed)
            self.running += [now + LASTS] * len(claimed)
        room = PLACES - len(self.running)
        return min([*self.running, *([max(now, due(self.polling, room))] if room else ())])


@pytest.mark.parametrize("way", ["ids and status", slow("ids, no status"), slow("no ids, hard delete")])
def test_rows_that_come_at_once_are_shared_by_workers(app, handler, clock, way):
    """Also where one finds them first, and the others have come to look seldom since there were none."""
    ddl, options = SHAPES[way]
    fill(app, ddl)
    polls(app, handler, **options, every=(0.1, 1))
    pullers = [Puller(app, number) for number in (1, 2, 3)]
    due = {puller: clock.now + 0.3 * nth for nth, puller in enumerate(pullers)}
    count = 300

    def run(until):
        while (now := min(due.values())) < until and sum(each.taken for each in pullers) < count:
            puller = min(due, key=due.get)
            clock.now = max(clock.now, now)
            due[puller] = puller.turn(clock.now)

    with ExitStack() as stack:
        for puller in pullers:
            stack.callback(puller.session.close)
        run(clock.now + 10)
        for number in range(1, count + 1, 100):
            many = "; ".join(insert(*range(number, number + 100)))
            fill(app, f"EXECUTE BLOCK AS BEGIN {many}; END")
        run(clock.now + 60)
    taken = [each.taken for each in pullers]
    assert sum(taken) == count == one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2")
    assert min(taken) > count / 6, taken


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    "shape", ["ids and status", "sequence, no status", "no ids, hard delete", *map(slow, WITH_RIGHTS_OF_OTHERS)]
)
def test_a_workers_user_needs_no_more_than_its_role_and_rights_on_the_table(app, handler, shape, caplog):
    ddl, options = SHAPES[shape]
    fill(app, ddl, *insert(1, 2))
    handler.bad = {"d2"}
    with with_role(app, "worker") as theirs, closing(FBTasks("test", theirs)) as worker:
        user = worker.settings.url.user
        polls(worker, handler, **options)
        deletes = "delete" in options
        needed = {"SELECT", *(["UPDATE"] if deletes or {"status", "error"} & options.keys() else [])}
        testing.drain(worker)
        assert handler.seen == []
        missing = set()
        while found := re.findall(rf'lacks a right: (GRANT \w+ ON "INBOX") TO USER "{user}"\.', caplog.text):
            caplog.clear()
            assert found[0] not in missing
            missing.add(found[0])
            execute(app, f'{found[0]} TO USER "{user}"')
            testing.drain(worker)
        assert missing <= {f'GRANT {each} ON "INBOX"' for each in needed | ({"DELETE"} if deletes else set())}
        assert sorted(handler.seen) == ["d1", "d2"]
        testing.drain(worker)
    assert rows(app, "SELECT * FROM QUEUE_NOTE") == rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []
