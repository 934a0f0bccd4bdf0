"""Outcomes in whose way another transaction is, and statements of a worker that meet rows that another one holds."""

import logging
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from support.draining import drain
from support.registering import register
from support.sql import execute, held, one, rows

from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.queue import tasks
from fbtasks.queue.register import processes
from fbtasks.queue.upkeep.housekeeping import Housekeeping, release_orphans
from fbtasks.tasks.call import RELEASED, Finished, Reason, Requeue, Succeeded
from fbtasks.worker import drain as draining
from fbtasks.worker import outcomes
from fbtasks.worker.outcomes import Outcomes

pytestmark = pytest.mark.emptied


@pytest.fixture
def session(app):
    app.migrate()
    session = app.database.open()
    yield session
    session.close()


@pytest.fixture
def worker(app):
    return register(app)


def retry(transaction, number):
    return transaction.call("FBTASKS_OPERATOR.RETRY", number)


@pytest.mark.parametrize("move", [tasks.revoke, retry])
def test_of_two_that_move_a_task_at_once_one_does_and_the_other_one_sees_it(app, session, wait_for, move):
    number = int(app.send_task("note").id)
    if move is retry:
        session.run(lambda t: tasks.revoke(t, number))
    answers = []

    def second():
        with app.database.session() as other:
            answers.append(other.run(lambda t: met.append(1) or move(t, number), attempts=10_000))

    met = []
    with session.transaction() as first:
        assert move(first, number)
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: len(met) > 1 or not thread.is_alive(), 10)
    thread.join(30)
    assert [bool(answer) for answer in answers] == [False]
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK UNION ALL SELECT COUNT(*) FROM QUEUE_HISTORY") == (
        [(0,), (1,)] if move is tasks.revoke else [(1,), (0,)]
    )


@pytest.fixture
def claims(app, session, worker):
    """Claims of twenty tasks."""
    for n in range(20):
        app.send_task("note", (n,))
    return session.run(lambda t: tasks.claim(t, worker, "default", 20))


@pytest.fixture
def kept(app):
    turn = HostLock(app.settings.url)
    yield Outcomes(turn, app.features)
    turn.close()


def end_all(kept, claims, outcome=None):
    for claim in claims:
        kept.add(Finished(claim, outcome or Succeeded("application/json", b"1")))


def transactions(app):
    return one(app, "SELECT MON$NEXT_TRANSACTION FROM MON$DATABASE")


def test_of_a_batch_all_is_recorded_but_what_another_transaction_holds(app, session, worker, claims, kept, caplog):
    end_all(kept, claims)
    blocked = [claims[3].id, claims[12].id]
    with held(app, "QUEUE_TASK", *blocked):
        before = transactions(app)
        kept.record(session, worker)
        assert transactions(app) - before < 120  # halves, and not one by one with all attempts
        assert [n for (n,) in rows(app, "SELECT ID FROM QUEUE_TASK ORDER BY ID")] == blocked
        assert not kept
        assert (kept.kept, sorted(claim.id for claim in kept.claims())) == (2, blocked)
        kept.retry(session, worker, at_once=True)
        assert f"The outcome of task {blocked[0]} (note) cannot be recorded while another" in caplog.text
        caplog.clear()
        kept.retry(session, worker, at_once=True)
        assert (kept.kept, caplog.text) == (2, "")  # it was said
    caplog.set_level(logging.INFO)
    kept.retry(session, worker, at_once=True)
    assert (kept.kept, rows(app, "SELECT ID FROM QUEUE_TASK")) == (0, [])
    assert f"Task {blocked[0]} (note) succeeded" in caplog.text


