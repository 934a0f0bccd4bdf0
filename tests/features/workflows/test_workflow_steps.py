"""What is said of calls, and holds for steps of workflows as well: links, middleware, limits, order, hooks, expiry."""

from contextlib import ExitStack, closing

import pytest
from support.draining import drain
from support.duties import Keeper
from support.results import failure
from support.sql import execute, one, rows
from support.steps import Steps, claim, finish

from fbtasks import (
    ChordError,
    ConfigurationError,
    EnqueueError,
    FBTasks,
    GroupResult,
    TaskNotFound,
    TaskRevoked,
    group,
)
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as services
from fbtasks.queue.recording import Recorder
from fbtasks.tasks.call import Failed, Finished, Succeeded
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied


@pytest.fixture
def steps(app):
    return Steps(app)


# Links of calls


@pytest.mark.parametrize("run", ["drained", "eager"])
def test_links_of_a_call(app, steps, run):
    add, note = steps.add, steps.note

    def call(signature, *args, **options):
        if run == "eager":
            with eager(app):
                return signature.apply_async(*args, **options)
        result = signature.apply_async(*args, **options)
        drain(app)
        return result

    assert call(add, (1, 2), link=note.s("a"), link_error=note.s("never")).get(timeout=10) == 3
    assert steps.seen == [(3, "a")]
    steps.seen.clear()
    call(add, (1, 2), link=[note.s("a"), note.si("b") | note.s(), group(note.s(1), note.s(2))], countdown=0)
    assert sorted(map(repr, steps.seen)) == ["('b',)", "('b',)", "(3, 'a')", "(3, 1)", "(3, 2)"]
    steps.seen.clear()
    result = call(steps.boom, (1,), link=[note.s("never")], link_error=[note.si("told")], task_id=f"mine-{run}")
    assert isinstance(failure(result), ValueError)
    assert (result.id, steps.seen) == (f"mine-{run}", [("told",)])
    steps.seen.clear()
    assert call(add.s(1) | add.s(2), link=note.s("end"), link_error=note.si("never")).get(timeout=10) == 3
    assert steps.seen == [(3, "end")]


def test_links_of_calls_in_a_transaction_and_of_many(app, steps):
    with app.connect() as connection:
        steps.add.using(connection).apply_async((1, 2), link=steps.note.s())
        connection.rollback()
        assert steps.states() == []
        steps.add.using(connection).apply_async((1, 2), link=steps.note.s())
        connection.commit()
    results = steps.add.delay_many([(1, 1), (2, 2)], link=steps.note.s())
    app.send_task("add", (3, 3), link=steps.note.s())
    drain(app)
    assert [each.get(timeout=10) for each in results] == [2, 4]
    assert sorted(steps.seen) == [(2,), (3,), (4,), (6,)]
    for wrong, said in (
        (lambda: steps.add.apply_async((1,), link=steps.note), r"link= takes signatures.*Give note.s\(...\)"),
        (lambda: steps.add.apply_async((1,), link_error=7), "link_error= takes signatures"),
        (lambda: app.send_task("elsewhere", link=steps.note.s()), "called by its name"),
        (lambda: group(steps.add.s(1)).apply_async(link=steps.note.s()), "is not for a group"),
    ):
        with pytest.raises(EnqueueError, match=said):
            wrong()
    assert steps.add.apply_async((1,), link=[], link_error=None).get is not None


# Groups by their ids


def test_a_group_is_found_by_its_id(app, steps):
    result = (steps.add.s(1) | group(steps.add.s(i) for i in range(3))).delay()
    assert GroupResult.restore(result.id, app=app) is None
    assert result.save() == result.id
    with closing(FBTasks("other", app.settings.url)) as other:
        found = other.GroupResult(result.id)
        assert (found.id, len(found), found.ready(), found.completed_count()) == (result.id, 3, False, 0)
        drain(app)
        assert found.get(timeout=10) == other.GroupResult.restore(result.id).get(timeout=10) == [1, 2, 3]
        assert (found.ready(), found.successful(), found.failed(), found.completed_count()) == (True, True, False, 3)
    found.delete()
    with pytest.raises(TaskNotFound, match="call save"):
        app.GroupResult(result.id)
    for wrong in (lambda: app.GroupResult(None), lambda: GroupResult.restore("1"), lambda: group([]).delay().save()):
        with pytest.raises(ConfigurationError):
            wrong()


