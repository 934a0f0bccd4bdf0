"""Workflows whose steps are run by several workers, of which some are killed: each step once, with all results.

FBTASKS_ROUNDS says how often the slow variants of chords are run.
"""

import os
import signal
import time

import pytest
from support.sql import execute, one, rows
from support.variants import slow

from fbtasks import TaskRevoked, chain, chord, group

PROJECT = """
@app.task(name="member")
def member(number):
    return number

@app.task(name="body")
def body(numbers):
    return numbers
"""
LEDGER = [
    "CREATE TABLE MOVE (ID BIGINT, STATE SMALLINT)",
    """CREATE TRIGGER MOVED FOR QUEUE_TASK AFTER UPDATE AS BEGIN
        IF (OLD.STATE = 5 AND NEW.STATE <> 5) THEN INSERT INTO MOVE VALUES (NEW.ID, NEW.STATE);
    END""",
]


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("members", "workers", "kills"),
    [
        (120, 2, 1),
        *(
            pytest.param(10_000, 4, 4, marks=pytest.mark.slow, id=f"round {number}")
            for number in range(int(os.environ.get("FBTASKS_ROUNDS", "1")))
        ),
    ],
)
def test_a_chord_has_one_body(project, wait_for, members, workers, kills):
    with project.producer(PROJECT) as app:
        app.migrate()
        for statement in LEDGER:
            execute(app, statement)
        member, body = (app.task(name=name)(lambda _: None) for name in ("member", "body"))
        results = [chord([member.s(i) for i in range(members)], body.s()).delay() for _ in range(2)]
        running = [project.worker("--pool", "solo", "--lease", "5") for _ in range(workers)]
        done = "SELECT COUNT(*) FROM QUEUE_NODE WHERE DONE = 1"
        for kill in range(kills):
            wait_for(lambda kill=kill: one(app, done) > (2 * members - 100) * (kill + 1) // kills, 200)
            running[kill % workers].kill()
            running[kill % workers] = project.worker("--pool", "solo", "--lease", "5")
        for result in results:
            assert result.get(timeout=120) == list(range(members))
        assert rows(app, "SELECT ID, STATE FROM MOVE ORDER BY ID") == [(int(result.id), 0) for result in results]
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0") == 0)
        assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


STEPS = """
import time
from fbtasks import group

@app.task(name="add")
def add(one, other):
    return one + other

@app.task(name="wait")
def wait(seconds):
    time.sleep(seconds)

@app.task(name="total")
def total(numbers):
    return sum(numbers)

@app.task(name="swap", bind=True)
def swap(self, numbers):
    self.replace(group(add.s(n, 1) for n in numbers) | total.s())

@app.task(name="effect", bind=True, transactional=True)
def effect(self, numbers):
    self.replace(group(add.s(n, 1) for n in numbers) | total.s())
"""


def tasks_of(app, *names):
    return [app.task(name=name)(lambda *_: None) for name in names]


def assert_nothing_is_left(app, wait_for):
    wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0") == 0)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


@pytest.mark.acceptance
@pytest.mark.parametrize(("task", "point"), [("swap", "finish"), slow("effect", "effect")])
def test_a_task_replaces_itself_once(project, wait_for, task, point):
    """Its worker, or child, is killed just before or after the commit with the workflow."""
    with project.producer(STEPS) as app:
        swap, add = tasks_of(app, task, "add")
        pool = ("--pool", "solo") if task == "swap" else ("-c", "1")
        results = []
        for moment in ("before", "after"):
            results.append(chain(swap.s([1, 2, 3]).set(queue=moment), add.s(100)).delay())
            worker = project.worker(*pool, "--lease", "5", "-Q", moment, fault=f"{point}.{moment}")
            if task == "effect":  # there it is the child that dies
                wait_for((project.folder / "fault").exists)
                wait_for(lambda queue=moment: not rows(app, "SELECT 1 FROM QUEUE_TASK WHERE QUEUE = ?", queue))
                worker.terminate()
            assert worker.wait(60) == (0 if task == "effect" else -signal.SIGKILL)
            (project.folder / "fault").unlink()
        project.worker(*pool, "--lease", "5", "-Q", "before,after,default")
        assert [result.get(timeout=60) for result in results] == [109, 109]
        sql = "SELECT NAME, COUNT(*) FROM QUEUE_HISTORY GROUP BY NAME ORDER BY NAME"
        assert rows(app, sql) == [("add", 8), ("total", 2)]
        assert_nothing_is_left(app, wait_for)


@pytest.mark.acceptance
@pytest.mark.slow
def test_a_long_chain_goes_on_from_worker_to_worker(project, wait_for):
    with project.producer(STEPS) as app:
        (add,) = tasks_of(app, "add")
        for statement in LEDGER:
            execute(app, statement)
        result = chain(add.s(0, 1), *(add.s(1) for _ in range(999))).delay()
        running = [project.worker("--pool", "solo", "--lease", "5") for _ in range(2)]
        for kill in range(4):
            wait_for(lambda kill=kill: one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") > 200 * (kill + 1), 200)
            running[kill % 2].kill()
            running[kill % 2] = project.worker("--pool", "solo", "--lease", "5")
        assert result.get(timeout=300) == 1_000
        assert rows(app, "SELECT COUNT(*), COUNT(DISTINCT ID) FROM MOVE") == [(999, 999)]
        assert_nothing_is_left(app, wait_for)


@pytest.mark.acceptance
@pytest.mark.parametrize("members", [300, slow(10_000)])
def test_a_large_group_is_cancelled_in_the_middle(project, wait_for, members):
    """Whatever runs: all has ended ten seconds later, and who waits hears of it."""
    with project.producer(STEPS) as app:
        wait, add, total = tasks_of(app, "wait", "add", "total")
        parts = [add.s(1, 1) for _ in range(members // 10)] + [wait.s(60) for _ in range(members - members // 10)]
        result = (group(parts) | total.s() | add.s(1)).delay()
        for _ in range(2):
            project.worker("-c", "2")
        waiting = "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'wait' AND STATE = 2"
        wait_for(lambda: one(app, waiting) >= 4, 120)
        began = time.monotonic()
        assert result.cancel(terminate=True) >= members - members // 10
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0, 60)
        took = time.monotonic() - began
        for each in (result, result.parent, result.parent.parent):
            with pytest.raises(TaskRevoked):
                each.get(timeout=10)
        assert took < 10
        assert_nothing_is_left(app, wait_for)