def test_a_blocked_outcome_is_tried_again_after_a_pause_that_grows(app, session, worker, claims, kept, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(outcomes.clock, "monotonic", lambda: now[0])
    end_all(kept, claims[:1])
    pauses = []
    with held(app, "QUEUE_TASK", claims[0].id):
        kept.record(session, worker)
        for _ in range(7):
            pauses.append(kept.again_at - now[0])
            before = kept.again_at
            kept.retry(session, worker)
            assert kept.again_at == before  # it is too early
            now[0] = before
            kept.retry(session, worker)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


@pytest.mark.usefixtures("url")  # it changes the schema
def test_what_is_refused_and_what_is_blocked_are_told_apart(app, session, worker, claims, kept):
    execute(app, "CREATE EXCEPTION EX_RULE 'a rule of this database'")
    execute(
        app,
        "CREATE TRIGGER RULE FOR QUEUE_HISTORY BEFORE INSERT AS BEGIN"
        f" IF (NEW.ID = {claims[7].id} AND NEW.STATE = 10) THEN EXCEPTION EX_RULE; END",
    )
    end_all(kept, claims)
    with held(app, "QUEUE_TASK", claims[2].id):
        kept.record(session, worker)
        kept.retry(session, worker, at_once=True)
    assert dict(rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_HISTORY GROUP BY STATE")) == {10: 18, 11: 1}
    assert kept.kept == 1


def test_a_request_to_cancel_that_another_transaction_holds_is_seen_and_not_waited_for(
    app, session, worker, claims, kept
):
    done, again, released, lost, *_ = (claim.id for claim in claims)
    for number in (done, again, released, lost):
        assert session.run(lambda t, n=number: tasks.revoke(t, n)) == "requested"
    outcomes = (Succeeded(keep=False), Requeue(Reason.RETRY, 0, "again"), RELEASED)
    for claim, outcome in zip(claims, outcomes, strict=False):
        end_all(kept, [claim], outcome)
    with held(app, "QUEUE_CANCEL", done, again, released, lost):
        kept.record(session, worker)
        assert not kept.kept
        beat(session, worker)
        execute(app, "DELETE FROM QUEUE_PROCESS")
        assert release_orphans(session, 0) == len(claims) - 3
    assert rows(app, "SELECT ID, STATE FROM QUEUE_HISTORY ORDER BY ID") == [(again, 12), (released, 12), (lost, 12)]
    beat(session, worker)
    assert rows(app, "SELECT ID FROM QUEUE_CANCEL") == []


def beat(session, worker, conflicts=0):
    facts = {"lease": 30.0, "conflicts": conflicts}
    return session.run(lambda t: processes.heartbeat(t, "worker", worker, **facts), attempts=1)


def test_a_heartbeat_waits_for_no_row(app, session, worker):
    beat(session, worker, 1)
    execute(app, "INSERT INTO QUEUE_CANCEL (ID, REQUEST_TIME, TERMINATE) VALUES (4711, QUEUE_NOW(), 0)")
    with app.connect() as connection:
        cursor = connection.cursor()
        for table in ("QUEUE_PROCESS", "QUEUE_CANCEL", "QUEUE_STAT"):
            cursor.execute(f"SELECT * FROM {table} WITH LOCK").fetchall()
        reply = beat(session, worker, 1)
        assert (reply.alive, reply.renewed) == (True, False)
        connection.rollback()
    reply = beat(session, worker, 1)
    assert (reply.alive, reply.renewed) == (True, True)
    assert rows(app, "SELECT ID FROM QUEUE_CANCEL") == []
    assert one(app, "SELECT SUM(CONFLICTS) FROM QUEUE_STAT") == 2
    assert not beat(session, worker + 1).alive
    consumer = register(app, "consumer")
    with held(app, "QUEUE_PROCESS", consumer):
        reply = session.run(lambda t: processes.heartbeat(t, "consumer", consumer, lease=30.0), attempts=1)
        assert (reply.alive, reply.renewed) == (True, False)


def test_what_a_worker_holds_that_was_taken_for_dead_is_no_orphan_to_itself(app, session, worker, claims):
    execute(app, "DELETE FROM QUEUE_PROCESS")
    assert release_orphans(session, worker) == 0
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2 AND WORKER_ID = ?", worker) == len(claims)
    assert release_orphans(session, worker + 1) == len(claims)


def test_maintenance_leaves_what_another_transaction_holds_for_the_next_time(
    app, session, worker, claims, kept, caplog
):
    end_all(kept, claims, Succeeded("application/json", b'"' + b"x" * 5000 + b'"'))
    kept.record(session, worker)
    app.send_task("note", (), expires=timedelta(milliseconds=1))
    settings = replace(app.settings, result_expires=timedelta(milliseconds=1))
    with held(app, "QUEUE_RESULT", claims[0].id):
        assert Housekeeping(settings).turn(session) == 60.0
    assert "another transaction is in the way" in caplog.text
    assert rows(app, "SELECT STATE FROM QUEUE_HISTORY WHERE STATE = 12") == [(12,)]  # the other parts are done
    Housekeeping(settings).turn(session)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 10") == 0


def test_a_burst_waits_for_what_another_transaction_holds_and_says_so(app, wait_for, monkeypatch, caplog):
    monkeypatch.setattr(draining, "BURST_SAYS", 0.1)
    add = app.task(name="add")(lambda a, b: a + b)
    free, locked = add.delay(1, 2), add.delay(3, 4)
    with held(app, "QUEUE_TASK", locked.id) as release:
        burst = threading.Thread(target=drain, args=(app,))
        burst.start()
        try:
            wait_for(lambda: "What is left in the queues cannot be claimed while other transactions" in caplog.text)
            assert burst.is_alive()
            assert free.get(timeout=0) == 3
        finally:
            release()
            burst.join(30)
    assert not burst.is_alive()
    assert locked.get(timeout=0) == 7
    assert caplog.text.count("What is left in the queues") == 1
    assert "Left in queue default: 1 task is ready, and not claimed now." in caplog.text
