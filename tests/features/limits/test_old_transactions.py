"""What limits cost under a transaction as old as the whole run. What waits before them costs nothing: tests/depth."""

from contextlib import closing, contextmanager

import pytest
from support.sql import page_fetches

SNAPSHOT = bytes((3, 2, 6))  # isc_tpb_concurrency
CLAIM = 100
KINDS = {
    "plain": {},
    "limit": {"limits": {"customer": "key"}},
    "several": {"limits": {"customer": "key", "all": None}},
    "ordered": {"ordered": "key"},
    "unique": {"unique": True},
    "rate": {"limits": {"fast": "key"}},
}


@pytest.fixture
def go_through(app, session, claim, end):
    """Has so many tasks of a kind enqueued, let in, claimed and ended; the pages that claims and ends fetch."""
    app.limit("customer", at_once=3)
    app.limit("all", at_once=1000)
    app.limit("fast", rate="1000000/s", burst=1000)

    def go_through(kind, count):
        """In steps of a hundred, with some hundred waiting all the time."""
        task = app.task(name=kind, ignore_result=True, **KINDS[kind])(lambda key, number: None)
        fetches, enqueued, done, steps, ends = 0, 0, 0, 0, {}
        while done < count:
            steps += 1
            assert steps < count / 10, (done, count)
            if enqueued < count and enqueued - done < 1000:
                task.delay_many([(number % 40, number) for number in range(enqueued, enqueued + CLAIM)])
                enqueued += CLAIM
            before, from_start = page_fetches(session), steps % 100 == 0  # a worker does so once a second
            claims = claim(CLAIM, ends={} if from_start else ends, from_start=from_start)
            end(claims)
            fetches += page_fetches(session) - before
            ends = {0: (claims[-1].start, claims[-1].id)} if len(claims) == CLAIM else {}
            done += len(claims)
        for _ in range(3):
            assert claim() == []
        return fetches

    return go_through


ALWAYS = [("ordered", 1_000)]
VARIANTS = [pytest.param(kind, 20_000, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize(("kind", "count"), ALWAYS + VARIANTS)
def test_limits_cost_as_much_under_a_transaction_as_old_as_the_run(app, go_through, kind, count):
    go_through(kind, count)
    without = go_through(kind, count)
    with app.connect() as watcher:
        watcher.begin(SNAPSHOT)
        with watcher.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()
        old = go_through(kind, count)
        watcher.rollback()
    # Together: without the old transaction versions are collected, by whichever of the two comes first, or by the
    # thread of a server. Of a plain task little is done beside the DELETE, which costs the engine six pages more.
    assert old <= (1.5 if kind == "plain" else 1.3) * without


@contextmanager
def snapshot(app):
    """A transaction that sees the queue as it is now, for the block."""
    with app.connect() as connection, closing(connection.cursor()) as cursor:
        connection.begin(SNAPSHOT)
        cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()
        yield
        connection.rollback()


@pytest.mark.parametrize("kind", ["limit", "ordered", "rate"])
def test_limits_cost_as_much_when_short_snapshots_come_and_go_beside_an_old_one(app, session, claim, end, kind):
    """Each sees calls that wait, and ends when they have: of what they were then the engine collects little itself."""
    app.limit("customer", at_once=50)
    app.limit("fast", rate="1000000/s", burst=1000)
    keys = 50 if kind == "ordered" else 5
    task = app.task(name=kind, ignore_result=True, **KINDS[kind])(lambda key, number: None)
    costs = []
    with snapshot(app):
        for _ in range(24):
            task.delay_many([(number % keys, number) for number in range(50)])
            before, left = page_fetches(session), 50
            with snapshot(app):
                while left:
                    claims = claim(20)
                    end(claims)
                    left -= len(claims)
            costs.append(page_fetches(session) - before)
    assert sum(costs[-4:]) < 1.2 * sum(costs[8:12]), costs
