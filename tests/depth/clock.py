"""What comes by the clock: schedules."""

from support.sql import execute

from fbtasks.features.schedules.duty import Ticks

from .scene import Line, Scene

# Of another app: a worker that is idle beside them leaves them alone, though no code that it has says of them.
MADE = """
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
        WHILE (I < {count}) DO BEGIN
            INSERT INTO QUEUE_SCHEDULE (ID, NAME, APP, TASK, EVERY_MS, MISSED, QUEUE, PRIORITY, CONTENT_TYPE, PAYLOAD,
                NEXT_TIME)
            VALUES (NEXT VALUE FOR QUEUE_SCHEDULE_SEQ, 'no ' || GEN_ID(QUEUE_SCHEDULE_SEQ, 0), 'other', 'proj.plain',
                86400000, 'one', 'default', 9, 'application/json', '[[],{{}}]',
                DATEADD(:I SECOND TO DATEADD(1 DAY TO QUEUE_NOW())));
            I = I + 1;
        END END"""
DUE = "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 SECOND TO QUEUE_NOW()) WHERE ID <= {last} RETURNING 1"


class Schedules(Scene):
    """Schedules that tick next tomorrow."""

    name = "schedules"
    deepest = 10_000

    def fill(self, count):
        execute(self.app, MADE.format(count=count))

    def tick(self, many=1):
        self.session.run(lambda t: t.generated(DUE.format(last=many)))
        ticks = Ticks(lambda: True)
        while ticks.do(self.session):
            pass
        assert self.take(many) == many

    def lines(self):
        yield Line("a plain task, by a worker", self.plain_one)
        yield Line("a tick of one of them", self.tick)
        yield Line("ticks of 150 at one moment", lambda: self.tick(150), times=1, wears=False)
        yield self.command("health", grows=None, because="it looks through all for those that stand still", times=1)
