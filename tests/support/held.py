"""What limits leave in the database."""

from fbtasks.queue import tasks
from support.sql import one, rows

UNREAD = "QUEUE_NOTE WHERE ID > 0"
"""Notes that nobody has read. One that was read is deleted by whoever reads the next."""
HOLDS = "QUEUE_HOLD WHERE TASK_ID NOT IN (SELECT ID FROM QUEUE_HISTORY)"
"""The limits of tasks, but for those that failed or were cancelled: they may be put back."""
LEFT = ("QUEUE_TASK", UNREAD, HOLDS)


def nothing_left(app, *more):
    """Whether nothing is in these tables, and *more*."""
    found = {table: rows(app, f"SELECT * FROM {table}") for table in (*LEFT, *more)}
    assert not any(found.values()), found
    return True


def unread(app):
    """How many notes nobody has read."""
    return one(app, f"SELECT COUNT(*) FROM {UNREAD}")


def leaves_nothing(app):
    """Whether nothing is left of limits when all tasks have ended, and what they left is read."""
    with app.database.session() as session:
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
        assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE WHERE USED + WAITS + HALTED <> 0") == 0
        while session.call("FBTASKS_LIMITS.FORGET_GATES", 1000):
            pass
    return nothing_left(app, "QUEUE_GATE")
