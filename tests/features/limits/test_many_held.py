"""What limits cost where many tasks wait before them, and under a transaction as old as the whole run."""

import statistics

import pytest
from support.held import unread
from support.sql import execute, one, page_fetches, row_reads
from support.variants import slow

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded

DONE = Succeeded(keep=False)
SNAPSHOT = bytes((3, 2, 6))  # isc_tpb_concurrency
CLAIM = 100
BEHIND = """EXECUTE BLOCK AS
    DECLARE NUMBER INTEGER;
    DECLARE ID BIGINT;
BEGIN
    FOR SELECT T.ID FROM QUEUE_TASK T WHERE T.STATE = 4 AND T.NAME = 'bill' INTO :ID DO
    BEGIN
        NUMBER = 1;
        WHILE (NUMBER < {each}) DO
        BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, HAS_HOLDS,
                    CONTENT_TYPE, PAYLOAD)
                SELECT 1000000000 + {each} * T.ID + :NUMBER, T.NAME, T.QUEUE, T.STATE, T.PRIORITY_RANK, T.RAISE_TIME,
                    T.START_TIME, T.HAS_HOLDS, T.CONTENT_TYPE, T.PAYLOAD
                    FROM QUEUE_TASK T WHERE T.ID = :ID;
            INSERT INTO QUEUE_HOLD (TASK_ID, STEP, OWNER_ID, LANE, SORT_KEY)
                SELECT 1000000000 + {each} * :ID + :NUMBER, H.STEP, H.OWNER_ID, H.LANE, H.SORT_KEY
                    FROM QUEUE_HOLD H WHERE H.TASK_ID = :ID;
            NUMBER = NUMBER + 1;
        END
    END
END"""
"""Copies each task that waits: as many as were enqueued and seen by a claim, which takes longer."""


def claim(session, most=CLAIM, **options):
    return session.run(lambda t: tasks.claim(t, 1, "default", most, **options))


def finish(session, claims):
    assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, DONE) for each in claims])) == []


class Costs:
    """What parts of a run cost, in what the database has to do for them."""

    def __init__(self, session):
        self._session = session
        self.rows, self.fetches = {}, {}

    def of(self, what, work, *args, **kwargs):
        """Calls *work*, and returns what that does."""
        rows, fetches = row_reads(self._session), page_fetches(self._session)
        found = work(*args, **kwargs)
        self.fetches[what] = self.fetches.get(what, 0) + page_fetches(self._session) - fetches
        self.rows[what] = self.rows.get(what, 0) + row_reads(self._session) - rows
        return found


@pytest.mark.parametrize(
    ("gates", "held"),
    [(200, 5_000), pytest.param(1_000, 1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_a_claim_beside_many_held_tasks_reads_what_it_takes(app, session, gates, held):
    app.limit("customer", at_once=1)
    bill = app.task(name="bill", limits={"customer": "number"}, ignore_result=True)(lambda number: None)
    plain = app.task(name="plain", ignore_result=True)(lambda: None)
    bill.delay_many([(number,) for number in range(gates)])
    running = []
    while len(running) < gates:
        running += claim(session, 500)

    def cost(opened=0):
        """Of claims of 100 others; *opened* gates have a free place then, behind which a task waits."""
        found = []
        for _ in range(7):
            plain.delay_many([()] * CLAIM)
            if opened:
                finish(session, [running.pop(0) for _ in range(opened)])
            costs = Costs(session)
            claims = costs.of("claim", claim, session, CLAIM + opened, from_start=False)
            assert len(claims) == CLAIM + opened
            running.extend(each for each in claims if each.name == "bill")
            finish(session, [each for each in claims if each.name == "plain"])
            found.append((costs.rows["claim"], costs.fetches["claim"]))
        return [statistics.median(each) for each in zip(*found, strict=True)]

    cost()
    before = cost()
    bill.delay_many([(number,) for number in range(gates)])
    while unread(app):
        assert claim(session) == []
    one_each = cost(), cost(10)
    waiting = one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 4")
    execute(app, BEHIND.format(each=-(-held // waiting)))
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 4") >= held
    many, opening = cost(), cost(10)
    assert many[0] <= before[0] + 10
    assert many[1] <= 1.1 * before[1]
    assert opening[0] <= 1.1 * one_each[1][0]
    assert opening[1] <= 1.1 * one_each[1][1]


KINDS = {
    "plain": {},
    "limit": {"limits": {"customer": "key"}},
    "several": {"limits": {"customer": "key", "all": None}},
    "ordered": {"ordered": "key"},
    "unique": {"unique": True},
    "rate": {"limits": {"fast": "key"}},
}


class Flow:
    """Tasks of one kind that go through: enqueued, let in, claimed and finished."""

    def __init__(self, app, session, kind):
        app.limit("customer", at_once=3)
        app.limit("all", at_once=1000)
        app.limit("fast", rate="1000000/s", burst=1000)
        self._task = app.task(name=kind, ignore_result=True, **KINDS[kind])(lambda key, number: None)
        self._session = session
        self._ends = {}

    def run(self, count):
        """Lets *count* go through, in steps of a hundred, with some hundred waiting all the time."""
        costs, enqueued, done, steps = Costs(self._session), 0, 0, 0
        while done < count:
            steps += 1
            assert steps < count / 10, (done, count)
            if enqueued < count and enqueued - done < 1000:
                self._task.delay_many([(number % 40, number) for number in range(enqueued, enqueued + CLAIM)])
                enqueued += CLAIM
            claims = costs.of("claim", self._claim, from_start=steps % 100 == 0)  # a worker does so once a second
            done += len(claims)
            costs.of("finish", finish, self._session, claims)
        for _ in range(3):
            assert self._claim(from_start=True) == []
        return costs

    def _claim(self, *, from_start):
        claims = claim(self._session, ends={} if from_start else self._ends, from_start=from_start)
        self._ends = {0: (claims[-1].start, claims[-1].id)} if len(claims) == CLAIM else {}
        return claims


ALWAYS = [("ordered", 1_000)]
VARIANTS = [slow("several", 2_000)] + [pytest.param(kind, 20_000, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize(("kind", "count"), ALWAYS + VARIANTS)
def test_limits_cost_as_much_under_a_transaction_as_old_as_the_run(app, session, kind, count):
    flow = Flow(app, session, kind)
    flow.run(count)
    without = flow.run(count)
    with app.connect() as watcher:
        watcher.begin(SNAPSHOT)
        with watcher.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()
        old = flow.run(count)
        watcher.rollback()
    # Together: without the old transaction versions are collected, by whichever of the two comes first, or by the
    # thread of a server. Of a plain task little is done beside the DELETE, which costs the engine six pages more.
    most = 1.5 if kind == "plain" else 1.3
    assert sum(old.fetches.values()) <= most * sum(without.fetches.values())
