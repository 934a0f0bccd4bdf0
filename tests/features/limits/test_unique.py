"""Unique tasks: which calls are merged into which, what the results of those are, and that nothing gets stuck."""

import time

import pytest
from firebird.driver import Isolation, tpb
from support.held import nothing_left
from support.programs import command_line
from support.sql import NOW, execute, held, one, rows

from fbtasks import DuplicateTask, Unique, debounce
from fbtasks.errors import EnqueueError, ResultTimeout, TaskRevoked
from fbtasks.features.limits.gating import passes
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as task_service
from fbtasks.tasks.call import Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
KEPT = Succeeded("application/json", b'"done"')
FAILED = Failed("builtins.ValueError", "no", "", b'["no"]')


@pytest.fixture
def end(session):
    def end(claims, outcome=KEPT):
        assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, outcome) for each in claims])) == []

    return end


def unique(app, *, name="index", **options):
    return app.task(name=name, unique=Unique(by="key", **options))(lambda key, text="": None)


def later(app, task, *args, **options):
    """A call in a transaction of the application's, which is committed: always written, and merged later."""
    with app.connect() as connection:
        result = task.using(connection).apply_async(args, **options)
        connection.commit()
    return app.AsyncResult(result.id)


DAY = 86_400_000
"""In milliseconds."""


def hold(app):
    """Calls are merged from here on, and none is let in."""
    execute(app, f"UPDATE QUEUE_LIMIT SET QUIET_MS = QUIET_MS + {DAY}, MOST_MS = MOST_MS + {DAY}")


def let_in(app):
    """Those that were held are let in."""
    execute(app, f"UPDATE QUEUE_LIMIT SET QUIET_MS = QUIET_MS - {DAY}, MOST_MS = MOST_MS - {DAY}")
    execute(app, f"UPDATE QUEUE_GATE SET WAKE_TIME = {NOW} WHERE WAITS = 1")
    execute(app, f"UPDATE QUEUE_FEEDER SET DUE_TIME = {NOW}")


def runs(claims):
    return [(each.id, each.payload) for each in claims]


def leaves_nothing(app, claim):
    for _ in range(2):
        assert claim() == []
    assert rows(app, "SELECT * FROM QUEUE_GATE WHERE WAITS = 1") == []
    with app.database.session() as session:
        while session.call("FBTASKS_LIMITS.FORGET_GATES", 1000):
            pass
    return nothing_left(app, "QUEUE_GATE")


@pytest.mark.parametrize("folded", [False, True])
def test_a_call_finds_one_that_waits(app, claim, end, folded):
    index = unique(app)
    first = index.delay(1)
    if folded:
        hold(app)
        assert claim() == []
    again, other = index.delay(1, "again"), index.delay(2)
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.id == first.id
    let_in(app)
    running = claim()
    assert runs(running) == [(int(first.id), b"[[1],{}]"), (int(other.id), b"[[2],{}]")]
    newer = index.delay(1)  # that one has begun
    assert not newer.duplicate
    end(running)
    end(claim())
    assert again.get(timeout=10) == first.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


def test_of_many_calls_at_once_one_is_enqueued(app):
    found = unique(app).delay_many([(1, "x" * 3000), (2,), (1, "y" * 3000), (2,), (1,)])
    assert [each.duplicate for each in found] == [False, False, True, True, True]
    assert len({each.id for each in found}) == one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 2
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 1


def test_calls_in_a_transaction_of_yours_and_those_with_an_id_are_merged_later(app, claim, end):
    index = unique(app)
    first, second = index.delay(1), later(app, index, 1)
    third = index.apply_async((1,), task_id="mine")
    assert not third.duplicate
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 3
    running = claim()
    assert [each.id for each in running] == [int(first.id)]
    assert {each.status for each in (first, second, third)} == {"STARTED"}
    end(running)
    assert [each.get(timeout=10) for each in (first, second, third, app.AsyncResult("mine"))] == ["done"] * 4
    assert leaves_nothing(app, claim)


