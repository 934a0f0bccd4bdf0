"""Parked tasks: what they cost the workers that do not know their names, and what these say."""

import re
import time

import pytest
from support.sql import execute, one, rows

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance

PARK = """
    EXECUTE BLOCK AS
        DECLARE I INTEGER = 0;
    BEGIN
        WHILE (I < 6000) DO
        BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CLAIM_TIME,
                CONTENT_TYPE, PAYLOAD)
            VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'proj.unknown' || MOD(:I, 3), 'default', 3, 0, QUEUE_NOW(),
                QUEUE_NOW(), QUEUE_NOW(), 'application/json', '[[], {}]');
            I = I + 1;
        END
    END
"""

READS = """
    SELECT R.MON$RECORD_SEQ_READS + R.MON$RECORD_IDX_READS, W.HEARTBEAT_TIME
    FROM QUEUE_PROCESS W JOIN MON$ATTACHMENTS A ON A.MON$ATTACHMENT_ID = W.ATTACHMENT_ID
        JOIN MON$RECORD_STATS R ON R.MON$STAT_ID = A.MON$STAT_ID
"""


@pytest.fixture
def producer(project):
    project.write("@app.task\ndef add(a, b): return a + b\n")
    app = FBTasks("producer", project.url)
    yield app
    app.close()


def test_what_is_parked_costs_the_heartbeats_of_others_nothing(project, producer, wait_for):
    producer.migrate()
    execute(producer, PARK)
    project.worker("-c", "1", "--lease", "3")
    assert producer.send_task("proj.add", (1, 2)).get(timeout=60) == 3

    def beaten(times):
        """The worker's reads so far, after so many more heartbeats."""
        seen = set()

        def look():
            for reads, moment in rows(producer, READS):
                seen.add(moment)
                if len(seen) > times:
                    return reads
            return None

        return wait_for(look)

    reads = beaten(9)
    print(f"{reads / 9:.0f} reads for each heartbeat")
    # It looked five or six times: when it started and when it began to hear events, and its maintenance for what is to
    # be given up. The rest of what it does reads a hundred rows, and a look at each heartbeat would be nine more.
    assert 6_000 < reads < 6 * 6_000 + 1_000

    # A name that it knows is found as soon as one of that name is parked.
    execute(producer, "UPDATE QUEUE_TASK SET NAME = 'proj.add', PAYLOAD = '[[2, 3], {}]' WHERE NAME = 'proj.unknown0'")
    execute(producer, "EXECUTE BLOCK AS BEGIN POST_EVENT 'fbtasks:parked'; END")
    wait_for(lambda: one(producer, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'proj.add'") == 0, 60)
    assert one(producer, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 3") == 6_000 - 2_000


def test_the_log_has_one_line_for_each_name(project, producer):
    calls = [producer.enqueuer.make_call(f"proj.new{n % 2}", (n,), {}) for n in range(200)]
    producer.enqueuer.enqueue([*calls, producer.enqueuer.make_call("proj.ad", (1, 2), {})])
    began = time.monotonic()
    log = project.run("worker", "-A", "proj", "-c", "1", "--burst").stderr
    minutes = int((time.monotonic() - began) / 60)
    said = re.findall(r"Tasks named '(proj.new\d)' are parked", log)
    assert set(said) == {"proj.new0", "proj.new1"}
    assert "'proj.ad' are parked: this worker knows no task of that name. Did you mean 'proj.add'? Start" in log
    left = "100 tasks named 'proj.new0', 100 tasks named 'proj.new1', 1 task named 'proj.ad'"
    assert f"WARNING Left parked: {left}. See: fbtasks inspect parked" in log
    assert len(said) <= 2 + 2 * minutes
    assert one(producer, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 3") == 201
    assert "this worker knows no task of that name. Start a worker that imports it, or give the" in log
