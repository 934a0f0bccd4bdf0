"""Random operations on tasks with limits, orders and keys: no limit is exceeded, each call is run, nothing is stuck."""

import random

import pytest
from support.held import HOLDS, leaves_nothing
from support.sql import NOW, execute, one, rows
from support.variants import slow

from fbtasks import DuplicateTask, Ordered, Unique, debounce
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Cancelled, Failed, Finished, Reason, Requeue, Succeeded, reason_of

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
OUTCOMES = [
    DONE, DONE, DONE, Succeeded("application/json", b"1"), Failed("builtins.ValueError", "no"), RELEASED,
    Cancelled("x"), Requeue(Reason.RETRY, 0.0, "x", "E"), Requeue(Reason.RETRY, 3600.0, "x", "E"),
    Requeue(Reason.CLOSED, 3600.0),
]  # fmt: skip
STEPS = ["enqueue"] * 6 + ["claim"] * 4 + ["end"] * 6 + ["cancel", "retry", "promote", "orphans"]
LIMITS = {"two": 2, "three": 3, "all": 5, "queue:default": 9}
SEVERAL = {"two": "key", "three": "key", "all": None}
KINDS = {
    "limited": {"limits": {"two": "key"}},
    "several": {"limits": SEVERAL},
    "ordered": {"ordered": "key", "limits": SEVERAL},
    "stopping": {"ordered": Ordered("key", stop_on_failure=True)},
    "all": {"limits": {"all": None}},
    "plain": {},
    "unique": {"unique": True},
    "unique replace": {"unique": Unique(by="key", conflict="replace")},
    "unique several": {"unique": True, "limits": SEVERAL, "ordered": "key"},
    "unique debounce": {"unique": Unique(by="key", conflict=debounce(0.001)), "limits": {"all": None}},
    "unique raise": {"unique": Unique(by="key", conflict="raise")},
}


class Walk:
    def __init__(self, app, session, seed):
        self.app, self.session, self.random = app, session, random.Random(seed)
        for name in ("two", "three", "all"):
            app.limit(name, at_once=LIMITS[name])
        app.queue("default", at_once=LIMITS["queue:default"])
        app.features["limits"].deploy(session)
        self.tasks = [app.task(name=name, **options)(lambda key: None) for name, options in KINDS.items()]
        self.running = []
        self.uncovered = {}
        """For each unique task and key how many calls were committed since a run began."""

    def step(self):
        match self.random.choice(STEPS):
            case "enqueue":
                self.enqueue()
            case "claim":
                self.claim(self.random.choice([1, 2, 10]), from_start=self.random.random() < 0.5)
            case "end" if self.running:
                self.end(self.random.choice(OUTCOMES))
            case "cancel":
                found = "SELECT ID FROM QUEUE_TASK WHERE STATE IN (0, 1, 4) AND NAME NOT STARTING WITH 'unique'"
                if waiting := rows(self.app, found):
                    self.session.run(lambda t: tasks.revoke(t, self.random.choice(waiting)[0]))
            case "retry":
                if ended := rows(self.app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE IN (11, 12)"):
                    self.session.call("FBTASKS_OPERATOR.RETRY", self.random.choice(ended)[0])
            case "promote":
                self.promote()
            case "orphans":
                self.session.call("FBTASKS_WORKER.ORPHANS", 999, 200)
                for each in self.running:
                    self.note(each.name, each.payload)
                self.running = []

    def enqueue(self):
        task, key = self.random.choice(self.tasks), self.random.randrange(2)
        options = {"priority": self.random.choice([0, 5]), "countdown": self.random.choice([0, 0, 0, 3600])}
        try:
            if self.random.random() < 0.5:
                with self.app.connect() as connection:
                    task.using(connection).apply_async((key,), **options)
                    if self.random.random() < 0.3:
                        return  # rolled back
                    connection.commit()
            else:
                task.apply_async((key,), **options)
        except DuplicateTask as error:
            existing = int(error.existing)
            assert one(self.app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE ID = ? AND STATE <> 2", existing)
            return
        self.note(task.name, b"[[%d],{}]" % key)

    def note(self, name, payload):
        if name.startswith("unique"):
            self.uncovered[name, payload] = self.uncovered.get((name, payload), 0) + 1

    def claim(self, most, *, from_start=True):
        for each in self.session.run(lambda t: tasks.claim(t, 1, "default", most, from_start=from_start)):
            self.uncovered[each.name, each.payload] = 0
            self.running.append(each)

    def end(self, outcome):
        ended = self.running.pop(self.random.randrange(len(self.running)))
        if reason_of(outcome) in (Reason.RETRY, Reason.CLOSED):
            self.note(ended.name, ended.payload)
        self.session.run(lambda t: tasks.finish(t, 1, 0, [Finished(ended, outcome)]))

    def promote(self):
        execute(self.app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE STATE = 1")
        self.session.run(tasks.promote)

    def check(self):
        """No limit is exceeded: counted by what runs, and by what is in."""
        counts = rows(self.app, """
            SELECT L.NAME, H.LANE, COUNT(*) FROM QUEUE_TASK T JOIN QUEUE_HOLD H ON H.TASK_ID = T.ID
                JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID
            WHERE (T.STATE = 2 OR (T.STATE = 0 AND H.SORT_KEY >= 30000)) AND L.NAME NOT STARTING WITH 'unique:'
            GROUP BY 1, 2""")  # fmt: skip
        for name, lane, count in counts:
            assert count <= LIMITS.get(name, 1), (name, lane, count)
        assert len(self.running) <= LIMITS["queue:default"]

    def is_settled(self):
        """Does all that can be done, and returns whether nothing is left to do."""
        self.promote()
        self.claim(100)
        ended = rows(self.app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE IN (11, 12)")
        for (number,) in ended:
            self.session.call("FBTASKS_OPERATOR.RETRY", number)
        while self.running:
            self.end(DONE)
        return not ended and not rows(self.app, "SELECT ID FROM QUEUE_TASK")


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 8))])
def test_no_limit_is_exceeded_each_call_is_run_and_nothing_is_left(app, session, wait_for, seed):
    walk = Walk(app, session, seed)
    for _ in range(300):
        walk.step()
        walk.check()
    wait_for(walk.is_settled)
    assert not any(walk.uncovered.values()), walk.uncovered
    assert one(app, "SELECT COUNT(*) FROM QUEUE_REDIRECT") > 0
    assert rows(app, f"SELECT * FROM {HOLDS}") == []
    execute(app, "DELETE FROM QUEUE_HISTORY")
    session.call("FBTASKS_LIMITS.FORGET_TRACES", 0, 2000)  # the failed ones could have been retried until here
    assert leaves_nothing(app)