def test_a_call_passes_one_that_another_transaction_holds(app, claim, end):
    index = unique(app)
    first = index.delay(1)
    with held(app, "QUEUE_TASK", int(first.id)):
        second = index.delay(1)
        assert not second.duplicate
        running = claim()
        assert [each.id for each in running] == [int(second.id)]
    end(running)
    end(claim())
    assert first.get(timeout=10) == second.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


def test_the_one_that_waits_is_not_forgotten_while_another_transaction_holds_it(app, claim, end, wait_for):
    index = unique(app)
    first = index.delay(1)
    hold(app)
    assert claim() == []  # it is the one that waits at the gate
    with held(app, "QUEUE_TASK", int(first.id)):
        second = later(app, index, 1)
        assert claim() == []
    let_in(app)
    found = wait_for(claim)
    assert [each.id for each in found] == [int(first.id)]
    end(found)
    assert second.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


def test_who_waits_for_a_merged_task_is_told_at_once(app, claim, end):
    index = unique(app)
    first, second = index.delay(1), later(app, index, 1)
    end(claim())
    claim()
    began = time.monotonic()
    assert second.get(timeout=10) == first.get(timeout=10) == "done"
    assert time.monotonic() - began < 5


def test_each_question_about_a_merged_task_is_answered_for_the_one_that_runs(app, url, claim, end, capsys):
    index = unique(app)
    first, second = index.delay(1, "first"), later(app, index, 1, "second")
    running = claim()
    with pytest.raises(ResultTimeout):
        second.get(timeout=0)
    end(running, FAILED)
    assert (second.status, second.ready(), second.failed()) == ("FAILURE", True, True)
    with pytest.raises(ValueError, match="no"):
        second.get(timeout=10)
    detail = task_service.get_task(app.database, second.id)
    assert (detail.row.id, detail.asked_for) == (int(first.id), int(second.id))
    assert task_service.get_task(app.database, first.id).asked_for is None
    assert command_line("inspect", "task", second.id, "--url", url) == 0
    assert f"{second.id}, into this one" in capsys.readouterr().out
    assert [each.outcome for each in task_service.retry(app.database, [second.id]).tasks] == ["retried"]
    end(claim())
    assert first.get(timeout=10) == second.get(timeout=10) == "done"
    assert second.forget()
    assert (first.status, second.status, second.forget()) == ("PENDING", "PENDING", False)
    assert rows(app, "SELECT * FROM QUEUE_REDIRECT") == []


def test_cancelling_one_cancels_the_one_that_runs_for_all(app, claim, end):
    index = unique(app)
    first, second, third = index.delay(1), later(app, index, 1), later(app, index, 1)
    hold(app)
    claim()
    assert second.revoke()
    for each in (first, second, third):
        with pytest.raises(TaskRevoked):
            each.get(timeout=10)
    assert not third.revoke()
    let_in(app)
    assert claim() == []
    newer = index.delay(1)
    assert not newer.duplicate
    running = claim()
    late = later(app, index, 1)
    assert newer.revoke(terminate=True)  # it runs: its worker is asked
    end(running)
    end(claim())
    assert late.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


def test_redirects_of_redirects(app, claim, end):
    index = unique(app, conflict="replace")
    hold_first = [index.delay(1, str(n)) for n in range(3)]
    hold(app)
    for n in range(3, 6):
        claim()
        hold_first.append(index.delay(1, str(n)))
    claim()
    assert {target for (target,) in rows(app, "SELECT TO_ID FROM QUEUE_REDIRECT")} == {int(hold_first[-1].id)}
    let_in(app)
    running = claim()
    assert runs(running) == [(int(hold_first[-1].id), b'[[1,"5"],{}]')]
    assert {each.status for each in hold_first} == {"STARTED"}
    end(running)
    assert {each.get(timeout=10) for each in hold_first} == {"done"}
    assert leaves_nothing(app, claim)


