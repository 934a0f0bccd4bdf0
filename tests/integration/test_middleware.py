"""Middleware: around the enqueueing of calls and the runs of tasks, in every way in which both happen."""

import asyncio
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace

import pytest
from support.draining import drain
from support.feeding import subscribe
from support.recorded import capture, inserts
from support.sql import execute, one

from fbtasks import ConfigurationError, EnqueueError, FBTasks, TaskDefinitionError, TaskFailure, current_request
from fbtasks.run.invocation import Invocation
from fbtasks.run.runner import Runner
from fbtasks.tasks.call import Claim
from fbtasks.tasks.middleware import Middlewares
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied


class Noting:
    """Notes what passes it, in a list that all of them share."""

    def __init__(self, name, heard):
        self.name, self.heard = name, heard

    def around_enqueue(self, call, next):
        self.heard.append(f"{self.name} sends {call.task}{call.args}")
        return next(call)

    async def around_run(self, request, next):
        self.heard.append(f"{self.name} begins")
        try:
            return await next(request)
        finally:
            self.heard.append(f"{self.name} ends")


def noted(app, *names):
    heard = []
    for name in names:
        app.middleware(Noting(name, heard))
    return heard


def test_the_first_is_the_outermost(app):
    heard = noted(app, "outer", "inner")
    double = app.task(name="double")(lambda n: heard.append(f"run {n}") or 2 * n)
    result = double.delay(4)
    assert heard == ["outer sends double(4,)", "inner sends double(4,)"]
    heard.clear()
    drain(app)
    assert heard == ["outer begins", "inner begins", "run 4", "inner ends", "outer ends"]
    assert result.get(timeout=5) == 8
    heard.clear()
    effect = app.task(name="effect", transactional=True)(lambda: heard.append("effect"))
    with app.connect() as connection:
        effect.using(connection).delay()
        connection.commit()
    drain(app)
    assert heard == [
        "outer sends effect()", "inner sends effect()",
        "outer begins", "inner begins", "effect", "inner ends", "outer ends",
    ]  # fmt: skip
    heard.clear()
    with eager(app):
        assert double.delay(2).get() == 4
    assert heard[1:] == ["inner sends double(2,)", "outer begins", "inner begins", "run 2", "inner ends", "outer ends"]
    heard.clear()
    assert double(3) == 6  # a plain call is not the queue's
    assert heard == ["run 3"]


def test_what_can_be_changed(app):
    @app.middleware
    class Changing:
        def around_enqueue(self, call, next):
            assert call.options == ({"priority": 3} if call.task == "mine" else {})
            return next(call.replace(kwargs={**call.kwargs, "trace": "t1"}, queue="other", countdown=None))

        def around_run(self, request, next):
            changed = replace(request, kwargs={**request.kwargs, "trace": request.kwargs["trace"] + "!"})
            return [next(changed), request.queue]

    @app.task(name="mine")
    def mine(number, trace):
        assert current_request().kwargs == {"trace": trace}
        return [number, trace]

    by_task, by_name = mine.apply_async((1,), priority=3), app.send_task("unknown", (1,))
    found = execute(app, "SELECT NAME, QUEUE, PRIORITY_RANK FROM QUEUE_TASK ORDER BY ID")
    assert found == [("mine", "other", -3), ("unknown", "other", 0)]
    drain(app, ["other"])
    assert by_task.get(timeout=5) == [[1, "t1!"], "other"]
    assert by_name.status == "PENDING"


def test_calls_of_delay_many_pass_one_by_one_and_are_written_together(app):
    earlier = app.task(name="other")(lambda: 0).delay()

    class Stopping:
        def around_enqueue(self, call, next):
            if call.args == (2,):
                return earlier
            result = next(call)
            with pytest.raises(AttributeError, match="'id' is not known yet"):
                _ = result.id
            assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1
            return result

    app.middleware(Stopping)
    heard = noted(app, "n")
    double = app.task(name="double")(lambda n: 2 * n)
    results = double.delay_many([(1,), (2,), (3,)])
    assert heard == ["n sends double(1,)", "n sends double(3,)"]
    assert results[1] is earlier
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 3
    drain(app)
    assert [results[0].get(timeout=5), results[2].get(timeout=5)] == [2, 6]
    assert double.delay_many([]) == []


def test_a_call_that_is_stopped_is_not_enqueued(app):
    @app.middleware
    class Guard:
        def around_enqueue(self, call, next):
            if call.args[0] < 0:
                raise ValueError("below zero")
            return next(call) if call.args[0] else None

        def around_run(self, request, next):
            if request.args == (7,):
                return "not run"
            if request.args == (8,):
                raise LookupError("not now")
            return next(request)

    ran = []
    task = app.task(name="t", max_retries=1, autoretry_for=(LookupError,), default_retry_delay=0)(ran.append)
    with pytest.raises(ValueError, match="below zero"):
        task.delay(-1)
    with pytest.raises(EnqueueError, match="around_enqueue of the middleware Guard returned None for a call of 't'"):
        task.delay(0)
    with pytest.raises(ValueError, match="below zero"):
        task.delay_many([(1,), (-1,)])
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
    stopped, failing, plain = task.delay(7), task.delay(8), task.delay(9)
    drain(app)
    assert stopped.get(timeout=5) == "not run"
    assert ran == [9]
    assert plain.successful()
    with pytest.raises(LookupError):  # as if the task had raised it
        failing.get(timeout=5)
    assert "in around_run" in failing.traceback
    assert one(app, "SELECT TRY_COUNT FROM QUEUE_HISTORY WHERE ID = ?", int(failing.id)) == 2


