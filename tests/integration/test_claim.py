"""What a claim reads: in the order of its index, no more than it takes, whatever waits and whatever has ended."""

from contextlib import closing

import pytest
from support.sql import execute, out_of_order, table_reads

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded

INSERT = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME,
                CONTENT_TYPE, PAYLOAD)
            VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 't', 'default', {state}, 0, QUEUE_NOW(), {start},
                'application/json', '[[1],{{}}]');
            I = I + 1;
        END END"""
CLAIM, PROMOTE = (lambda t: tasks.claim(t, 1, "default", 5)), tasks.promote
RANGES = {
    "claim": ("FBTASKS_WORKER.CLAIM", CLAIM, "QUEUE_TASK_CLAIM", "lower bound: [2-5]/5, upper bound: [2-5]/5"),
    "promote": ("FBTASKS_WORKER.PROMOTE", PROMOTE, "QUEUE_TASK_DUE", "lower bound: 1/1"),
}
"""Procedure, what calls it, the index that it reads, and by how much of its key the ranges are bounded at the least."""


@pytest.mark.parametrize(("procedure", "call", "index", "bounds"), RANGES.values(), ids=RANGES)
def test_a_claim_reads_in_the_order_of_its_index(app, add, procedure, call, index, bounds):
    """A range of it, for each of the procedure's own cursors and queries: no sort, and no scan of the table."""
    add.delay(1, 1)

    def wrong_plans():
        with closing(app.database.open()) as session:
            session.run(call)
            return out_of_order(session, procedure, "QUEUE_TASK", index, bounds)

    assert wrong_plans() == []
    app.database.close()  # the procedure that enqueues, which is compiled there, uses the index as well
    execute(app, f"DROP INDEX {index}")
    assert wrong_plans() != []


def test_a_claim_reads_what_it_takes_and_no_more(app):
    """With 20,000 tasks scheduled and 20,000 finished: by the index alone, and no row but those it claims."""
    add = app.task(name="t")(lambda n: n)
    execute(app, INSERT.format(count=20_000, state=1, start="DATEADD(7 DAY TO QUEUE_NOW())"))
    execute(
        app,
        """INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
            TRY_COUNT, CRASH_COUNT, CONTENT_TYPE)
        SELECT ID + 1000000, NAME, QUEUE, 10, 0, RAISE_TIME, START_TIME, RAISE_TIME, 1, 0, CONTENT_TYPE
        FROM QUEUE_TASK""",
    )
    add.delay_many([(n,) for n in range(500)])
    session = app.database.open()
    before = table_reads(session, "QUEUE_TASK")
    assert len(session.run(lambda t: tasks.claim(t, 1, "default", 50))) == 50
    assert session.run(tasks.promote)[0] == 0
    after = table_reads(session, "QUEUE_TASK")
    session.close()
    assert after[0] == before[0]
    assert after[1] - before[1] <= 150


def test_claims_under_an_old_snapshot_go_on_where_the_last_one_ended(app):
    """What was claimed of a backlog of one moment stays in the index, and is not read again."""
    app.task(name="t")(lambda: None)
    execute(app, INSERT.format(count=2000, state=0, start="QUEUE_NOW()"))
    session, watcher = app.database.open(), app.database.open()
    watcher.connection.begin(bytes((3, 2, 6)))  # isc_tpb_concurrency
    cursor = watcher.connection.cursor()
    cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()

    def fetches():
        sql = """SELECT S.MON$PAGE_FETCHES FROM MON$IO_STATS S JOIN MON$ATTACHMENTS A ON A.MON$STAT_ID = S.MON$STAT_ID
            WHERE A.MON$ATTACHMENT_ID = CURRENT_CONNECTION"""
        with session.transaction() as transaction, transaction.driver.cursor() as counting:
            return counting.execute(sql).fetchone()[0]

    costs, ends = [], {}
    for _ in range(40):
        before = fetches()
        claims = session.run(lambda t, ends=ends: tasks.claim(t, 1, "default", 50, ends=ends))
        costs.append(fetches() - before)
        assert len(claims) == 50
        ends = {0: (claims[-1].start, claims[-1].id)}
        session.run(
            lambda t, done=claims: tasks.finish(t, 1, 0, [Finished(claim, Succeeded(keep=False)) for claim in done])
        )
    cursor.close()
    watcher.connection.rollback()
    watcher.close()
    session.close()
    assert sum(costs[-10:]) < 1.3 * sum(costs[1:11])