def test_raise_refuses_a_call_while_one_waits_and_writes_nothing(app, claim, end):
    index = unique(app, conflict="raise")
    first = index.delay(1)
    before = rows(app, "SELECT ID FROM QUEUE_TASK")
    with pytest.raises(DuplicateTask, match=f"the task {first.id} has the same key") as caught:
        index.delay(1)
    assert caught.value.existing == first.id
    assert app.AsyncResult(caught.value.existing) == first
    assert isinstance(caught.value, EnqueueError)
    with pytest.raises(DuplicateTask) as caught:
        index.delay_many([(2,), (1,), (3,)])
    assert caught.value.existing == first.id
    with pytest.raises(DuplicateTask, match="two of the 3 calls") as caught:
        index.delay_many([(2,), (3,), (2,)])
    assert caught.value.existing is None
    assert rows(app, "SELECT ID FROM QUEUE_TASK") == before
    scheduled = index.apply_async((9,), countdown=60)
    with pytest.raises(DuplicateTask) as caught:
        index.delay(9)
    assert caught.value.existing == scheduled.id
    running = claim()  # nothing of the refused calls holds it
    assert [each.id for each in running] == [int(first.id)]
    assert not index.delay(1).duplicate
    end(running)
    end(claim())
    longer = unique(app, name="longer", conflict="raise", until="end")
    first = longer.delay(1)
    running = claim()
    with pytest.raises(DuplicateTask) as caught:
        longer.delay(1)
    assert caught.value.existing == first.id
    end(running)
    assert claim() == []
    assert not longer.delay(1).duplicate


def test_raise_in_a_transaction_of_yours_undoes_the_call_alone(app, claim):
    index = unique(app, conflict="raise")
    first = index.delay(1)
    with app.connect() as connection:
        other = index.using(connection).delay(2)
        with pytest.raises(DuplicateTask):
            index.using(connection).delay(1)
        with pytest.raises(DuplicateTask) as caught:
            index.using(connection).delay(2)  # its own
        assert caught.value.existing == other.id
        assert [each.id for each in claim()] == [int(first.id)]  # which the refused call does not hold
        connection.commit()
    assert [each.id for each in claim()] == [int(other.id)]


def test_a_snapshot_is_told_only_of_what_has_not_begun(app, claim, end):
    index = unique(app, conflict="raise")
    first = index.delay(1)
    with app.connect() as connection:
        connection.begin(tpb(Isolation.SNAPSHOT, lock_timeout=0))
        cursor = connection.cursor()
        assert cursor.execute("SELECT STATE FROM QUEUE_TASK").fetchall() == [(4,)]
        running = claim()
        second = index.using(connection).delay(1)  # it sees the first as waiting, and that has begun
        unseen = later(app, index, 2)
        third = index.using(connection).delay(2)  # it does not see the one that waits
        connection.commit()
    end(running)
    running = claim()
    assert sorted(each.id for each in running) == [int(second.id), int(unseen.id)]
    end(running)
    assert app.AsyncResult(third.id).get(timeout=10) == "done"
    assert first.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


def test_until_end_merges_into_one_that_runs(app, session, claim, end):
    index = unique(app, until="end")
    first = index.delay(1)
    running = claim()
    third, second = index.delay(1), later(app, index, 1)
    assert (third.duplicate, third.id) == (True, first.id)
    assert claim() == []
    end(running, Requeue(Reason.RETRY, 60.0, "later", "E"))
    fourth = later(app, index, 1)
    assert claim() == []  # it keeps its place while it waits for another try
    assert index.delay(1).duplicate
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE STATE = 1")
    session.run(tasks.promote)
    running = claim()
    assert [each.id for each in running] == [int(first.id)]
    end(running)
    assert [each.get(timeout=10) for each in (second, third, fourth)] == ["done"] * 3
    assert not index.delay(1).duplicate
    end(claim())
    assert leaves_nothing(app, claim)


def test_a_period_merges_into_one_that_has_ended(app, claim, end):
    index = unique(app, period=3600)
    first = index.delay(1)
    running = claim()
    second = later(app, index, 1)
    end(running)
    assert claim() == []
    fourth, third = index.delay(1), later(app, index, 1)
    assert (fourth.duplicate, fourth.id) == (True, first.id)
    assert claim() == []
    assert [each.get(timeout=10) for each in (second, third, fourth)] == ["done"] * 3
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = 0")  # as if that had been long ago
    fifth = index.delay(1)
    assert not fifth.duplicate
    assert [each.id for each in claim()] == [int(fifth.id)]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_period_ends_with_a_task_that_has_not_succeeded(app, claim, end, how):
    index = unique(app, period=3600)
    first = index.delay(1)
    running = claim()
    if how == "failed":
        end(running, FAILED)
    else:
        first.revoke()
        end(running, Requeue(Reason.RETRY, 0.0, "x", "E"))  # which is not tried again
    assert app.AsyncResult(first.id).status == ("FAILURE" if how == "failed" else "REVOKED")
    claim()
    second = index.delay(1)
    assert not second.duplicate
    assert [each.id for each in claim()] == [int(second.id)]


