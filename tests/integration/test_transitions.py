"""Every move of a task from one state to another is an allowed one, and each allowed one is made."""

import itertools
from contextlib import closing
from datetime import timedelta

from support.draining import drain
from support.feeding import change, subscribe
from support.programs import command_line
from support.rules import TRANSITIONS
from support.sql import NOW, execute, rows

from fbtasks import FBTasks, group
from fbtasks.queue import tasks
from fbtasks.states import State
from fbtasks.tasks.call import RELEASED, Cancelled, Failed, Finished, Reason, Requeue, Succeeded

MOVES = [
    "CREATE SEQUENCE MOVE_SEQ",
    "CREATE TABLE MOVE (SEQ BIGINT, TRANS BIGINT, ID BIGINT, STATE SMALLINT)",
    """CREATE TRIGGER MOVE_TASK FOR QUEUE_TASK AFTER INSERT OR UPDATE AS BEGIN
        IF (INSERTING OR NEW.STATE <> OLD.STATE) THEN
            INSERT INTO MOVE VALUES (NEXT VALUE FOR MOVE_SEQ, CURRENT_TRANSACTION, NEW.ID, NEW.STATE);
    END""",
    """CREATE TRIGGER MOVE_HISTORY FOR QUEUE_HISTORY AFTER INSERT AS BEGIN
        INSERT INTO MOVE VALUES (NEXT VALUE FOR MOVE_SEQ, CURRENT_TRANSACTION, NEW.ID, NEW.STATE);
    END""",
]


