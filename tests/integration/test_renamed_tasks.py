"""Calls whose task has another name in the code by now: parked, and held up by nobody; or run, with ``aliases=``."""

from contextlib import ExitStack, closing

import pytest
from support.draining import drain
from support.registering import register
from support.sql import execute, one, rows

from fbtasks import ConfigurationError, FBTasks, TaskDefinitionError
from fbtasks.queue.register import processes


@pytest.fixture
def renamed(url):
    """An app, in which a task has a new name: two calls of the former one wait, and another call behind them."""
    with ExitStack() as stack:

        def app(name):
            app = stack.enter_context(closing(FBTasks("test", url)))
            app.limit("two", at_once=2)
            return app, app.task(name=name, limits="two")(lambda n: n)

        _, former = app("former")
        first = former.delay_many([(1,), (2,)])
        now, task = app("now")
        behind = task.delay(3)
        drain(now)
        yield now, first, behind


def test_they_hold_no_place_of_a_limit_and_health_tells_their_name(project, renamed):
    app, _, behind = renamed
    assert behind.status == "SUCCESS", "what is parked holds no place of a limit"
    register(app, tasks=["now"])
    said = project.run("health", check=False)
    assert "former" in said.stdout + said.stderr


@pytest.fixture
def other(url, app):
    """An app of the same database: the next version of the code of *app*."""
    with closing(FBTasks("test", url)) as other:
        yield other


def failing(*args):
    raise ValueError("no")


def test_calls_by_a_former_name_run_with_the_options_of_the_task(app, other):
    """Those that wait as they were enqueued by the former code, and those of SQL and of programs that are older."""
    heard, seen = [], []
    app.limit("one", at_once=1)
    old = app.task(name="old", limits={"one": None})(lambda n: n)
    waiting, scheduled = old.delay(1), old.apply_async((2,), countdown=3600)
    failed = app.send_task("boom", (3,))
    drain(app, ["nowhere"])
    other.limit("one", at_once=1)

    @other.task(name="new", aliases=["old"], limits={"one": None}, bind=True)
    def new(self, n):
        with other.database.session() as session:
            seen.append((n, self.request.task, "old" in processes.task_names(session), self is new))
        return n * 10

    other.task(name="crash", aliases=["boom"], max_retries=0, on_failure=lambda r, e: heard.append((r.task, str(e))))(
        failing
    )
    execute(other, "SELECT ID FROM FBTASKS.ENQUEUE('old', '[4]')")
    number = one(other, "SELECT MAX(ID) FROM QUEUE_TASK")
    drain(other)
    assert (waiting.get(1), other.AsyncResult(number).get(1)) == (10, 40)
    assert sorted(seen) == [(1, "old", True, True), (4, "old", True, True)], "workers register former names"
    assert failed.status == "FAILURE"
    assert heard == [("boom", "no")]
    assert scheduled.status == "PENDING"
    assert rows(other, f"SELECT OWNER_ID > 0 FROM QUEUE_HOLD WHERE TASK_ID = {scheduled.id}") == [(True,)]


def test_what_was_parked_runs_as_soon_as_a_worker_has_the_alias(app, other):
    parked = app.send_task("old", (1,))
    drain(app)
    assert one(app, "SELECT STATE FROM QUEUE_TASK") == 3
    other.task(name="new", aliases=("old", "older"))(lambda n: n + 1)
    drain(other)
    assert parked.get(1) == 2


def test_a_former_name_is_that_of_the_task_where_it_is_called(app):
    new = app.task(name="new", queue="mail", aliases=["old"])(lambda n: n)
    assert app.find_task("old") is app.tasks["old"] is new
    assert new.names == ("new", "old")
    app.send_task("old", (1,))
    assert rows(app, "SELECT NAME, QUEUE FROM QUEUE_TASK") == [("new", "mail")]
    assert app.signature("old", (1,)).delay().id
    assert [name for (name,) in rows(app, "SELECT NAME FROM QUEUE_TASK")] == ["new", "new"]


def test_a_batch_takes_calls_of_its_former_name(app, other):
    old = app.task(name="old", batch=3, wait=0)(lambda requests: [0 for _ in requests])
    results = [old.delay(n) for n in range(3)]
    seen = []

    @other.task(name="new", aliases=["old"], batch=3, wait=0)
    def new(requests):
        seen.append([each.task for each in requests])
        return [each.args[0] for each in requests]

    drain(other)
    assert [each.get(1) for each in results] == [0, 1, 2]
    assert seen == [["old"] * 3]


def test_a_name_is_one_tasks(app):
    app.task(name="new", aliases=["old"])(failing)
    for options in ({"name": "old"}, {"name": "other", "aliases": ["old"]}, {"name": "other", "aliases": ["new"]}):
        with pytest.raises(TaskDefinitionError, match=r"two tasks have the name .*: 'new' and '(old|other)'"):
            app.task(**options)(lambda n: n)
        with pytest.raises(TaskDefinitionError, match="two tasks have the name"):
            app.task(**options)(failing)  # also of the same function
    assert sorted(app.tasks) == ["new", "old"]
    with pytest.raises(TaskDefinitionError, match="'self' twice"):
        app.task(name="self", aliases=["self"])(failing)
    with pytest.raises(TaskDefinitionError, match="on_failure hook"):
        app.task(name="hooked", aliases=["a:on_failure"])(failing)
    with pytest.raises(ConfigurationError, match=r"aliases=\['old'\]"):
        app.task(name="text", aliases="old")(failing)
    for alias in (" ", "old "):
        with pytest.raises(TaskDefinitionError, match="1 to 255 printable characters, without spaces at its ends"):
            app.task(name="empty", aliases=[alias])(failing)
    with pytest.raises(TaskDefinitionError, match="keep the name of a task that a source feeds"):
        app.on_event("paid", aliases=["old"])(failing)


def test_the_order_and_the_merging_of_waiting_calls_stand(app, other):
    """Those of the former name go by its limits, which the new code does not have; calls by SQL go by the new ones."""
    seen = []
    ordered = app.task(name="old", ordered=True)(print)
    once = app.task(name="once", unique=True)(print)
    results = [ordered.delay(n) for n in range(3)]
    first = once.delay(1)
    assert once.delay(1).id == first.id
    other.task(name="new", aliases=["old"], ordered=True)(lambda n: seen.append(n))
    other.task(name="single", aliases=["once"], unique=True)(lambda n: n)
    execute(other, "SELECT ID FROM FBTASKS.ENQUEUE('old', '[7]')")
    execute(other, "SELECT ID FROM FBTASKS.ENQUEUE('once', '[2]')")
    execute(other, "SELECT ID FROM FBTASKS.ENQUEUE('once', '[2]')")
    other.migrate()
    other.database.use(other.features["limits"].deploy)
    drain(other)
    assert [n for n in seen if n != 7] == [0, 1, 2]
    assert 7 in seen
    assert {each.status for each in (*results, first)} == {"SUCCESS"}
    assert one(other, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
