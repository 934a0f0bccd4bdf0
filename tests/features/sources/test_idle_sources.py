"""What sources and schedules cost an idle worker: its loop runs for minutes of a clock that moves on by itself."""

from collections import Counter

import pytest
from support.capture import script
from support.sources import apply

from fbtasks import timing as clock
from fbtasks.features.schedules.upkeep import sync_schedules
from fbtasks.features.web import store
from fbtasks.firebird.session import Transaction
from fbtasks.queue import tasks
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor

SUBSCRIPTIONS = 20
SCHEDULES = 20
MINUTES = 4


class Over(Exception):
    """The time is up."""


class Idle:
    """A worker that is idle, and the statements that it runs, by name."""

    def __init__(self, app, monkeypatch):
        self._app = app
        self._now = 1000.0
        self.statements = Counter()
        monkeypatch.setattr(clock, "monotonic", lambda: self._now)
        monkeypatch.setattr(clock, "within", lambda seconds: self._now + seconds)  # not at random
        monkeypatch.setattr(Loop, "events_arrive", lambda _loop: True)  # as where nothing is wrong
        noted = store.depth_is_noted  # in this minute of the database's clock, which may end at any time
        monkeypatch.setattr(store, "depth_is_noted", lambda session: noted(session) or True)
        for way in ("rows", "sql", "packed"):
            monkeypatch.setattr(Transaction, way, self._counting(getattr(Transaction, way)))

    def _counting(self, run):
        def counted(transaction, name, *given, **more):
            self.statements[name.split()[0]] += 1
            return run(transaction, name, *given, **more)

        return counted

    def _select(self, seconds, _others=()):
        self._now += seconds
        if self._now >= self._end:
            raise Over
        return set()

    def _until(self, loop, end):
        self._end = end
        with pytest.raises(Over):
            loop.run(listen=False)

    def run(self):
        """Returns the statements of some minutes, after two others."""
        options = WorkerOptions(name="idle", queues=("default",), pool="solo", concurrency=1)
        loop = Loop(self._app, SoloExecutor(self._app), options)
        loop._waker.select = self._select
        try:
            loop.start()
            self._until(loop, self._now + 120)
            self.statements.clear()
            self._until(loop, self._now + 60 * MINUTES)
            return Counter(self.statements)
        finally:
            loop.close()


@pytest.fixture
def idle(app, monkeypatch):
    return Idle(app, monkeypatch)


def more(after, before):
    """What was run more often than once more, which may be by chance."""
    return {name: count - before[name] for name, count in after.items() if count - before[name] > 1}


def reads(session):
    """How many rows the session has read so far."""
    stats = session.connection.info.get_table_access_stats()
    return sum((table.sequential or 0) + (table.indexed or 0) for table in stats)


def test_idle_sources_cost_an_idle_worker_next_to_nothing(app, idle):
    """Two statements a minute for all subscriptions together, and a look every five seconds for a polled table, which
    asks once a minute whether several rows have one key.

    Whether there is work is asked as often as before, and reads three rows of each subscription at most.
    """
    table = "CREATE TABLE {} (ID INTEGER NOT NULL PRIMARY KEY, S CHAR(1))"
    script(app, table.format("T"), table.format("INBOX"))
    before = idle.run()
    assert before.total() <= 48 * MINUTES
    for number in range(SUBSCRIPTIONS):
        order = ("key", "total", None)[number % 3]
        app.on_change("T", insert=True, name=f"changed {number}", order=order)(print)
    apply(app)
    with app.database.session() as session:
        tasks.any_ready(session, ("default",))
        so_far = reads(session)
        assert not tasks.any_ready(session, ("default",)).ready
        assert reads(session) - so_far <= 3 * SUBSCRIPTIONS
    app.close()
    subscribed = idle.run()
    assert more(subscribed, before) == {"subscriptions": MINUTES, "source_triggers": MINUTES}
    app.poll_table("INBOX", status="S", ready="R", taken="T", done="D", failed="E", every=(0.1, 5))(print)
    polled = idle.run()
    assert sum(more(polled, subscribed).values()) <= 14 * MINUTES


def test_schedules_cost_an_idle_worker_nothing_between_their_ticks(app, session, idle):
    before = idle.run()
    for number in range(SCHEDULES):
        app.add_periodic("nothing", every=86_400, name=f"daily {number}")
    sync_schedules(session, app, app.schedules)
    scheduled = idle.run()
    assert more(scheduled, before) == {}
    assert scheduled.total() <= before.total() + 1
