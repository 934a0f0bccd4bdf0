"""A commit whose answer is lost: the number of its transaction tells what became of it. The loss alone is staged."""

import threading
from contextlib import ExitStack, closing

import pytest
from support.draining import drain
from support.sql import one, rows
from support.users import with_role

from fbtasks import DatabaseUnavailable, EnqueueUncertain, FBTasks
from fbtasks.database import settlement
from fbtasks.database.packages import queries
from fbtasks.database.settlement import ENQUEUE, PUBLISH
from fbtasks.errors import CommitUncertain
from fbtasks.firebird import connections
from fbtasks.firebird.session import READ, Session, Transaction
from fbtasks.queue import tasks

pytestmark = pytest.mark.emptied


@pytest.fixture
def add(app):
    add = app.task(name="add")(lambda a, b: a + b)
    app.migrate()
    return add


@pytest.fixture
def lose(monkeypatch):
    """Loses the answers to the next commits at the fault point of an enqueue: what each names is done before."""
    plan = []
    commit = Transaction.commit

    def committing(self, point=""):
        if point != "enqueue" or not plan:
            commit(self, point)
            return
        match plan.pop(0):
            case "committed":
                commit(self)
            case "rolled back":
                self.rollback()
            case act:
                commit(self)
                act()
        raise CommitUncertain("the connection was lost.")

    monkeypatch.setattr(Transaction, "commit", committing)
    return plan


@pytest.fixture
def quiet(app):
    return app.task(name="quiet", ignore_result=True)(lambda: None)


@pytest.mark.parametrize("ends", ["committed", "rolled back"])
@pytest.mark.parametrize("task_id", [None, "order-7"])
def test_an_enqueue_whose_answer_was_lost_is_there_once(app, add, lose, ends, task_id):
    lose.append(ends)
    result = add.apply_async((1, 2), task_id=task_id)
    assert not result.duplicate
    assert rows(app, "SELECT ID FROM QUEUE_TASK") == [(result._number,)]
    assert lose == []
    drain(app)
    assert result.get(timeout=5) == 3
    if ends == "rolled back":
        lose.append(ends)
        assert len(add.delay_many([("x" * n, "y") for n in (1, 40_000, 3)])) == 3
        assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 3


def test_so_is_one_without_a_result_that_has_run_meanwhile(app, add, quiet, lose):
    """It left no trace but the number of its transaction."""
    lose.append(lambda: drain(app))
    quiet.delay()
    assert (
        one(app, "SELECT (SELECT COUNT(*) FROM QUEUE_TASK) + (SELECT COUNT(*) FROM QUEUE_HISTORY) FROM RDB$DATABASE")
        == 0
    )
    assert one(app, "SELECT SUM(SUCCEEDED) FROM QUEUE_STAT") == 1


def test_a_connection_that_is_lost_twice_is_an_error_and_nothing_was_enqueued(app, add, lose):
    lose.extend(["rolled back", "rolled back"])
    with pytest.raises(DatabaseUnavailable, match="lost twice") as caught:
        add.delay(1, 2)
    assert not isinstance(caught.value, EnqueueUncertain)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_a_database_that_comes_back_in_time_is_asked(app, add, lose, away):
    lose.append(away.set)
    threading.Timer(1.0, away.clear).start()
    result = add.delay(1, 2)
    assert not away.is_set()
    assert rows(app, "SELECT ID FROM QUEUE_TASK") == [(result._number,)]


def test_one_that_stays_away_leaves_the_caller_uncertain(app, add, lose, away, monkeypatch):
    monkeypatch.setattr("fbtasks.queue.enqueuing._ASKED", 0.6)
    lose.append(away.set)
    with pytest.raises(EnqueueUncertain, match="cannot be told") as caught:
        add.apply_async((1, 2), task_id="order-7")
    assert caught.value.task_id == "order-7"
    away.clear()
    assert add.apply_async((1, 2), task_id="order-7").duplicate
    lose.append(away.set)
    with pytest.raises(EnqueueUncertain) as caught:
        add.delay(1, 2)
    away.clear()
    drain(app)
    assert app.AsyncResult(caught.value.task_id).get(timeout=5) == 3


def test_a_transaction_that_goes_on_is_cut(app, add, monkeypatch):
    """Its connection is lost on this side, and the other does not know yet."""
    monkeypatch.setattr(settlement, "_PATIENCE", 0.2)
    session = app.database.open()
    manager = session.connection.transaction_manager(ENQUEUE)
    manager.begin()
    _, number = tasks.enqueue(Transaction(manager, session.url, session.queries, session), [add.call((1, 2), {})])
    with app.database.session() as other:
        assert other.run(lambda t: settlement.committed(t, number), READ) is None
    assert settlement.settle(app.enqueuer._use, number) is False
    assert not session.alive()
    session.close()
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_one_that_does_not_end_is_left_in_doubt(app, add, monkeypatch):
    monkeypatch.setattr(settlement, "_LONGEST", 0.3)
    session = app.database.open()
    manager = session.connection.transaction_manager(PUBLISH)
    manager.begin()
    _, number = tasks.enqueue(Transaction(manager, session.url, session.queries, session), [add.call((1, 2), {})])
    with pytest.raises(settlement.InDoubt, match="does not end") as caught:
        settlement.settle(app.enqueuer._use, number)
    assert caught.value.number == number
    manager.commit()
    assert settlement.settle(app.enqueuer._use, number) is True
    session.close()


def test_a_number_that_the_database_has_not_come_to_was_not_committed(app, add):
    """As after a server that lost its last moments."""
    assert settlement.settle(app.enqueuer._use, 2**40) is False


@pytest.mark.usefixtures("url")
def test_a_user_who_may_only_enqueue_is_told_of_its_own_transactions_and_cuts_no_others(app, add):
    app.migrate()
    with ExitStack() as stack:
        bob = FBTasks("bob", stack.enter_context(with_role(app, "producer"))).settings.url
        lost, other, foreign = (
            stack.enter_context(closing(Session(connections.connect(url), url, queries(app.database.generation))))
            for url in (bob, bob, app.settings.url)
        )
        numbers = []
        for session in (lost, foreign):
            manager = session.connection.transaction_manager(ENQUEUE)
            manager.begin()
            transaction = Transaction(manager, session.url, session.queries, session)
            numbers.append(tasks.enqueue(transaction, [add.call((1, 2), {})])[1])
        mine, theirs = numbers
        assert other.run(lambda t: settlement.committed(t, mine), READ) is None
        assert not other.call("FBTASKS_PRODUCER.KILL_OWN_CONNECTION", theirs)
        assert other.call("FBTASKS_PRODUCER.KILL_OWN_CONNECTION", mine)
        assert other.run(lambda t: settlement.committed(t, mine), READ) is False
        assert (lost.alive(), foreign.alive()) == (False, True)
