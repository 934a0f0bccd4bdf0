"""A task that has a workflow in its place: the last step of that is the task to all who know it."""

from contextlib import closing

import pytest
from support.children import child_executor
from support.draining import drain
from support.results import failure
from support.sql import execute, one, rows
from support.steps import Steps

from fbtasks import ChordError, EnqueueError, FBTasks, PayloadTooLarge, TaskDefinitionError, TaskRevoked, chain, group
from fbtasks.errors import ConflictError, StatementRefused
from fbtasks.features.workflows.plan import Plan
from fbtasks.features.workflows.replaced import Replaced
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as services
from fbtasks.queue.recording import Recorder
from fbtasks.run.runner import Runner
from fbtasks.tasks.call import Call, Claim, Reason, Requeue

pytestmark = pytest.mark.emptied


class Swaps(Steps):
    """Of which one replaces itself, by what it was told."""

    def __init__(self, app):
        super().__init__(app)
        self.by = {}

        @app.task(name="swap", bind=True)
        def swap(self_, *given):
            self_.replace(self.by[given[-1]])

        self.swap = swap
        self.by["chain"] = self.add.s(1) | self.add.s(2)
        self.by["one"] = self.add.s(5)
        self.by["chord"] = group(self.add.s(i) for i in range(4)) | self.total.s()
        self.by["empty"] = group([]) | self.total.s()
        self.by["again"] = self.add.s(1) | self.swap.s("chain")
        self.by["fails"] = self.boom.s() | self.add.s(1)
        self.by["fails at its end"] = self.add.s(1) | self.boom.s()
        self.by["fails in a group"] = group(self.add.s(1), self.boom.s()) | self.total.s()


@pytest.fixture
def steps(app):
    return Swaps(app)


def test_the_result_is_that_of_the_new_end(run, steps):
    for which, value in {"chain": 3, "one": 5, "chord": 6, "empty": 0, "again": 3}.items():
        assert run(steps.swap.s(which)).get(timeout=10) == value
    assert run(steps.swap.s("chain"), task_id="mine").get(timeout=10) == 3


def test_what_follows_it_follows_the_new_end(run, steps):
    assert run(steps.add.s(1) | steps.swap.s("chain") | steps.add.s(10)).get(timeout=10) == 13
    members = group(steps.swap.s("chord"), steps.add.s(1), steps.swap.s("one") | steps.add.s(1))
    assert run(members).get(timeout=10) == [6, 1, 6]
    assert run(members | steps.text.s()).get(timeout=10) == "[6, 1, 6]"
    assert run(group(steps.add.s(1), steps.add.s(2)) | steps.swap.s("chain") | steps.text.s()).get(timeout=10) == "3"
    run(steps.swap.s("one").link(steps.note.s("linked")).link_error(steps.note.s("never")))
    assert steps.seen == [(5, "linked")]


@pytest.mark.parametrize("which", ["fails", "fails at its end", "fails in a group"])
def test_its_failure_is_that_of_the_task(app, run, steps, which):
    failed = []
    app.on_failure = lambda request, error: failed.append((request.task, type(error).__name__))
    result = run((steps.swap.s(which) | steps.add.s(1)).link_error(steps.note.si("told")))
    assert isinstance(failure(result), TaskRevoked)
    assert steps.seen == [("told",)]
    error = failure(result.parent)
    expected = {"fails": TaskRevoked, "fails at its end": ValueError, "fails in a group": ChordError}[which]
    assert type(error) is expected
    assert "boom" in str(error)
    assert ("boom", "ValueError") in failed
    assert type(failure(run(group(steps.swap.s(which), steps.add.s(1)) | steps.text.s()))) is ChordError


def test_nothing_of_the_task_is_left(app, steps):
    result = (steps.add.s(1) | steps.swap.s("chord")).apply_async()
    large = steps.swap.delay("x" * 100_000, "one")
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 1
    drain(app)
    assert (result.get(timeout=10), large.get(timeout=10)) == (6, 5)
    counts = ", ".join(
        f"(SELECT COUNT(*) FROM {table})" for table in ("QUEUE_TASK", "QUEUE_PAYLOAD", "QUEUE_NOTE WHERE ID > 0")
    )
    assert rows(app, f"SELECT {counts} FROM RDB$DATABASE") == [(0, 0, 0)]
    assert rows(app, f"SELECT NAME, TRY_COUNT FROM QUEUE_HISTORY WHERE ID = {result.id}") == [("total", 1)]
    execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = FINISH_TIME - 100")
    assert sum(services.prune(app.database)) == 7
    for table in ("QUEUE_LINK", "QUEUE_NODE", "QUEUE_GROUP"):
        assert one(app, f"SELECT COUNT(*) FROM {table}") == 0


