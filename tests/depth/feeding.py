"""What waits for tasks that are called for it: events, changes of tables, rows of polled tables."""

from support.feeding import handle, subscribe
from support.polls import Poller
from support.sql import execute

from fbtasks.features.sources.store import polling, subscriptions

from .scene import Line, Scene
from .waiting import Due

RAISED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('{event}', '{{"i":1}}');
            I = I + 1;
        END END"""
CHANGED = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; DECLARE ID BIGINT; BEGIN
        WHILE (I < {count}) DO BEGIN
            ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;
            INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, DATA)
                VALUES (1, :ID, :ID, QUEUE_NOW(), '{{"i":' || :ID || ',"o":"I","t":"2026-01-01 00:00:00.0000","x":1,'
                    || '"u":"U","k":{{"ID":' || :ID || '}}}}');
            I = I + 1;
        END END"""
BEHIND = CHANGED.replace("(SUBSCRIPTION_ID, LANE", "(SUBSCRIPTION_ID, NEWS, LANE").replace("(1, :ID", "(1, NULL, :ID")
BEHIND = BEHIND.replace(
    "I = I + 1;",
    "INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED, WAITS) VALUES (1, :ID, :ID, 1, 1); I = I + 1;",
)
BATCHES = 20_000
WHOLE = "there is no index that leads to what is new: each look reads the table, as the how-to says"


class Source(Scene):
    """Events, which have a handler or are kept for one."""

    shrinks = 4
    event = "later"

    def fill(self, count):
        for done in range(0, count, BATCHES):
            execute(self.app, RAISED.format(count=min(BATCHES, count - done), event=self.event))

    def say(self, sql):
        self.session.run(lambda t: t.script(sql))

    def raised(self, event, count=1):
        self.say(RAISED.format(count=count, event=event))


class Kept(Source):
    """Events that are kept, since nothing handles them so far."""

    name = "events without a handler"

    def set_up(self):
        handle(self.app, "now", "proj.plain", id=1)
        handle(self.app, "other", "proj.plain", id=2)
        execute(self.app, "UPDATE QUEUE_SUBSCRIPTION SET EVENT = NULL WHERE ID = 2")

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("an event that is handled, by a worker", self.handled)
        yield Line("housekeeping, which looks for old ones", self.forget)
        yield self.command("health")
        yield Line("500 that are handed on to a new handler", self.hand_on, times=1, wears=False)

    def handled(self):
        self.raised("now")
        self.take_one()

    def forget(self):
        assert self.session.run(subscriptions.prune_events) == 0

    def hand_on(self):
        self.raised(self.event, 500)
        self.say(f"UPDATE QUEUE_SUBSCRIPTION SET EVENT = '{self.event}' WHERE ID = 2")
        assert self.session.run(subscriptions.prune_events) == 500
        self.say("UPDATE QUEUE_SUBSCRIPTION SET EVENT = NULL WHERE ID = 2")
        self.say("DELETE FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 2")


class Logged(Source):
    """Events that wait in the log, for a handler that takes them in their order."""

    name = "events of one handler"
    event = "now"

    def set_up(self):
        handle(self.app, "now", "proj.plain", id=1, direct=0, ordering="total", most=1, owner="other")

    def lines(self):
        yield Line("a plain task, by a worker", self.beside)
        yield Line("one of them, by a worker", self.next_one)

    def next_one(self):
        self.raised("now")
        self.take_one()

    def beside(self):
        self.plain.apply_async(priority=9)
        self.take_one()


class DueEvents(Due):
    """Events with a start time, which has come for all of them at one moment."""

    name = "events due at one moment"

    def set_up(self):
        handle(self.app, "now", "proj.plain", id=1)

    def schedule(self, count):
        execute(
            self.app, RAISED.format(count=count, event="now").replace("}')", "}', DATEADD(1 DAY TO CURRENT_TIMESTAMP))")
        )


class Changes(Scene):
    """Changes of rows, which wait in the log: of each row one."""

    name = "changes"
    source = """
@app.task(ignore_result=True)
def fed(change): pass
"""

    def set_up(self):
        subscribe(self.app, "proj.fed", most=1, rank=1, owner="other")

    def fill(self, count):
        for done in range(0, count, BATCHES):
            execute(self.app, CHANGED.format(count=min(BATCHES, count - done)))

    def lines(self):
        yield Line("a plain task, by a worker", self.beside)
        yield Line("one of them, by a worker", self.next_one)
        yield self.command("health")

    def beside(self):
        self.plain.apply_async(priority=9)
        self.take_one()

    def next_one(self):
        self.session.run(lambda t: t.script(CHANGED.format(count=1)))
        self.take_one()


class Halted(Changes):
    """Changes that wait behind lanes that stand still since a task failed: behind each one."""

    name = "changes behind halted lanes"

    def fill(self, count):
        for done in range(0, count, BATCHES):
            execute(self.app, BEHIND.format(count=min(BATCHES, count - done)))


class Polled(Scene):
    """Rows of a table that is polled by their status."""

    name = "polled rows with a status"
    source = """
@app.poll_table("T", key="ID", status="STATUS", ready="ready", taken="taken", done="done", failed="failed")
def row_of(row): pass
"""
    made = 0

    def set_up(self):
        execute(self.app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(27))")
        execute(self.app, "CREATE INDEX T_STATUS ON T (STATUS)")
        self.polled = Poller(self.app, self.row_of).polled

    def fill(self, count):
        first, self.made = self.made, self.made + count
        execute(
            self.app,
            f"EXECUTE BLOCK AS DECLARE I INTEGER = {first}; BEGIN WHILE (I < {self.made}) DO BEGIN "
            "INSERT INTO T (ID, STATUS) VALUES (:I, 'ready'); I = I + 1; END END",
        )

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line(
            "10 of them, by a worker",
            self.ten,
            grows=1.75,
            because="of ten rows each is looked for in a deeper index",
            wears=False,
        )

    def ten(self):
        polling.look(self.session, self.polled, 10, 10)
        assert self.take(10) == 10


class PolledByKey(Polled):
    """Rows that were handled, of a table that is polled by its key, without a status."""

    name = "handled rows without a status"
    source = """
@app.poll_table("T", key="ID")
def row_of(row): pass
"""
    deepest = 100_000
    shrinks = 5

    def fill(self, count):
        for done in range(0, count, 200):
            self.handled(min(200, count - done))

    def handled(self, count):
        super().fill(count)
        polling.look(self.session, self.polled, count, count)
        assert self.take(count) == count

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("10 new ones, by a worker", lambda: self.handled(10), grows=None, because=WHOLE, wears=False)