def test_a_task_that_a_source_feeds(app):
    heard = noted(app, "m")
    app.middleware(Watching(heard))
    app.on_change("T", insert=True, name="fed", batch=None)(lambda change: heard.append(change.new["N"]))
    subscribe(app, "fed", id=1)
    capture(app, inserts(2))
    drain(app)
    assert heard == [each for n in (0, 1) for each in ("fed begins", "m begins", n, "m ends", "ends")]


class Watching:
    """Notes what becomes of each run, where ids have been made short."""

    def __init__(self, heard):
        self.heard = heard

    def observe_run(self, request):
        self.heard.append(f"{request.task} begins")
        current = current_request()
        retried, failed = yield
        assert current is current_request() is request
        for what, ends in (("again", retried), ("failed", failed)):
            self.heard += [f"{what} {type(each.error).__name__} {each.request.args}" for each in ends]
        self.heard.append("ends")


def test_what_becomes_of_a_run_is_observed(app):
    heard = []
    app.middleware(Watching(heard))

    @app.task(name="work", bind=True, max_retries=1, autoretry_for=(OSError,), default_retry_delay=0)
    def work(self, what):
        heard.append(what)
        match what:
            case "retry":
                self.retry(exc=LookupError(), countdown=0)
            case "fall":
                raise OSError
            case "snooze":
                self.snooze(60)
        return {1} if what == "set" else None

    @app.task(name="refused", transactional=True, max_retries=0, bind=True)
    def refused(self):
        self.connection.execute_immediate("ROLLBACK")

    @app.task(name="batch", batch=3, wait=0.01, autoretry_for=(OSError,), default_retry_delay=60)
    def batch(requests):
        return [None, OSError(), ValueError()]

    for what, ends in {
        "good": [],
        "retry": ["again LookupError ('retry',)", "ends", "work begins", "retry", "failed LookupError ('retry',)"],
        "fall": ["again OSError ('fall',)", "ends", "work begins", "fall", "failed OSError ('fall',)"],
        "snooze": [],
        "set": ["failed SerializationError ('set',)"],
    }.items():
        work.delay(what)
        drain(app)
        assert heard == ["work begins", what, *ends, "ends"]
        heard.clear()
    with eager(app):
        work.delay("fall")
    assert heard[2:4] == ["again OSError ('fall',)", "ends"]
    heard.clear()
    refused.delay()
    drain(app)
    assert heard == ["refused begins", "ends", "refused begins", "failed TaskDefinitionError ()", "ends"]
    heard.clear()
    batch.delay_many([(1,), (2,), (3,)])
    drain(app)
    assert heard == ["batch begins", "again OSError (2,)", "failed ValueError (3,)", "ends"]


def test_an_observer_that_raises_harms_nothing(app, caplog):
    heard = []

    @app.middleware
    class Raising:
        def observe_run(self, request):
            if request.args == ("at once",):
                raise SystemExit
            if request.args == ("none",):
                return
            yield
            if request.args == ("late",):
                raise LookupError
            yield

    app.middleware(Watching(heard))
    task = app.task(name="t")(lambda what: what)
    results = [task.delay(what) for what in ("at once", "none", "late", "twice")]
    drain(app)
    assert [result.get(timeout=5) for result in results] == ["at once", "none", "late", "twice"]
    assert heard == ["t begins", "ends"] * 4
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == ["observe_run of the middleware Raising raised; the outcome of t stands."] * 2
    assert current_request() is None


def test_what_is_raised_behind_the_yield_has_nothing_of_the_run_as_its_context(app):
    contexts = {}

    def note(name):
        try:
            raise RuntimeError("the collector is away")
        except RuntimeError as error:
            contexts.setdefault(name, []).append(error.__context__)

    @app.middleware
    class Noting:
        def observe_run(self, request):
            note("begins")
            yield
            note("ends")

    options = {
        "max_retries": 1, "autoretry_for": (KeyError,), "default_retry_delay": 0,
        **{hook: lambda *_, hook=hook: note(hook) for hook in ("on_success", "on_retry", "on_failure")},
    }  # fmt: skip
    returns = app.task(name="returns", **options)(lambda secret: secret)
    sets = app.task(name="sets", **options)(lambda secret: {secret})
    raises = app.task(name="raises", **options)(lambda secret: {}[secret])
    refused = app.task(name="refused", transactional=True, bind=True, **options)(
        lambda self, secret: self.connection.execute_immediate("ROLLBACK")
    )
    app.on_change("T", insert=True, name="fed", batch=None)(lambda change: None)
    subscribe(app, "fed", id=1)
    capture(app, inserts(2))
    for task in (returns, raises, refused):
        task.delay("4711")
    drain(app)
    with eager(app):
        for task in (returns, raises, sets):
            task.delay("4711")
    assert contexts.keys() == {"begins", "ends", "on_success", "on_retry", "on_failure"}
    assert {name: found for name, found in contexts.items() if any(found)} == {}


