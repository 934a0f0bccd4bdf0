"""What can be told of the queue at a glance; pages of finished tasks; what goes along with a change."""

import pytest
from support.sql import execute, one, rows

from fbtasks.errors import ConflictError
from fbtasks.firebird.session import READ, SNAPSHOT, UPDATE, Session, also_doing
from fbtasks.queue import results
from fbtasks.queue.operations import overview, tasks
from fbtasks.queue.results import Filter
from fbtasks.states import State
from fbtasks.testing import drain


def test_counts_end_at_a_bound(app, monkeypatch):
    monkeypatch.setattr(overview, "MOST", 3)
    task = app.task(name="t", queue="many")(lambda: 1)
    task.delay_many([()] * 5)
    task.apply_async(countdown=100)
    task.apply_async(queue="few")
    found = {row.queue: row for row in overview.look(app.database).queues}
    assert (found["many"].ready, found["many"].scheduled, found["few"].ready) == (4, 1, 1)
    assert found["few"].waiting_since is not None


def test_one_look_serves_all_who_ask_within_a_second(app, monkeypatch):
    monkeypatch.setattr(overview, "_FRESH", 600.0)
    looks = overview.Looks(app.database, None)
    first = looks.get()
    assert looks.get() is first
    drain_one(app)
    looks._until = 0.0
    assert [row.succeeded for row in looks.get().counters] == [1]


def test_a_look_begins_no_more_transactions_than_it_needs(app, monkeypatch):
    overview.look(app.database)
    begun, transaction = [], Session.transaction

    def noted(self, kind=UPDATE, point=""):
        begun.append(kind)
        return transaction(self, kind, point)

    monkeypatch.setattr(Session, "transaction", noted)
    overview.look(app.database)
    assert begun == [READ, SNAPSHOT]


def drain_one(app):
    app.task(name="one")(lambda: 1).delay()
    drain(app)


def test_pages_of_finished_tasks_have_each_once(app):
    app.task(name="t")(lambda: 1).delay_many([()] * 25)
    drain(app)
    execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = TIMESTAMP '2026-01-01' WHERE ID BETWEEN 5 AND 20")
    pages, before = [], None
    with app.database.session() as session:
        while page := list(results.listing(session, State.SUCCEEDED, Filter(limit=10, before=before))):
            pages += [row.id for row in page]
            before = (page[-1].finish_time, page[-1].id)
    assert pages == [
        number for (number,) in rows(app, "SELECT ID FROM QUEUE_HISTORY ORDER BY FINISH_TIME DESC, ID DESC")
    ]
    assert len(pages) == 25


def test_what_is_done_along_with_a_change_is_committed_with_it_or_not_at_all(app):
    failed = app.task(name="fails", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    done = []

    def note(transaction, changed):
        assert changed == "retried"
        done.append(transaction.sql("UPDATE QUEUE_SCHEMA SET NAME = NAME || '!' WHERE VERSION = 0"))
        if len(done) == 1:
            raise ConflictError("once more")

    with also_doing(note):
        tasks.retry(app.database, [failed.id])
    assert len(done) == 2
    assert one(app, "SELECT NAME FROM QUEUE_SCHEMA WHERE VERSION = 0") == "ledger!"
    assert failed.state == "PENDING"

    def refuse(transaction, changed):
        raise ZeroDivisionError

    with also_doing(refuse), pytest.raises(ZeroDivisionError):
        tasks.cancel(app.database, [failed.id])
    assert failed.state == "PENDING"