def test_groups_in_a_group_failures_and_what_is_cancelled(app, session, steps):
    inner = group(steps.add.s(1), group([]), steps.boom.s())
    group(steps.add.s(0), inner, steps.add.s(5).set(countdown=100)).apply_async()  # one more, which is not saved
    result = group(steps.add.s(0), inner, steps.add.s(5).set(countdown=100)).apply_async()
    result.save()
    drain(app)
    found = app.GroupResult(result.id)
    assert [type(each) for each in found] == [type(each) for each in result]
    assert (found.completed_count(), found.waiting(), found.failed()) == (2, True, True)
    assert found.revoke() == 1
    values = found.get(timeout=10, propagate=False)
    assert (values[0], values[1][:2], repr(values[1][2])) == (0, [1, []], "ValueError('boom')")
    assert isinstance(values[2], TaskRevoked)
    assert isinstance(failure(found), ValueError)
    execute(app, "UPDATE QUEUE_GROUP_SAVED SET EXPIRE_TIME = QUEUE_NOW() - 1")
    Keeper(app).turn(session)
    assert app.GroupResult.restore(result.id) is None


def test_groups_that_follow_each_other_are_cancelled_at_once(app, steps):
    """Each member of the second one follows all members of the first."""
    first = group(steps.add.s(i) for i in range(300))
    result = (first | group(steps.text.s() for _ in range(300))).delay()
    looked = []
    for each in (*result, *result.parent):
        each._parts = lambda: looked.append(1) or ()
    result.parent._parts = lambda: looked.append(1) or result.parent.results
    assert result.cancel() == 600
    assert len(looked) == 601
    assert steps.states() == []


# Middleware


def test_each_step_passes_the_middleware(app, steps):
    class Noting:
        def around_enqueue(self, call, next):
            steps.seen.append((call.task, call.args, dict(call.options)))
            return next(call.replace(priority=7))

    app.middleware(Noting())
    signature = steps.add.s(1) | group(steps.add.s(2).set(countdown=0), steps.add.s(3)) | steps.total.s()
    result = signature.link_error(steps.note.s()).delay()
    assert [name for name, _, _ in steps.seen] == ["add", "add", "add", "total", "note"]
    assert steps.seen[1] == ("add", (2,), {"countdown": 0})
    assert rows(app, "SELECT DISTINCT PRIORITY FROM QUEUE_TASK") == [(7,)]
    drain(app)
    assert result.get(timeout=10) == 7
    steps.seen.clear()
    steps.add.apply_async((1,), link=steps.add.s(1))
    assert [name for name, _, _ in steps.seen] == ["add", "add"]


@pytest.mark.parametrize("times", [0, 2])
def test_middleware_lets_each_step_pass_once(app, steps, times):
    class Wrong:
        def around_enqueue(self, call, next):
            for _ in range(times):
                next(call)
            return app.AsyncResult(1)

    app.middleware(Wrong())
    with pytest.raises(EnqueueError, match=f"called next\\(\\) {times} times for 'add'"):
        (steps.add.s(1) | steps.add.s(2)).delay()
    assert steps.states() == []


# Limits and order


