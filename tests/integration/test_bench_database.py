"""The statements of the benchmark, and that it deletes what it wrote."""

import pytest
from support.sql import execute

from benchmarks.database import BenchDatabase


@pytest.fixture
def bench(app):
    app.task(name="other")(print).delay()
    with BenchDatabase(str(app.settings.url.reveal())) as database:
        yield database


def states(app, table, queue):
    return [row[0] for row in execute(app, f"SELECT STATE FROM {table} WHERE QUEUE = '{queue}'")]


def test_claimed_tasks_are_deleted_or_moved_to_the_history(app, bench):
    bench.insert("noop", 5)
    bench.insert_bare("noop", bench.now())
    bench.insert("noop", 1, after=60)
    with bench.registered() as worker_id:
        assert not bench.drained()
        first = bench.claim(worker_id, 4)
        second = bench.claim(worker_id, 4)
        assert (first.number, second.number, bench.claim(worker_id, 4).number) == (4, 2, 0)
        bench.delete(first)
        assert not bench.drained()
        bench.move(second)
        assert bench.drained()
    assert states(app, "QUEUE_TASK", bench.queue) == [1]
    assert states(app, "QUEUE_HISTORY", bench.queue) == [10, 10]


def test_it_deletes_what_it_wrote_and_nothing_else(app, bench):
    bench.insert("noop", 3)
    bench.fill_history("noop", 3)
    with bench.snapshot():
        bench.clear()
    assert states(app, "QUEUE_TASK", bench.queue) == states(app, "QUEUE_HISTORY", bench.queue) == []
    assert states(app, "QUEUE_TASK", "default") == [0]
