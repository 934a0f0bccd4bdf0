"""What a plain task costs does not depend on how many tasks have been scheduled before it."""

import pytest
from support.sql import execute, one, page_fetches, rows

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded

pytestmark = pytest.mark.emptied

SCHEDULED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME,
                CONTENT_TYPE, PAYLOAD)
            VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 't', 'default', 1, 0, QUEUE_NOW(), DATEADD(MOD(:I, 1000) MILLISECOND
                TO DATEADD(-1 HOUR TO QUEUE_NOW())), 'application/json', '[[],{{}}]');
            I = I + 1;
        END END"""


def take(session, most):
    """Runs up to *most* tasks that are ready. Returns how many."""
    claims = session.run(lambda t: tasks.claim(t, 1, "default", most))
    session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Succeeded(keep=False)) for claim in claims]))
    return len(claims)


@pytest.fixture
def plain(app, session):
    """The page fetches of a plain task: enqueued, looked for, promoted, claimed and ended."""
    add = app.task(name="t")(lambda: None)

    def once():
        add.delay()
        session.run(tasks.promote)
        tasks.any_ready(session, ["default"])
        assert take(session, 10) == 1

    def fetches():
        for _ in range(3):  # what comes first is paid before
            once()
        before = page_fetches(session)
        for _ in range(10):
            once()
        return (page_fetches(session) - before) / 10

    return fetches


def test_scheduled_tasks_that_have_run_cost_later_ones_nothing(app, session, plain):
    before = plain()
    execute(app, SCHEDULED.format(count=2_000))
    while session.run(tasks.promote).tasks:
        pass
    while take(session, 200):
        pass
    session.run(lambda t: tasks.expire(t, 0))
    assert plain() <= 1.5 * before


def test_a_promotion_does_not_read_again_what_it_has_promoted(app, session):
    """Neither when more is due than it promotes at once, nor what others before it have promoted, which waits."""
    app.task(name="t")(lambda: None)
    execute(app, SCHEDULED.format(count=3_000))
    found = []
    for _ in range(5):
        before = page_fetches(session)
        assert session.run(tasks.promote).tasks == 500
        found.append((page_fetches(session) - before) / 500)
    assert max(found[1:]) < 50, found


def test_the_due_time_follows_whatever_is_written(app):
    """Also what is written by hand: the index of what is due has a key for scheduled tasks alone."""
    app.task(name="t")(lambda: None)
    execute(app, SCHEDULED.format(count=1))
    both = "SELECT DUE_TIME, START_TIME FROM QUEUE_TASK"
    ((due, start),) = rows(app, both)
    assert due == start
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(1 DAY TO START_TIME)")
    ((later, start),) = rows(app, both)
    assert due < later == start
    execute(app, "UPDATE QUEUE_TASK SET STATE = 0")
    assert one(app, "SELECT DUE_TIME FROM QUEUE_TASK") is None
    execute(app, "UPDATE QUEUE_TASK SET STATE = 1")
    assert one(app, "SELECT DUE_TIME FROM QUEUE_TASK") == start
