"""Tasks that wait for their time, and those whose time has passed."""

from datetime import UTC, datetime, timedelta

import pytest
from support.draining import drain
from support.loops import opened, running
from support.sql import one

from fbtasks import TaskRevoked
from fbtasks.queue import results
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor

pytestmark = pytest.mark.emptied


def test_scheduled_tasks_wait_for_their_time(app, add, wait_for):
    late = add.apply_async((1, 1), countdown=3600)
    soon = add.apply_async((1, 2), countdown=0.2)
    past = add.apply_async((1, 3), eta=datetime.now() - timedelta(days=1))
    drain(app)
    assert past.get(timeout=1) == 4
    assert wait_for(lambda: drain(app) or soon.ready())
    assert late.status == "PENDING"


def test_scheduled_tasks_are_seen_without_events(app, add, wait_for):
    with opened(app, name="deaf") as loop, running(loop):
        assert add.delay(1, 1).get(timeout=20) == 2
        assert add.apply_async((1, 2), countdown=0.5).get(timeout=5) == 3


def test_a_worker_that_is_asked_to_end_before_its_database_is_ready_registers_and_ends(app):
    """As one that is asked later: its log says what it has done."""
    options = WorkerOptions(name="early", queues=("default",), pool="solo", concurrency=1)
    loop = Loop(app, SoloExecutor(app), options)
    loop.drain.begin()
    assert loop.start()
    assert loop.lease.worker_id
    loop.run()
    loop.close()


def test_naive_eta_is_local_time_and_aware_is_itself(app, add):
    for eta in (datetime.now() + timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)):
        number = int(add.apply_async((1, 1), eta=eta).id)
        with app.database.session() as session:
            start = results.find(session, number).start_time
        assert abs((start - datetime.now(UTC)).total_seconds() - 3600) < 60


def test_expired_tasks_are_revoked(app, add, wait_for):
    result = add.apply_async((1, 1), expires=0.05)
    wait_for(lambda: one(app, "SELECT EXPIRE_TIME < QUEUE_NOW() FROM QUEUE_TASK"))
    drain(app)
    with pytest.raises(TaskRevoked, match="expired"):
        result.get(timeout=1)
    assert result.status == "REVOKED"
