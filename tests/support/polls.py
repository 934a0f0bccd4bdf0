"""Polls without a worker: a test looks at a table when it wants to."""

from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.store import polling

from .draining import drain
from .sql import execute


class Poller:
    """Looks at the table of a task."""

    def __init__(self, app, task):
        self.app = app
        self.task = task
        with app.database.session() as session:
            assert subscriptions.register(session, app.name, app.features["sources"].feeds()) == {}
            known = next(each for each in polling.known(session, app.name, task.name) if not each.ends)
            self.polled = polling.prepare(session, known.id, task.subscription.source)

    @property
    def id(self):
        return self.polled.id

    def look(self, room=100, *, sweep=False):
        with self.app.database.session() as session:
            return polling.look(session, self.polled, room, room, sweep=sweep)

    def waits(self):
        with self.app.database.session() as session:
            return polling.waits(session, self.polled)

    def anything(self):
        return any(self.waits()[:2])

    def run(self):
        """Has a worker poll, run and write until nothing is left to do."""
        drain(self.app)

    def retry(self, number):
        with self.app.database.session() as session:
            return session.call("FBTASKS_OPERATOR.RETRY", number)


def fill(app, *statements):
    for statement in statements:
        execute(app, statement)