def test_a_large_payload_of_the_new_end(app, steps):
    steps.by["large"] = steps.text.s("y" * 50_000)
    result = steps.swap.delay("large")
    drain(app)
    assert len(result.get(timeout=10)) == 50_002


@pytest.mark.usefixtures("url")
def test_in_the_transaction_of_the_effects(app, steps):
    execute(app, "CREATE TABLE EFFECT (N BIGINT)")

    @app.task(name="effect", transactional=True, bind=True)
    def effect(self, which):
        with closing(self.connection.cursor()) as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (CURRENT_TRANSACTION)")
        self.replace(steps.by[which])

    execute(
        app,
        """CREATE TRIGGER STEPS FOR QUEUE_TASK AFTER INSERT AS BEGIN
            IF (NEW.NAME = 'add') THEN INSERT INTO EFFECT VALUES (CURRENT_TRANSACTION);
        END""",
    )
    result = effect.delay("chain")
    drain(app)
    assert result.get(timeout=10) == 3
    assert rows(app, "SELECT COUNT(*), COUNT(DISTINCT N) FROM EFFECT") == [(3, 1)]


def replaced(app, steps, which):
    """A running task with the outcome that it is to be replaced."""
    with app.database.session() as session:
        (claim,) = session.run(lambda t: tasks.claim(t, 1, "default", 1))
    finished = Runner(app).run(claim).finished
    assert isinstance(finished.outcome, Replaced)
    return finished


@pytest.fixture
def recorder(app):
    with closing(Recorder(HostLock(app.settings.url), app.features)) as recorder:
        yield recorder


def test_an_outcome_that_comes_twice_or_too_late_changes_nothing(app, session, steps, recorder):
    result = (steps.swap.s("chain") | steps.add.s(1)).delay()
    finished = replaced(app, steps, "chain")
    stale = finished._replace(claim=finished.claim._replace(claim_id=0))
    assert [each.task for each in recorder.record(session, 1, [stale], 1)] == [finished.claim.id]
    assert steps.states() == [("swap", 2), ("add", 5)]
    assert recorder.record(session, 1, [finished], 1) == []
    assert recorder.record(session, 1, [finished], 1)[0].stands == 0
    assert steps.states() == [("add", 5), ("add", 5), ("add", 0)]
    drain(app)
    assert result.get(timeout=10) == 4


def test_an_end_that_is_rolled_back_has_replaced_nothing(app, session, steps, recorder):
    result = (steps.swap.s("chain") | steps.add.s(1)).delay()
    finished = replaced(app, steps, "chain")
    with pytest.raises(KeyError), session.transaction() as transaction:
        recorder._finish(transaction, 1, [finished], recorder._prepare([finished]))
        raise KeyError
    assert steps.states() == [("swap", 2), ("add", 5)]
    session.run(lambda t: tasks.finish(t, 1, 0, [finished._replace(outcome=Requeue(Reason.RETRY, 0, "again"))]))
    drain(app)
    assert result.get(timeout=10) == 4


def test_while_another_transaction_holds_the_row(app, steps, recorder):
    steps.swap.delay("chain")
    finished = replaced(app, steps, "chain")
    with app.connect() as other, app.database.session() as session:
        other.execute_immediate(f"UPDATE QUEUE_TASK SET CRASH_COUNT = 0 WHERE ID = {finished.claim.id}")
        with pytest.raises(ConflictError):
            recorder.record(session, 1, [finished], 1)
        with session.transaction() as transaction:  # of a transactional task, which does not wait
            waiting = Recorder(HostLock(app.settings.url), app.features, 7)
            (stale,) = waiting._finish(transaction, 1, [finished], waiting._prepare([finished]))
            assert stale.stands == finished.claim.claim_id
        other.rollback()
        assert recorder.record(session, 1, [finished], 1) == []
    drain(app)


def test_one_that_was_to_be_cancelled_is(app, session, steps, recorder):
    result = (steps.swap.s("chain") | steps.add.s(1)).delay()
    finished = replaced(app, steps, "chain")
    assert result.parent.revoke()
    assert recorder.record(session, 1, [finished], 1) == []
    assert steps.states() == []
    assert isinstance(failure(result.parent), TaskRevoked)
    assert isinstance(failure(result), TaskRevoked)