def test_what_a_run_sets_in_its_context_no_other_run_sees(app):
    tenant = ContextVar("tenant", default="nobody")
    seen = []

    def work(what):
        seen.append(tenant.get())
        tenant.set(f"the tenant of {what}")

    def hook(request, _):
        seen.append(tenant.get())

    async def coroutine():
        work("a coroutine")

    def falls():
        work("falls")
        raise KeyError

    retried = {"max_retries": 1, "autoretry_for": (KeyError,), "default_retry_delay": 0}
    tasks = [
        app.task(name="plain", on_success=hook)(lambda: work("plain")),
        app.task(name="coroutine")(coroutine),
        app.task(name="falls", on_retry=hook, **retried)(falls),
        app.task(name="transactional", transactional=True)(lambda: work("transactional")),
        app.task(name="batch", batch=1, wait=0.01, ignore_result=True)(lambda requests: work("batch")),
    ]
    app.on_change("T", insert=True, name="fed", batch=None)(lambda change: work(change.new["N"]))
    subscribe(app, "fed", id=1)
    capture(app, inserts(2))
    for task in tasks:
        task.delay()
    drain(app)
    with eager(app):
        for task in tasks[:3]:
            task.delay()
    assert Counter(seen) == {
        "nobody": 8 + 4,  # of each call, one of which is tried again; the latter in eager mode
        "the tenant of plain": 2,  # as its hook sees it
        "the tenant of falls": 2,
    }
    assert tenant.get() == "nobody"


class Twice(Invocation):
    several = True

    def calls(self, run):
        for number in range(2):
            run.begin(number)
            yield (part := run.part(run.claim))
        return run.returned(part, None)


def test_calls_of_one_run_in_an_event_loop_have_contexts_of_their_own():
    tenant = ContextVar("tenant", default="nobody")
    seen = []

    async def work():
        seen.append(tenant.get())
        tenant.set("a tenant")

    app = FBTasks("several")
    app.task(name="work")(work).invocation = Twice()
    asyncio.run(Runner(app).run_async(Claim(1, 1, "work", "default")))
    assert seen == ["nobody", "nobody"]


class NoneOfBoth:
    pass


class Misspelt:
    def around_enque(self, call, next):
        return next(call)


class TooFew:
    def around_run(self, request):
        return None


class Needs:
    def __init__(self, limit):
        self.limit = limit

    def around_run(self, request, next):
        return next(request)


class Returns:
    def observe_run(self, request):
        return None


class Waits:
    async def around_enqueue(self, call, next):
        return next(call)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NoneOfBoth, "NoneOfBoth is no middleware: it has neither around_enqueue"),
        (Returns, "observe_run of Returns has no yield"),
        (Misspelt, "has around_enque, which is called by nothing. Did you mean 'around_enqueue'"),
        (TooFew, r"around_run of TooFew is to be called as around_run\(request, next\): too many positional"),
        (Needs, r"Needs cannot be made without arguments .*app.middleware\(Needs\(...\)\)"),
        (Waits, "around_enqueue of Waits is a coroutine function"),
    ],
)
def test_what_is_no_middleware(app, kind, message):
    with pytest.raises(ConfigurationError, match=message):
        app.middleware(kind)
    assert app.middlewares == Middlewares()
    assert app.middleware(needs := Needs(3)) is needs


def test_a_plain_one_does_not_go_around_a_coroutine_function(app):
    async def coroutine():
        pass

    task = app.task(name="coroutine")(coroutine)
    with pytest.raises(TaskDefinitionError, match="'coroutine' is a coroutine function, and around_run of the middlew"):
        app.middleware(Needs(1))
    assert app.middlewares.run == ()
    app._tasks.clear()
    app.middleware(Needs(1))
    with pytest.raises(TaskDefinitionError, match="Make it `async def around_run`"):
        app.register(task)


def test_what_is_given_to_next(app):
    @app.middleware
    class Wrong:
        def around_enqueue(self, call, next):
            return next(call.args if call.args == ("args",) else call)

        async def around_run(self, request, next):
            match request.args[0]:
                case "none":
                    return await next(None)
                case "queue":
                    return await next(replace(request, queue="x"))
                case "wait":
                    await asyncio.sleep(0)
            return await next(request)

    task = app.task(name="t")(lambda what: what)
    with pytest.raises(EnqueueError, match=r"Wrong gave next\(\) \('args',\): give it the call"):
        task.delay("args")
    results = [task.delay(what) for what in ("none", "queue", "wait", "good")]
    drain(app)
    for result, message in zip(
        results,
        ("gave next.. None, and not the request", "args and kwargs alone", "waits for something else"),
        strict=False,
    ):
        with pytest.raises((TaskDefinitionError, TaskFailure), match=message):
            result.get(timeout=5)
    assert results[-1].get(timeout=5) == "good"