def test_a_gate_with_a_period_is_forgotten_when_that_is_over(app, claim, end, wait_for):
    for until in ("start", "end"):
        index = unique(app, name=until, until=until, period=0.3)
        index.delay(1)
    end(claim())
    wait_for(lambda: claim() == [] and rows(app, "SELECT * FROM QUEUE_GATE WHERE HOLDER_ID IS NOT NULL") == [])
    assert leaves_nothing(app, claim)


def test_replace_keeps_the_newest_whichever_is_committed_first(app, claim):
    index = unique(app, conflict="replace")
    with app.connect() as connection:
        index.using(connection).delay(1, "older")
        newer = index.delay(1, "newer")
        connection.commit()
    assert runs(claim()) == [(int(newer.id), b'[[1,"newer"],{}]')]


@pytest.mark.parametrize("conflict", ["replace", debounce(0.001, max_wait=0.002)])
def test_one_that_takes_the_place_of_one_that_has_waited_for_long_is_let_in(app, claim, end, conflict):
    index, other = unique(app, conflict=conflict), unique(app, name="other")
    index.delay(1, "older")
    hold(app)
    claim()
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = FREE_US - 60000000")  # since a minute ago
    let_in(app)
    newer = index.delay(1, "newer")
    other.delay(1)
    assert {each.id for each in claim() + claim()} >= {int(newer.id)}


def age(app, seconds):
    """Lets *seconds* pass for what waits at gates."""
    execute(
        app,
        f"UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-{seconds} SECOND TO WAKE_TIME), "
        f"FREE_US = FREE_US - {seconds}000000",
    )
    execute(app, f"UPDATE QUEUE_FEEDER SET DUE_TIME = DATEADD(-{seconds} SECOND TO DUE_TIME)")


def test_debounce_waits_for_quiet_but_not_for_ever(app, claim, end, session):
    index = unique(app, conflict=debounce(100, max_wait=250))
    index.delay(1, "0")
    assert claim() == []
    assert 90 < tasks.any_ready(session, ["default"]).again <= 100
    age(app, 90)
    index.delay(1, "1")
    age(app, 90)
    assert claim() == claim() == []  # the pause begins anew, 180 seconds after the first
    assert 60 < tasks.any_ready(session, ["default"]).again <= 70  # and 250 at the latest
    age(app, 60)
    last = index.delay(1, "2")
    assert claim() == claim() == []
    assert 0 < tasks.any_ready(session, ["default"]).again <= 10
    age(app, 11)
    running = claim()
    assert runs(running) == [(int(last.id), b'[[1,"2"],{}]')]
    end(running)
    assert leaves_nothing(app, claim)


def test_debounce_without_a_limit_lets_it_in_after_the_pause(app, claim):
    index = unique(app, conflict=debounce(100))
    for n in range(5):
        index.delay(1, str(n))
        assert claim() == []
        age(app, 99)
    age(app, 2)
    assert [each.payload for each in claim()] == [b'[[1,"4"],{}]']


@pytest.mark.parametrize(("conflict", "expected"), [("keep", None), ("replace", b'[[1,"newer"],{}]')])
@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_a_retry_meets_a_newer_one(app, session, claim, end, conflict, expected, pause):
    index = unique(app, conflict=conflict)
    first = index.delay(1, "older")
    running = claim()
    newer = index.delay(1, "newer")
    if pause:
        hold(app)
        claim()  # the newer one waits at the gate
    end(running, Requeue(Reason.RETRY, pause, "again", "E"))
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE STATE = 1")
    session.run(tasks.promote)
    claim() if pause else None
    let_in(app)
    running = claim()
    assert len(running) == 1
    assert expected in (None, running[0].payload)
    end(running)
    assert first.get(timeout=10) == newer.get(timeout=10) == "done"
    assert leaves_nothing(app, claim)