def test_ordered_steps_keep_the_order_in_which_they_are_ready(app, steps):
    ran = []
    app.limit("one", at_once=1)
    kept = app.task(name="kept", ordered="key", limits={"one": None})(lambda key, number: ran.append((key, number)))
    first = (steps.add.s(1).set(countdown=100) | kept.si("a", 1)).delay()
    group(kept.s("a", 2), kept.s("b", 3)).delay()
    (steps.add.s(1) | kept.si("a", 4)).delay()
    drain(app)
    assert [number for key, number in ran if key == "a"] == [2, 4]  # the first one is not ready, and holds nobody back
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = START_TIME - 1 WHERE STATE = 1")
    drain(app)
    assert first.status == "SUCCESS"
    assert sorted(number for _, number in ran) == [1, 2, 3, 4]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE WHERE USED > 0 OR WAITS = 1") == 0


@pytest.mark.parametrize("gates", [1, 2])
def test_a_step_waits_at_its_gates_when_it_is_ready(app, session, steps, gates):
    """Awaiting, then held at its gates, then let in by a claim; and its place is free when it has ended."""
    app.limit("one", at_once=1)
    app.limit("two", at_once=1)
    limits = dict.fromkeys(["one", "two"][:gates])
    limited = app.task(name="limited", limits=limits)(lambda *_: None)
    running = limited.delay()
    result = (steps.add.s(1) | limited.s() | steps.add.si(1)).delay()
    first = []
    while not any(each.id == int(running.id) for each in first):
        first += claim(session)
    session.run(lambda t: finish(t, [each for each in first if each.name == "add"]))
    assert steps.states() == [("limited", 2), ("limited", 4), ("add", 5)]
    assert claim(session) == []
    session.run(lambda t: finish(t, [each for each in first if each.name == "limited"]))
    found = []
    while not found:
        found = claim(session)
    assert [(each.name, each.gated, each.fed) for each in found] == [("limited", True, True)]
    session.run(lambda t: finish(t, found))
    assert steps.states() == [("add", 0)]
    drain(app)
    assert result.get(timeout=10) == 1
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HOLD") == 0


@pytest.mark.usefixtures("url")  # a new file: a connection that has ended tasks may go on without the trigger
def test_a_worker_puts_a_step_before_gates_that_its_producer_does_not_know(app, steps):
    with closing(FBTasks("producer", app.settings.url)) as producer:
        theirs = {name: producer.task(name=name)(lambda *_: None) for name in ("add", "limited", "total")}
        members = group(theirs["limited"].s() for _ in range(3))
        (theirs["add"].s(1, 2) | members | theirs["limited"].s()).delay()
    app.limit("one", at_once=1)
    keys = []
    limited = app.task(name="limited", limits={"one": lambda value: keys.append(value) or "k"})(lambda value: value)
    seen = []
    execute(app, "CREATE TABLE HELD (ID BIGINT)")
    execute(
        app,
        """CREATE TRIGGER HELD_AT FOR QUEUE_TASK AFTER UPDATE AS BEGIN
            IF (OLD.STATE <> 4 AND NEW.STATE = 4) THEN INSERT INTO HELD VALUES (NEW.ID);
        END""",
    )
    drain(app)
    assert limited is not None
    assert seen == []
    assert keys == [3, 3, 3, [3, 3, 3]]
    assert one(app, "SELECT COUNT(*) FROM HELD") == 4
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE STATE = 10") == 5


def test_a_step_without_the_key_of_its_limit_fails(app, steps):
    app.limit("one", at_once=1)
    limited = app.task(name="limited", limits={"one": "value"})(lambda value: None)
    result = (app.task(name="where")(lambda: {"a": [1]}).s() | limited.s()).delay()
    wrong = (steps.text.s(1) | app.task(name="keyed", limits={"one": lambda v: v.nosuch})(lambda v: 1).s()).delay()
    drain(app)
    assert result.status == "SUCCESS"
    assert "the key of the limit 'one'" in str(failure(wrong))


# How steps fail and end