def test_every_move_between_states_is_an_allowed_one(url, wait_for):
    """Triggers of the test note each state that a task comes to; what one transaction does to it is one move."""
    app = FBTasks("moving", url)
    app.migrate()
    for statement in MOVES:
        execute(app, statement)
    ok = app.task(name="ok")(lambda: 1)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)

    @app.task(name="again", bind=True)
    def again(self, countdown):
        if not self.request.retries:
            self.retry(countdown=countdown)

    @app.task(name="regret", bind=True)
    def regret(self):
        app.AsyncResult(self.request.id).revoke()
        self.retry(countdown=3600)

    ok.delay()
    at_once, later, regretted, failed = again.delay(0), again.delay(3600), regret.delay(), bad.delay()
    waiting, scheduled = ok.apply_async(queue="nobody"), ok.apply_async(countdown=99)
    expired = ok.apply_async(expires=0.001)
    never, taken, dropped = (app.send_task(name) for name in ("never", "later known", "dropped"))
    assert waiting.revoke()
    assert scheduled.revoke()
    wait_for(lambda: rows(app, f"SELECT 1 FROM QUEUE_TASK WHERE ID = {expired.id} AND EXPIRE_TIME < {NOW}"))
    drain(app)
    assert (at_once.status, regretted.status, expired.status) == ("SUCCESS", "REVOKED", "REVOKED")
    assert later.status == "RETRY"
    assert dropped.revoke()
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO {NOW}) WHERE STATE = 1")
    app.task(name="later known")(lambda: "known")
    wait_for(lambda: drain(app) or taken.ready())
    assert (later.status, taken.get(timeout=5)) == ("SUCCESS", "known")
    with closing(FBTasks("impatient", url, unknown_task_timeout=timedelta(milliseconds=1))) as impatient:
        drain(impatient)
    assert never.failed()
    for result in (failed, waiting):
        assert command_line("retry", result.id, "--url", url) == 0
    drain(app, ["default", "nobody"])
    # A worker that is stopped gives back what it holds.
    lost = ok.delay()
    with app.database.session() as session:
        claim = session.run(lambda t: tasks.claim(t, 99, "default", 1))[0]
        session.run(lambda t: tasks.finish(t, 99, 0, [Finished(claim, RELEASED)]))
    drain(app)
    assert lost.get(timeout=5) == 1

    # Steps of workflows await others, and do so again when the one is put back that they follow.
    execute(app, "SELECT NEXT VALUE FOR QUEUE_OWNER_SEQ FROM RDB$DATABASE")  # the subscription below is the first
    app.limit("gate", at_once=1)
    step, gated = (
        app.task(name=name, limits=limits)(lambda *given: None)
        for name, limits in (("step", None), ("gated", {"gate": None}))
    )
    (ok.s() | group(step.s(), step.s().set(countdown=99), gated.s(), gated.s())).delay()
    drain(app)
    (ok.s() | step.s() | step.s()).delay()
    with app.database.session() as session:  # what follows is claimed in the transaction in which a step ends
        first = session.run(lambda t: tasks.claim(t, 99, "default", 1))

        def exchange(transaction):
            tasks.finish(transaction, 99, 0, [Finished(first[0], Succeeded("application/json", b"1"))])
            return tasks.claim(transaction, 99, "default", 1)

        claims = session.run(exchange)
        session.run(lambda t: tasks.finish(t, 99, 0, [Finished(claims[0], Succeeded(keep=False))]))
    ended = (group(bad.s(), ok.s()) | step.s() | step.s()).delay()
    drain(app)
    assert (ended.status, ended.parent.status) == ("REVOKED", "FAILURE")
    assert command_line("retry", ended.parent.parent.results[0].id, "--url", url) == 0
    assert (ended.status, ended.parent.status) == ("PENDING", "PENDING")
    drain(app)

    # Limits, pauses, and a workflow in the place of a call.
    gated.delay()
    with app.database.session() as session:
        claims = session.run(lambda t: tasks.claim(t, 99, "default", 1))
        session.run(lambda t: tasks.finish(t, 99, 0, [Finished(claims[0], Requeue(Reason.RETRY))]))
    gated.apply_async(countdown=99)
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO {NOW}) WHERE STATE = 1")
    drain(app)
    ok.delay()
    gated.delay()
    assert command_line("pause", "--task", "ok", "--task", "gated", "--url", url) == 0
    drain(app)
    assert command_line("resume", "--task", "ok", "--task", "gated", "--url", url) == 0
    app.task(name="replaced", bind=True)(lambda self: self.replace(ok.s() | step.s())).delay()
    drain(app)
    (ok.s() | step.s()).delay()
    assert command_line("pause", "--task", "step", "--url", url) == 0
    with app.database.session() as session:
        first = session.run(lambda t: tasks.claim(t, 99, "default", 1))
        assert session.run(exchange) == []
    assert command_line("resume", "--task", "step", "--url", url) == 0
    drain(app)

    # A task of a lane waits to be let in when it is put back.
    subscribe(app, "bad", most=1)
    for lane in (1, 2, 3):
        change(app, lane)
    with app.database.session() as session:
        claims = session.run(lambda t: tasks.claim(t, 99, "default", 3))
        items = [Finished(each, Failed("E", "m", "")) for each in claims[:2]]
        session.run(lambda t: tasks.finish(t, 99, 0, [*items, Finished(claims[2], Cancelled("c"))]))
    for each in claims[:2]:
        assert command_line("retry", str(each.id), "--url", url) == 0
    assert app.AsyncResult(claims[0].id).revoke()
    suspect = ok.delay()
    execute(
        app,
        "UPDATE QUEUE_TASK SET SUSPECT = 1, START_TIME = DATEADD(-1 SECOND TO START_TIME) WHERE ID = ?",
        int(suspect.id),
    )
    with app.database.session() as session:
        found = []
        while [int(suspect.id)] not in found or [claims[1].id] not in found:  # a suspect is alone, first or last
            found.append([each.id for each in session.run(lambda t: tasks.claim(t, 99, "default", 3))])
            assert found[-1]
        assert command_line("retry", str(claims[2].id), "--url", url) == 0
        execute(app, "UPDATE QUEUE_TASK SET QUEUE = 'other' WHERE ID = ?", claims[2].id)
        assert session.run(lambda t: tasks.claim(t, 99, "default", 3)) == []  # which has it be ready there
        assert [each.id for each in session.run(lambda t: tasks.claim(t, 99, "other", 3))] == [claims[2].id]

    moves = set()
    states = rows(app, "SELECT ID, TRANS, STATE FROM MOVE ORDER BY ID, SEQ")
    for _, one_task in itertools.groupby(states, key=lambda row: row[0]):
        ends = [list(steps)[-1][2] for _, steps in itertools.groupby(one_task, key=lambda row: row[1])]
        moves.update((State(a), State(b)) for a, b in itertools.pairwise(ends) if a != b)
    allowed = {(before, after) for before, leads in TRANSITIONS.items() for after in leads}
    assert moves - allowed == set()
    assert allowed - moves == set()
    app.close()
