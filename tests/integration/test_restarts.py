"""What several connections do to the same rows at once: the engine runs a statement again, which then does no more."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from fbtasks.queue import tasks
from fbtasks.states import State
from fbtasks.tasks.call import Failed

pytestmark = pytest.mark.emptied

COUNT = 3_000
STEP = 20
LOCKED = """
    SELECT R.MON$RECORD_LOCKS FROM MON$ATTACHMENTS A JOIN MON$RECORD_STATS R ON R.MON$STAT_ID = A.MON$STAT_ID
        WHERE A.MON$ATTACHMENT_ID = CURRENT_CONNECTION"""


def locked(session):
    """How many rows the connection has locked so far."""
    with session.connection.cursor() as cursor:
        found = cursor.execute(LOCKED).fetchone()[0]
    session.connection.rollback()
    return found


def test_no_step_locks_more_rows_than_it_takes(app, claim, end):
    plain = app.task(name="plain", ignore_result=True)(lambda: None)
    plain.delay_many([()] * COUNT)
    while claims := claim(1_000):
        end(claims, Failed("builtins.ValueError", "no"))
    over, taken, rows = threading.Event(), [], []

    def work():
        with app.database.session() as session:
            before = locked(session)
            while not over.is_set():
                count = session.run(lambda t: tasks.prune(t, State.FAILED, timedelta(seconds=-1), STEP))
                now = locked(session)
                taken.append(count)
                rows.append(now - before)
                before = now
                if count == 0 or rows[-1] > 2 * STEP:
                    over.set()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert max(rows) <= 2 * STEP
    assert sum(taken) <= COUNT