def test_hooks_are_called_when_a_note_decides_the_group(app, steps):
    """The group is locked by another transaction when its member fails: a claim decides, and enqueues the hook."""
    failed = []
    app.on_failure = lambda request, error: failed.append((request.task, type(error).__name__))
    result = (group(steps.add.s(1), steps.boom.s()) | steps.text.s()).delay()
    record, exchange, undecided = Recorder._finish, Recorder.exchange, []
    with app.database.session() as other, ExitStack() as holding:
        first = other.run(lambda t: tasks.claim(t, 1, "default", 1))
        held = holding.enter_context(other.transaction())
        items = [Finished(first[0], Succeeded("application/json", b"1"))]
        assert tasks.finish(held, 10**6, 0, items) == []  # whose counters are in no other one's way

        def recorded(self, transaction, worker, given, own):
            stale = record(self, transaction, worker, given, own)
            if any(isinstance(each.outcome, Failed) for each in given):
                undecided.append(transaction.sql("SELECT COUNT(*) FROM QUEUE_NOTE WHERE TASK_ID > 0 AND ID > 0")[0][0])
            return stale

        def exchanged(self, *given):
            if undecided:
                holding.close()
            return exchange(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Recorder, "_finish", recorded)
            patch.setattr(Recorder, "exchange", exchanged)
            drain(app)
    assert undecided == [1]  # nobody had decided when the failure was recorded
    assert isinstance(failure(result), ChordError)
    assert sorted(failed) == [("boom", "ValueError"), ("text", "ChordError")]


def test_a_step_may_expire_when_it_is_ready(app, session, steps):
    result = (steps.add.s(1) | steps.add.s(1).set(expires=60) | steps.note.si("never")).delay()
    session.run(lambda t: finish(t, claim(session)))
    execute(app, "UPDATE QUEUE_TASK SET EXPIRE_TIME = EXPIRE_TIME - 1 WHERE STATE = 0")
    drain(app)
    assert "expired before it began" in str(failure(result.parent))
    assert isinstance(failure(result), TaskRevoked)
    assert (steps.seen, steps.states()) == ([], [])


def test_a_member_that_no_worker_knows(app, steps):
    with closing(FBTasks("producer", app.settings.url)) as producer:
        theirs = {name: producer.task(name=name)(lambda *_: None) for name in ("add", "unknown", "text")}
        result = (group(theirs["add"].s(1), theirs["unknown"].s()) | theirs["text"].s()).delay()
        drain(app)
        assert steps.states() == [("unknown", 3), ("text", 5)]
        assert result.status == "PENDING"
        with app.database.session() as session:
            execute(app, "UPDATE QUEUE_TASK SET CLAIM_TIME = CLAIM_TIME - 30 WHERE STATE = 3")
            (parked,) = session.run(lambda t: tasks.fail_parked(t, producer.settings.unknown_task_timeout))
        assert isinstance(failure(result), ChordError)
        app.task(name="unknown")(lambda *_: 2)
        assert services.retry(app.database, [str(parked)]).count == 1
        drain(app)
        assert result.get(timeout=10) == "[1, 2]"


@pytest.mark.usefixtures("url")
def test_what_follows_is_ready_in_the_transaction_of_the_effects(app, steps):
    execute(app, "CREATE TABLE EFFECT (WHAT VARCHAR(20), N BIGINT)")
    execute(
        app,
        """CREATE TRIGGER STEPS FOR QUEUE_TASK AFTER UPDATE AS BEGIN
            IF (OLD.STATE = 5 AND NEW.STATE = 0) THEN INSERT INTO EFFECT VALUES ('ready', CURRENT_TRANSACTION);
        END""",
    )

    @app.task(name="effect", transactional=True, bind=True, max_retries=0)
    def effect(self, fails=False):
        with closing(self.connection.cursor()) as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES ('effect', CURRENT_TRANSACTION)")
        if fails:
            raise ValueError("boom")

    good = (effect.s() | steps.text.s()).delay()
    bad = (effect.s(True) | steps.text.s()).delay()
    drain(app)
    assert good.get(timeout=10) == "None"
    assert isinstance(failure(bad), TaskRevoked)
    ((one_, first), (other, second)) = rows(app, "SELECT WHAT, N FROM EFFECT ORDER BY WHAT")
    assert (one_, other, first == second) == ("effect", "ready", True)
