"""A statement that was prepared while little waited costs no more when much does, in other queues.

The engine decides when it prepares how it looks for the values of ``COLUMN IN (...)`` in an index: of a small table by
walking on from one to the next.
"""

import pytest
from support.sql import execute, fetches_of

from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import QueueSpec
from fbtasks.queue import tasks
from fbtasks.queue.operations.moving import Move
from fbtasks.queue.operations.queues import described

SLACK = 12
WAITING = """
    EXECUTE BLOCK AS DECLARE N INTEGER = 0; BEGIN
        WHILE (N < {count}) DO BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CONTENT_TYPE)
                VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'other', DECODE(MOD(:N, 2), 0, 'a', 'z'),
                    DECODE(MOD(:N, 5), 0, 0, 1, 1, 2, 3, 3, 4, 5), 0, QUEUE_NOW(), QUEUE_NOW(), 'application/json');
            INSERT INTO QUEUE_MSG (ID, QUEUE_ID, STATE, PRIORITY, START_TIME, EXCHANGE, ROUTING_KEY)
                VALUES (NEXT VALUE FOR QUEUE_MSG_SEQ, IIF(MOD(:N, 2) = 0, {first}, {last}), 0, 0, QUEUE_NOW(), '', '');
            N = N + 1;
        END END"""


def asked(app, session):
    """What is asked of the queue "m", by names."""

    def declare(name="m", **options):
        session.run(lambda t: messages.declare_queue(t, QueueSpec(name, **options), None))

    def drop():
        declare("gone")
        session.run(lambda t: t.call("FBTASKS_CELERY.DROP_QUEUE", "gone", False, True, None))

    yield "described", lambda: described(app.database, session, ())
    yield "purge", lambda: session.call("FBTASKS_OPERATOR.PURGE", "m", 10)
    yield "left", lambda: tasks.left(session, ["m"])
    yield "opens", lambda: session.read("FBTASKS_WORKER.STILL_OPENS", "m")
    yield "move", lambda: list(Move(session, "m", "n", None).run())
    yield "declare", declare
    yield "drop", drop


@pytest.mark.embedded("a server reads the same pages")
def test_what_was_prepared_when_little_waited_costs_no_more_when_much_does(app, session):
    app.queue("m", max_length=100)
    app.migrate()
    first, _, last = (session.run(lambda t, q=q: messages.declare_queue(t, QueueSpec(q), None)).id for q in "amz")
    execute(app, WAITING.format(count=100, first=first, last=last))
    before = fetches_of(session, asked(app, session))
    for _ in range(4):
        execute(app, WAITING.format(count=10_000, first=first, last=last))
    after = fetches_of(session, asked(app, session))
    assert {what: (before[what], n) for what, n in after.items() if n > before[what] + SLACK} == {}
