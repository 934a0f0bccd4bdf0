"""An id that a caller gave: enqueued once, and again after its task was cancelled."""

import contextlib
import threading

import pytest
from firebird.driver import DatabaseError, Isolation, tpb
from support.draining import drain
from support.sql import one, rows

from fbtasks import ConflictError, TaskRevoked

pytestmark = pytest.mark.emptied


@pytest.fixture
def ran(app):
    return []


@pytest.fixture
def note(app, ran):
    return app.task(name="note")(lambda n: ran.append(n) or n)


def names(app):
    return rows(app, "SELECT TASK_ID, ID FROM QUEUE_TASK_ID ORDER BY ID")


def test_the_id_of_a_cancelled_task_may_be_used_again(app, note, ran):
    old = note.apply_async((1,), task_id="order-7")
    assert old.revoke()
    new = note.apply_async((2,), task_id="order-7")
    assert not new.duplicate
    assert note.apply_async((3,), task_id="order-7").duplicate
    drain(app)
    assert ran == [2]
    assert app.AsyncResult("order-7").get(timeout=5) == new.get(timeout=5) == 2
    with pytest.raises(TaskRevoked):
        old.get(timeout=5)  # it knows its number
    assert rows(app, "SELECT ID, STATE, HAS_TASK_ID FROM QUEUE_HISTORY ORDER BY ID") == [
        (1, 12, False),
        (2, 10, True),
    ]
    assert names(app) == [("order-7", 2)]
    assert note.apply_async((4,), task_id="order-7").duplicate  # a result is an answer
    assert app.AsyncResult(1).forget()
    assert names(app) == [("order-7", 2)]
    assert new.forget()
    assert not note.apply_async((5,), task_id="order-7").duplicate


def test_so_may_that_of_an_expired_one_but_not_that_of_a_failed_one(app, note, ran, wait_for):
    late = note.apply_async((1,), task_id="late", expires=0.001)
    wait_for(lambda: drain(app) or late.ready())
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)
    bad.apply_async(task_id="bad")
    drain(app)
    assert not note.apply_async((2,), task_id="late").duplicate
    assert bad.apply_async(task_id="bad").duplicate
    drain(app)
    assert ran == [2]


def test_several_at_once_on_a_cancelled_id(app, note, ran, project):
    note.apply_async((0,), task_id="order-7").revoke()
    start = threading.Barrier(4)
    found = []

    def enqueue(n):
        start.wait()
        found.append(note.apply_async((n,), task_id="order-7"))

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(result.duplicate for result in found) == [False, True, True, True]
    assert len({result._number for result in found}) == 1
    drain(app)
    assert len(ran) == 1
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 2


@pytest.fixture
def begin(app):
    """Opens a connection, with a transaction of an isolation."""
    app.migrate()
    with contextlib.ExitStack() as stack:

        def begin(kind, lock_timeout=0):
            connection = stack.enter_context(contextlib.closing(app.connect()))
            connection.begin(tpb(getattr(Isolation, kind), lock_timeout=lock_timeout))
            return connection

        yield begin


@pytest.mark.parametrize("lock_timeout", [0, 1])
@pytest.mark.parametrize(
    "kind",
    [
        "SNAPSHOT",
        "SERIALIZABLE",
        "READ_COMMITTED_RECORD_VERSION",
        "READ_COMMITTED_NO_RECORD_VERSION",
        "READ_COMMITTED_READ_CONSISTENCY",
    ],
)
def test_an_id_that_another_transaction_may_still_take_back_is_no_duplicate(app, note, ran, begin, kind, lock_timeout):
    """The first to give the id rolls back. The other one is told that it must try again, and its task is not lost."""
    note.apply_async((0,), task_id="order-7").revoke()
    first, other = (begin(kind, lock_timeout) for _ in range(2))
    assert not note.using(first).apply_async((1,), task_id="order-7").duplicate
    with pytest.raises(ConflictError):
        note.using(other).apply_async((2,), task_id="order-7")
    first.rollback()
    if kind == "SERIALIZABLE":  # it locks whole tables
        other.rollback()
    assert not note.using(other).apply_async((2,), task_id="order-7").duplicate
    other.commit()
    drain(app)
    assert ran == [2]
    assert len(names(app)) == 1


def test_an_id_that_was_given_after_a_snapshot_began_is_told_from_one_that_is_free(app, note, ran, begin):
    other = begin("SNAPSHOT")
    note.apply_async((1,), task_id="order-7")
    with pytest.raises(ConflictError, match="in a SNAPSHOT transaction, roll back first"):
        note.using(other).apply_async((2,), task_id="order-7")
    other.rollback()
    assert note.using(other).apply_async((2,), task_id="order-7").duplicate
    other.commit()
    drain(app)
    assert ran == [1]


def test_plain_sql_is_told_as_well(note, begin):
    statement = "SELECT ID, DUPLICATE FROM FBTASKS.ENQUEUE('note', '[5]', '{}', NULL, 'default', 0, 'order-7')"
    first, other = (begin("READ_COMMITTED_RECORD_VERSION") for _ in range(2))
    with first.cursor() as one_, other.cursor() as two:
        assert one_.execute(statement).fetchone()[1] == 0
        with pytest.raises(DatabaseError, match="QUEUE_TASK_ID_TAKEN"):
            two.execute(statement).fetchone()
        first.rollback()
        assert [two.execute(statement).fetchone()[1] for _ in range(2)] == [0, 1]


def test_one_that_is_put_back_at_the_same_moment_keeps_its_id(app, note, ran, begin):
    old = note.apply_async((0,), task_id="order-7")
    old.revoke()
    connection = begin("SNAPSHOT")
    with app.database.session() as session:
        assert session.call("FBTASKS_OPERATOR.RETRY", old._number)
    with pytest.raises(ConflictError):
        note.using(connection).apply_async((1,), task_id="order-7")
    connection.rollback()
    assert note.apply_async((1,), task_id="order-7").duplicate
    drain(app)
    assert ran == [0]


def test_one_that_lost_its_id_is_put_back_under_its_number(app, note, ran):
    old = note.apply_async((0,), task_id="order-7")
    old.revoke()
    new = note.apply_async((1,), task_id="order-7")
    with app.database.session() as session:
        assert session.call("FBTASKS_OPERATOR.RETRY", old._number)
    drain(app)
    assert sorted(ran) == [0, 1]
    assert (old.get(timeout=5), new.get(timeout=5)) == (0, 1)
