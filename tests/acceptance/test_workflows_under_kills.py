"""Chords whose members are run by several workers, of which some are killed: one body, with all results."""

import pytest
from support.sql import execute, one, rows

from fbtasks import chord

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
    [(1_000, 2, 1), pytest.param(10_000, 4, 4, marks=pytest.mark.slow)],
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
            wait_for(lambda kill=kill: one(app, done) > (2 * members - 100) * (kill + 1) // kills, 120)
            running[kill % workers].kill()
            running[kill % workers] = project.worker("--pool", "solo", "--lease", "5")
        for result in results:
            assert result.get(timeout=120) == list(range(members))
        assert rows(app, "SELECT ID, STATE FROM MOVE ORDER BY ID") == [(int(result.id), 0) for result in results]
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_NOTE") == 0)
        assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