@pytest.mark.parametrize("how", [later, lambda _app, task, *args, **options: task.apply_async(args, **options)])
def test_the_one_that_is_kept_is_as_urgent_and_lasts_as_long_as_all(app, claim, how):
    index = unique(app)
    first = index.apply_async((1,), priority=1, expires=60, queue="one")
    hold(app)
    claim(queue="one")
    how(app, index, 1, priority=5, expires=3600, queue="two")
    claim(queue="two")
    seconds = f"DATEDIFF(SECOND FROM {NOW} TO EXPIRE_TIME)"
    ((kept, queue, priority, left),) = rows(app, f"SELECT ID, QUEUE, PRIORITY, {seconds} FROM QUEUE_TASK")
    assert (kept, queue, priority) == (int(first.id), "one", 5)
    assert left > 3000
    how(app, index, 1, priority=3)
    claim()
    assert rows(app, "SELECT PRIORITY, EXPIRE_TIME FROM QUEUE_TASK") == [(5, None)]
    let_in(app)
    assert claim() == []
    assert [each.id for each in claim(queue="one")] == [int(first.id)]


def test_one_that_expires_takes_with_it_what_expires_as_early(app, claim, wait_for):
    index = unique(app)
    first = index.apply_async((1,), expires=0.2)
    second = later(app, index, 1, expires=0.1)
    hold(app)
    claim()
    wait_for(lambda: one(app, f"SELECT COUNT(*) FROM QUEUE_TASK WHERE EXPIRE_TIME < {NOW}"))
    let_in(app)
    claim()
    for each in (first, second):
        with pytest.raises(TaskRevoked, match="expired"):
            each.get(timeout=10)
    third = index.delay(1)
    assert [each.id for each in claim()] == [int(third.id)]


@pytest.mark.parametrize("until", ["start", "end"])
def test_calls_are_merged_before_they_wait_for_other_limits(app, claim, end, until):
    app.limit("customer", at_once=1)
    options = {"limits": {"customer": None}, "ordered": "key", "unique": Unique(by="key", until=until)}
    index = app.task(name="index", **options)(lambda key: None)
    blocker = app.task(name="blocker", limits="customer")(lambda: None)
    blocker.delay()
    running = claim()
    found = [later(app, index, 1) for _ in range(3)]
    assert claim() == []
    assert index.delay(1).duplicate
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 4") == 1
    end(running, DONE)
    running = claim()
    assert [each.id for each in running] == [int(found[0].id)]
    newer = later(app, index, 1)
    assert claim() == []
    end(running, Requeue(Reason.RETRY, 0.0, "x", "E"))  # meets the newer one, and neither waits for the other
    end(claim())
    assert [each.get(timeout=10) for each in (*found, newer)] == ["done"] * 4
    assert leaves_nothing(app, claim)


def test_a_step_by_name_is_not_merged(app, claim, end):
    """A program that does not know the task has put it into a workflow."""
    index = unique(app)
    follows = app.task(name="follows")(lambda: None)
    index.delay(1)
    waiting = claim()
    plain = app.task(name="plain")(lambda key: None)
    (plain.s(1) | follows.si()).apply_async()
    execute(app, "UPDATE QUEUE_TASK SET NAME = 'index' WHERE NAME = 'plain'")
    (step,) = claim()
    assert step.wanted
    gates = app.features["limits"].gates["index"]
    assert passes(gates, step)
    assert not passes(gates, step._replace(wanted=False))
    end([*waiting, step])
    assert [each.name for each in claim()] == ["follows"]


def test_the_command_line_says_which_task_stands_for_a_call(project):
    project.write("@app.task(unique=True)\ndef index(): pass\n")
    call = ("call", "proj.index", "-A", "proj")
    first = project.run(*call)
    again = project.run(*call)
    assert (again.stdout, first.stderr) == (first.stdout, "")
    number = first.stdout.strip()
    assert again.stderr == f"proj.index is unique, and task {number} stands for this call; nothing was enqueued.\n"
