"""What limits leave in the database."""

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