def test_its_places_are_free_and_the_new_end_has_limits_of_its_own(app, steps):
    app.limit("one", at_once=1)
    running = []
    limited = app.task(name="limited", limits={"one": None})(lambda value=0: running.append(value))

    @app.task(name="first", bind=True, limits={"one": None})
    def first(self):
        self.replace(steps.add.s(1) | limited.s())

    result = first.delay()
    drain(app)
    assert result.get(timeout=10) is None
    assert running == [1]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE WHERE USED > 0") == 0


def test_a_workflow_that_is_refused_fails_the_task(app, steps):
    steps.by["taken"] = steps.add.s(1).set(task_id="taken") | steps.add.s(2)
    steps.add.apply_async((1,), task_id="taken")
    result = (steps.swap.s("taken") | steps.add.s(1)).delay()
    drain(app)
    assert "the task_id 'taken'" in str(failure(result.parent))
    assert isinstance(failure(result), TaskRevoked)


def test_a_workflow_that_cannot_be_written_is_refused(app, session, steps, recorder):
    """As a child may say it that was broken by its task."""
    result = steps.swap.delay("chain")
    finished = replaced(app, steps, "chain")
    plan = Plan(nodes=[Call("add", 7, "application/json", b"")])
    with pytest.raises(StatementRefused, match="the workflow that is to replace the task"):
        recorder.record(session, 1, [finished._replace(outcome=Replaced(plan, 0))], 1)
    assert recorder.record(session, 1, [finished], 1) == []
    drain(app)
    assert result.get(timeout=10) == 3


def test_errors_where_replace_is_called(app, steps):
    with closing(FBTasks("other", app.settings.url)) as other:
        foreign = other.task(name="foreign")(lambda: None)
        for wrong, said in (
            (lambda: group(steps.add.s(1)), r"ends with a group.*write group\(...\) \| task.s\(\)"),
            (lambda: steps.add.s(1) | group(steps.add.s(1)), "ends with a group"),
            (lambda: steps.add, "takes signatures"),
            (lambda: steps.add.s(1).set(task_id="x"), "give it no task_id"),
            (lambda: foreign.s(), "the tasks of one app"),
        ):
            with pytest.raises(EnqueueError, match=said):
                steps.swap.replace(wrong())
    batched = app.task(name="batched", batch=2, wait=1)(lambda requests: None)
    with pytest.raises(TaskDefinitionError, match="a run of it has several calls"):
        batched.replace(steps.add.s(1))
    with closing(FBTasks("small", app.settings.url, payload_limit=1_000)) as small:
        one_ = small.task(name="one")(lambda *_: None)
        with pytest.raises(PayloadTooLarge, match="a workflow of 2000 tasks"):
            one_.replace(chain(one_.si() for _ in range(2_000)))


def test_the_steps_belong_to_the_user_whose_the_task_was(app, steps):
    steps.swap.delay("chord")
    execute(app, "UPDATE QUEUE_TASK SET ENQUEUED_BY = 'CALLER'")
    drain(app)
    assert rows(app, "SELECT DISTINCT NAME, ENQUEUED_BY FROM QUEUE_HISTORY ORDER BY NAME") == [
        ("add", "CALLER"),
        ("total", "CALLER"),
    ]


SOURCE = """
from fbtasks import group

@app.task
def add(one, other):
    return one + other

@app.task
def total(numbers):
    return sum(numbers)

@app.task(bind=True)
def plain(self):
    self.replace(group(add.s(i, 1) for i in range(3)) | total.s())

@app.task(bind=True)
async def coroutine(self):
    self.replace(group(add.s(i, 1) for i in range(3)) | total.s())
"""


@pytest.mark.parametrize(("pool", "name"), [("processes", "plain"), ("threads", "plain"), ("asyncio", "coroutine")])
def test_a_child_tells_its_worker_of_the_workflow(project, wait_for, monkeypatch, pool, name):
    with child_executor(project, monkeypatch, SOURCE, pool) as executor:
        wait_for(lambda: executor.collect() or executor.free() >= 1)
        claim = Claim(1, 99, f"proj.{name}", "q", content_type="application/json", payload=b"[[],{}]")
        assert executor.submit([claim]) == []
        ended = []
        wait_for(lambda: ended.extend(executor.collect()) or ended)
    (outcome,) = [each.outcome for each in ended]
    assert isinstance(outcome, Replaced)
    assert [call.name for _, call in outcome.plan.steps()] == ["proj.add"] * 3 + ["proj.total"]
    assert outcome.plan.step(outcome.end).name == "proj.total"
