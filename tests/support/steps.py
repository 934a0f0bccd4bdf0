"""Tasks for workflows, and what they were called with."""

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded

from .sql import rows


class Steps:
    def __init__(self, app):
        self.app, self.seen = app, []
        self.broken = True
        make = app.task

        @make(name="boom", max_retries=0)
        def boom(*_):
            if self.broken:
                raise ValueError("boom")
            return "mended"

        @make(name="note", ignore_result=True)
        def note(*given):
            self.seen.append(given)
            return given[0] if given else None

        self.boom, self.note = boom, note
        self.add = make(name="add")(lambda one, other=0: one + other)
        self.text = make(name="text")(repr)
        self.total = make(name="total")(sum)

    def left(self):
        """Tasks that have not ended, and notes."""
        return rows(
            self.app,
            "SELECT (SELECT COUNT(*) FROM QUEUE_TASK), (SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0) "
            "FROM RDB$DATABASE",
        )[0]

    def structure(self):
        """Links, members and groups."""
        counts = ", ".join(f"(SELECT COUNT(*) FROM {table})" for table in ("QUEUE_LINK", "QUEUE_NODE", "QUEUE_GROUP"))
        return rows(self.app, f"SELECT {counts} FROM RDB$DATABASE")[0]

    def states(self):
        return rows(self.app, "SELECT NAME, STATE FROM QUEUE_TASK ORDER BY ID")


def claim(session, most=100):
    return session.run(lambda t: tasks.claim(t, 1, "default", most))


def finish(transaction, claims, outcome=None):
    """As a worker of the session's own, whose counters are in no other one's way."""
    items = [Finished(each, outcome or Succeeded("application/json", b"%d" % each.id)) for each in claims]
    assert tasks.finish(transaction, transaction._session.connection.info.id, 0, items) == []
