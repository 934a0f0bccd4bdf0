"""Eager calls: run where they are made, with no database."""

import asyncio

import pytest

from fbtasks import FBTasks, TaskNotFound, chain, group
from fbtasks.testing import eager


def test_eager(tmp_path):
    """Runs calls and answers for them, in memory: no database is made."""
    app = FBTasks("eager", f"firebird://{tmp_path}/none.fdb")
    seen = []

    @app.task(name="double", bind=True)
    def double(self, x):
        seen.append((self.request.id, self.request.eager))
        return 2 * x

    with eager(app):
        done, other = double.delay(4), double.delay(5)
        assert (done.get(), done.get(timeout=0)) == (8, 8)
        assert (done.status, done.successful(), done.traceback, done.duplicate) == ("SUCCESS", True, None, False)
        named = double.apply_async((1,), task_id="mine")
        assert seen == [(done.id, True), (other.id, True), ("mine", True)]
        assert len({done.id, other.id, named.id}) == 3
        assert not done.revoke(terminate=True)
        assert done.forget()
        with pytest.raises(TaskNotFound, match="forgotten"):
            done.get()
        bad = double.delay(None)
        assert (bad.status, bad.successful(), bad.failed()) == ("FAILURE", False, True)
        assert "in double" in bad.traceback
        with pytest.raises(TypeError):
            bad.get()
        assert [result.get() for result in double.delay_many([(1,), (2,)])] == [2, 4]
        assert app.send_task("double", (3,)).get() == 6
        assert asyncio.run(double.delay(4).aget(timeout=0)) == 8
    assert not app.always_eager
    assert double.request.eager is False
    app.close()
    assert list(tmp_path.iterdir()) == []


def test_parameters_may_have_any_name():
    app = FBTasks("eager", always_eager=True)

    @app.task(name="shape")
    def shape(self, cls, task, name, function, connection, args, kwargs, options):
        return [self, cls, task, name, function, connection, args, kwargs, options]

    named = {each.name: number for number, each in enumerate(shape.parameters.all)}
    assert "self" in named
    signature, values = shape.s(**named), list(named.values())
    assert shape(**named) == signature() == values
    results = [
        shape.delay(**named),
        shape.apply_async(kwargs=named),
        shape.using(object()).delay(**named),
        app.send_task("shape", kwargs=named),
        signature.delay(),
        shape.s().delay(**named),
        shape.s().using(object()).delay(**named),
        shape.si(**named).clone().delay(),
        chain(shape.si(**named)).delay(),
        chain(shape.si()).delay(**named),
        chain(shape.si()).using(object()).delay(**named),
        chain(shape.si())(**named),
        group(shape.s(**named)).delay()[0],
    ]
    assert [result.get() for result in results] == [values] * len(results)


def test_what_is_to_end_the_program_is_no_outcome():
    """A Ctrl-C, sys.exit() and what a test framework raises, wherever it comes; not that a coroutine is cancelled."""
    app = FBTasks("eager", always_eager=True)
    places = {}

    def leave(where):
        if where in places:
            raise places[where]

    @app.middleware
    class Leaves:
        def observe_run(self, request):
            leave("before")
            yield
            leave("behind")

    class Unsendable:
        def __json__(self):
            leave("result")

    @app.task(name="work", autoretry_for=(BaseException,), on_success=lambda *_: leave("hook"))
    def work():
        leave("task")
        return Unsendable()

    @app.task(name="coroutine", on_success=lambda *_: leave("hook"))
    async def coroutine():
        leave("task")

    for end in (KeyboardInterrupt, SystemExit, type("Stop", (BaseException,), {})):
        for where in ("before", "task", "result", "hook", "behind"):
            places = {where: end}
            with pytest.raises(end):
                work.delay()
        places = {"task": end}
        with pytest.raises(end):
            coroutine.delay()
    places = {"task": asyncio.CancelledError}
    assert coroutine.delay().status == "FAILURE"
    places = {"before": ValueError, "hook": ValueError, "behind": ValueError}
    assert coroutine.delay().successful()
