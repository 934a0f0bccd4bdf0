"""Lanes under random operations: no two tasks of one lane at once, nothing lost, and nothing that stands still."""

import itertools
import json
import random

import pytest
from support.feeding import left, subscribe
from support.sql import NOW, execute, named

from fbtasks import QueueFull
from fbtasks.features.sources.runs import Rest
from fbtasks.features.sources.store import rests
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Failed, Finished, Reason, Requeue, Succeeded

NAME = "tests.handle"
STEPS = ["change", "claim"] * 5 + ["done"] * 3 + ["released", "failed", "failed", "advanced", "failed with rest"]
CHANGE = f"INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, DATA) VALUES (1, ?, ?, {NOW}, ?)"
CANCEL = named("EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(?, 12, NULL, 0, NULL, 'cancelled', NULL, NULL, NULL)")
OPERATORS = ["retry", "retry", "dismiss", "cancel", "claim beside a lock"]


class Lanes:
    """A subscription, what was done with its changes, and what runs."""

    def __init__(self, connection, session, random, ordering, plain):
        self.connection, self.session, self.random, self.plain = connection, session, random, plain
        self.lanes = [0] if ordering == "total" else [-5, 0, 7]
        self.made, self.handled, self.dismissed, self.running = set(), set(), set(), []

    def sql(self, statement, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            found = cursor.fetchall() if cursor.description else []
        self.connection.commit()
        return found

    def change(self):
        number, lane = (
            self.sql("SELECT NEXT VALUE FOR QUEUE_CHANGE_SEQ FROM RDB$DATABASE")[0][0],
            self.random.choice(self.lanes),
        )
        self.sql(CHANGE, lane, number, json.dumps({"i": number}).encode())
        self.made.add(number)

    def step(self, what):
        match what:
            case "change":
                self.change()
            case "plain":
                try:
                    self.plain.apply_async(countdown=self.random.choice([0, 3600]))
                except QueueFull:
                    pass
            case "claim":
                self.claim(self.random.choice([1, 2, 10]), from_start=self.random.random() < 0.5)
            case "claim beside a lock":
                with self.connection.cursor() as cursor:
                    cursor.execute("SELECT ID FROM QUEUE_TASK WHERE STATE = 4 WITH LOCK").fetchall()
                    self.claim(10)
                self.connection.rollback()
            case "retry" | "dismiss":
                if ended := self.sql("SELECT ID, PAYLOAD FROM QUEUE_HISTORY WHERE STATE IN (11, 12)"):
                    self.operate(what, *self.random.choice(ended))
            case "cancel":
                if waiting := self.sql(f"SELECT ID FROM QUEUE_TASK WHERE STATE IN (0, 4) AND NAME = '{NAME}'"):
                    number = self.random.choice(waiting)[0]
                    self.sql(CANCEL, number)
            case _ if self.running:
                self.end(self.running.pop(self.random.randrange(len(self.running))), what)

    def claim(self, most, *, from_start=True):
        for each in self.session.run(lambda t: tasks.claim(t, 1, "default", most, from_start=from_start)):
            if each.name == NAME:
                self.running.append(each)
            else:
                self.finish(each, Succeeded(keep=False))

    def operate(self, what, number, payload):
        if what == "dismiss":
            self.dismissed |= numbers(payload)
            assert self.session.call("FBTASKS_READER.DISMISS", number)
            return
        try:
            assert self.session.call("FBTASKS_OPERATOR.RETRY", number)
        except QueueFull:
            pass

    def finish(self, claim, outcome):
        ended = [Finished(claim, outcome, 0.0)]
        assert self.session.run(lambda t: rests.put(t, 0, ended) + tasks.finish(t, 1, 0, ended)) == []

    def end(self, claim, how):
        members = json.loads(claim.payload)[0]
        first, rest = (json.dumps([some, {}]).encode() for some in (members[:1], members[1:]))
        several = len(members) > 1
        if how == "done":
            self.handled |= numbers(claim.payload)
            self.finish(claim, Succeeded(keep=False))
        elif how == "failed":
            self.finish(claim, Failed("E", "m", ""))
        elif how == "advanced" and several:
            self.handled |= numbers(first)
            self.finish(claim, Requeue(Reason.CONTINUE, extra=Rest(rest, tries=0)))
        elif how == "failed with rest" and several:
            self.finish(claim, Failed("E", "m", "", extra=Rest(first, rest)))
        else:
            self.finish(claim, RELEASED)

    def is_alone(self):
        """Whether no lane has two tasks that are ready or run."""
        return not self.sql(
            "SELECT H.LANE FROM QUEUE_TASK T JOIN QUEUE_HOLD H ON H.TASK_ID = T.ID AND H.STEP = -1 "
            "WHERE T.STATE IN (0, 2) AND H.OWNER_ID = 1 GROUP BY 1 HAVING COUNT(*) > 1",
        )

    def settle(self):
        """Does all that can be done, until nothing is left to be claimed or retried."""
        quiet = 0
        while quiet < 3:
            self.sql("UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-1 MINUTE TO WAKE_TIME)")
            self.sql("UPDATE QUEUE_FEEDER SET DUE_TIME = DATEADD(-1 MINUTE TO DUE_TIME)")
            self.claim(10)
            ended = self.sql("SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE IN (11, 12)")[0][0]
            quiet = 0 if self.running or ended else quiet + 1
            while self.running:
                self.step("done")
            self.step("retry")


def numbers(payload):
    return {each["i"] for each in json.loads(payload)[0]}


ALWAYS = [("key", True, 0, 1), ("total", False, 1, 3)]
VARIANTS = [
    pytest.param(*each, marks=[] if each in ALWAYS else [pytest.mark.slow])
    for each in itertools.product(("key", "total"), (False, True), (0, 1), range(1, 6))
]


@pytest.mark.parametrize(("ordering", "bounded", "stops", "seed"), VARIANTS)
def test_lanes_under_random_operations(app, ordering, bounded, stops, seed):
    app.queue("default", **({"max_length": 3, "when_full": "reject"} if bounded else {}))
    plain = app.task(name="plain")(lambda: None)
    plain.delay().revoke()
    execute(app, "DELETE FROM QUEUE_HISTORY")
    subscribe(app, NAME, ordering=ordering, most=3, stops=stops)
    steps = [*STEPS, *OPERATORS, *(["plain", "plain"] if bounded else [])]
    with app.database.session() as session, app.connect() as connection:
        lanes = Lanes(connection, session, random.Random(seed), ordering, plain)
        for _ in range(150):
            lanes.step(lanes.random.choice(steps))
            assert lanes.is_alone()
        lanes.sql("DELETE FROM QUEUE_TASK WHERE NAME = 'plain'")
        lanes.settle()
        assert left(app) == (0, 0, 0, 0, 0)
        assert lanes.made == lanes.handled | lanes.dismissed
        assert not tasks.any_ready(session, ("default",)).ready
