"""Expired tasks and old counters: taken away a few at a time, however many there are."""

import contextlib
import threading
import time
from datetime import timedelta

import pytest
from support.draining import drain
from support.sql import execute, one, rows

from fbtasks import ConflictError, TaskRevoked
from fbtasks.firebird.session import READ, SNAPSHOT, UPDATE
from fbtasks.queue import results, tasks
from fbtasks.queue.upkeep import housekeeping
from fbtasks.queue.upkeep.housekeeping import BATCHES, PAUSE, PAUSE_WITH_MORE, Housekeeping
from fbtasks.worker.claiming import Claiming

pytestmark = pytest.mark.emptied

EXPIRED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, EXPIRE_TIME,
                CONTENT_TYPE, PAYLOAD)
            VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 't', '{queue}', 0, 0, QUEUE_NOW(),
                QUEUE_NOW(), TIMESTAMP '2001-01-01', 'application/json', '[[],{{}}]');
            I = I + 1;
        END END"""


@pytest.fixture
def noop(app):
    return app.task(name="t")(lambda: 1)


def expire(app, count, queue="default"):
    execute(app, EXPIRED.format(count=count, queue=queue))


def cancelled(app):
    return one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 12")


def test_a_claim_cancels_no_more_than_a_batch_of_expired_tasks(app, session, noop):
    """However many there are; and it says that it has not seen what is behind them."""
    first = noop.delay()
    expire(app, 3 * tasks.BATCH + 50)
    live = noop.delay()
    for turn in range(1, 4):
        claims = session.run(lambda t: tasks.claim(t, 1, "default", 10))
        assert ([claim.id for claim in claims], claims.unseen) == ([int(first.id)] if turn == 1 else [], True)
        assert cancelled(app) == turn * tasks.BATCH
    assert live.status == "PENDING"
    drain(app)
    assert live.get(timeout=1) == 1
    reasons = "SELECT DISTINCT CAST(ERROR_MSG AS VARCHAR(100)) FROM QUEUE_HISTORY WHERE STATE = 12"
    assert rows(app, reasons) == [("expired before it began",)]


def test_what_expired_is_cancelled_though_no_worker_serves_its_queue(app, noop):
    unserved = noop.apply_async(queue="unserved", expires=0.001)
    later = noop.apply_async(countdown=3600, expires=7200)
    execute(app, "UPDATE QUEUE_TASK SET EXPIRE_TIME = RAISE_TIME WHERE ID = ?", int(later.id))
    waiting = noop.apply_async(queue="unserved", expires=3600)
    execute(
        app, "UPDATE QUEUE_TASK SET EXPIRE_TIME = TIMESTAMP '2001-01-01' WHERE EXPIRE_TIME < RAISE_TIME + 1e0 / 86400"
    )
    drain(app, ["default"])
    for result in (unserved, later):
        with pytest.raises(TaskRevoked, match="expired"):
            result.get(timeout=1)
    assert waiting.status == "PENDING"


def test_expired_tasks_are_looked_for_a_few_at_a_time(app, session, noop):
    """A turn reads and cancels so many and no more, the next one goes on there, and what runs is left alone."""
    running = noop.apply_async(expires=3600)
    assert len(session.run(lambda t: tasks.claim(t, 1, "default", 1))) == 1
    execute(app, "UPDATE QUEUE_TASK SET EXPIRE_TIME = TIMESTAMP '2001-01-01'")
    expire(app, 3, "x")
    assert session.run(lambda t: tasks.expire(t, 0, reads=3)) == (2, int(running.id) + 2)
    assert session.run(lambda t: tasks.expire(t, int(running.id) + 2)) == (1, None)
    expire(app, BATCHES * tasks.BATCH + 50, "x")
    keeping = Housekeeping(app.settings)
    assert keeping.turn(session) == PAUSE_WITH_MORE
    assert cancelled(app) == 3 + BATCHES * tasks.BATCH
    assert keeping.turn(session) == PAUSE
    assert cancelled(app) == 53 + BATCHES * tasks.BATCH
    assert rows(app, "SELECT STATE FROM QUEUE_TASK") == [(2,)]


def test_a_turn_that_looked_at_a_part_of_the_tasks_goes_on_behind_it(app, session, noop, monkeypatch):
    monkeypatch.setattr(housekeeping, "BATCHES", 1)
    monkeypatch.setattr(tasks.expire, "__defaults__", (10, tasks.BATCH))
    noop.delay_many([()] * 15)
    expire(app, 1, "x")
    keeping = Housekeeping(app.settings)
    assert (keeping.turn(session), cancelled(app)) == (PAUSE, 0)
    assert (keeping.turn(session), cancelled(app)) == (PAUSE, 1)
    expire(app, 1, "x")
    for _ in range(2):  # from the beginning again
        keeping.turn(session)
    assert cancelled(app) == 2


@pytest.mark.usefixtures("url")  # it changes the schema
def test_a_claim_that_met_a_conflict_begins_again_where_it_began(app, session, noop, wait_for):
    """What its first attempt took was rolled back: the second takes the same, and not what comes after it."""
    execute(app, "CREATE TABLE HELD (N INTEGER)")
    execute(app, "INSERT INTO HELD VALUES (1)")
    execute(
        app,
        """CREATE TRIGGER SLOW FOR QUEUE_TASK BEFORE UPDATE AS BEGIN
            IF (NEW.QUEUE = 'b') THEN UPDATE HELD SET N = 2; END""",
    )
    first = [int(noop.apply_async(queue="a").id) for _ in range(4)]
    noop.apply_async(queue="b")
    claiming = Claiming(("a", "b"))
    holder = app.connect()
    holder.execute_immediate("UPDATE HELD SET N = 3")

    def let_go():
        wait_for(lambda: session.conflicts > 0)
        holder.rollback()

    thread = threading.Thread(target=let_go)
    thread.start()
    taken = session.run(lambda t: claiming.claim(t, 1, 4))
    claiming.committed(taken)
    thread.join(30)
    holder.close()
    assert session.conflicts > 0
    assert [claim.id for claim in taken.claims if claim.queue == "a"] == first[:2]
    again = session.run(lambda t: claiming.claim(t, 1, 4))
    assert [claim.id for claim in again.claims] == first[2:], "the second claim goes on behind the first"


COUNTERS = "SUM(SUCCEEDED), SUM(FAILED), SUM(CANCELLED), SUM(RETRIED), SUM(RELEASED), SUM(ELAPSED_MS), SUM(CONFLICTS)"


def make_counters(app, days, *, ago):
    """A row for each hour of *days* days, the first *ago* days ago, for two queues and five workers."""
    execute(
        app,
        f"""
        EXECUTE BLOCK AS DECLARE D DATE; DECLARE H INTEGER; DECLARE W INTEGER; DECLARE AT_TIME TIMESTAMP; BEGIN
            D = DATEADD(-{ago} DAY TO CAST(QUEUE_NOW() AS DATE));
            WHILE (D < DATEADD({days - ago} DAY TO CAST(QUEUE_NOW() AS DATE))) DO BEGIN
                H = 0;
                WHILE (H < 24) DO BEGIN
                    AT_TIME = DATEADD(H HOUR TO CAST(D AS TIMESTAMP));
                    W = 1;
                    WHILE (W <= 5) DO BEGIN
                        INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT, SUCCEEDED, FAILED, CANCELLED,
                            RETRIED, RELEASED, ELAPSED_MS) VALUES (:AT_TIME, 'a', :W, 0, 1, 2, 3, 4, 5, 6);
                        INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT, CONFLICTS)
                            VALUES (:AT_TIME, '', :W, 0, 7);
                        W = W + 1;
                    END
                    H = H + 1;
                END
                D = D + 1;
            END END""",
    )


def test_old_counters_become_one_row_a_day_and_queue(app, session):
    make_counters(app, 12, ago=results.STAT_DAYS + 10)
    before = rows(app, f"SELECT {COUNTERS} FROM QUEUE_STAT")
    assert one(app, "SELECT COUNT(*) FROM QUEUE_STAT") == 12 * 24 * 2 * 5
    windows = [timedelta(days=days, hours=hours) for days in (0, 6, 7, 8, 9, 12, 30) for hours in (0, 5)]
    counts = [results.stats(session, window) for window in windows]
    keeping = Housekeeping(app.settings)
    keeping.next_hour = 0.0
    turns = 0
    while keeping.turn(session) == PAUSE_WITH_MORE:
        turns += 1
    assert turns >= 2
    recent = 2 * 24 * 2 * 5  # the days that are kept by the hour
    assert one(app, "SELECT COUNT(*) FROM QUEUE_STAT") == recent + 10 * 2
    assert one(app, "SELECT COUNT(*) FROM QUEUE_STAT WHERE WORKER_ID = 0 AND SLOT = 0") == 10 * 2
    assert rows(app, f"SELECT {COUNTERS} FROM QUEUE_STAT") == before
    assert [results.stats(session, window) for window in windows] == counts
    make_counters(app, 1, ago=results.STAT_DAYS + 5)  # a day that has been folded already
    assert session.call("FBTASKS_WORKER.FOLD_STATS", results.STAT_DAYS, 1000) == 24 * 2 * 5
    assert one(app, "SELECT SUM(SUCCEEDED) FROM QUEUE_STAT") == before[0][0] + 24 * 5


def test_totals_stand_still_for_readers_while_counters_are_folded(app, wait_for):
    """Whatever isolation they read in; and two workers that fold at once fold each row once."""
    make_counters(app, 10, ago=results.STAT_DAYS + 10)
    total = one(app, "SELECT SUM(SUCCEEDED) FROM QUEUE_STAT")
    seen, over = [], threading.Event()

    def read(kind):
        reader = app.database.open()
        while not over.is_set():
            with reader.transaction(kind) as transaction, transaction.driver.cursor() as cursor:
                first = cursor.execute("SELECT SUM(SUCCEEDED) FROM QUEUE_STAT").fetchone()[0]
                second = cursor.execute("SELECT SUM(SUCCEEDED) FROM QUEUE_STAT").fetchone()[0]
            seen.append((kind, first, second))
        reader.close()

    def fold():
        session, left = app.database.open(), 1
        while left:
            with contextlib.suppress(ConflictError):  # with the other one
                left = session.call("FBTASKS_WORKER.FOLD_STATS", results.STAT_DAYS, 100, attempts=1)
            time.sleep(0.001)
        session.close()

    readers = [threading.Thread(target=read, args=(kind,)) for kind in (READ, UPDATE, SNAPSHOT)]
    folders = [threading.Thread(target=fold) for _ in range(2)]
    for thread in readers:
        thread.start()
    wait_for(lambda: len({kind for kind, _, _ in seen}) == 3)
    before = len(seen)
    for thread in folders:
        thread.start()
    for thread in folders:
        thread.join(60)
    over.set()
    for thread in readers:
        thread.join(60)
    assert len(seen) > before
    assert {(first, second) for _, first, second in seen} == {(total, total)}
    assert one(app, "SELECT SUM(SUCCEEDED) FROM QUEUE_STAT") == total
    assert one(app, "SELECT COUNT(*) FROM QUEUE_STAT") == 10 * 2
