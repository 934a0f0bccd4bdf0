"""How a task is called is said by its invocation; the runner makes the calls, here, in an event loop, or eagerly."""

import asyncio

from fbtasks import FBTasks
from fbtasks.run.invocation import Invocation
from fbtasks.run.runner import Runner
from fbtasks.tasks.call import Claim, Failed, Succeeded


class UpTo(Invocation):
    """Calls the function with one number after the other, and returns what it returned last."""

    several = True

    def calls(self, run):
        value = part = None
        for number in range(run.read(run.claim).request.args[0]):
            run.begin(number)
            part = run.part(run.claim, (number,))
            value, error = yield part
            if error is not None:
                return run.raised(part, error)
        return run.returned(part, value)


def tasks():
    app = FBTasks("invocations")
    seen = []

    def plain(number):
        seen.append(number)
        return 6 // (2 - number)

    async def coroutine(number):
        await asyncio.sleep(0)
        return plain(number)

    made = app.task(name="plain", max_retries=0)(plain), app.task(name="coroutine", max_retries=0)(coroutine)
    for task in made:
        task.invocation = UpTo()
    return app, seen, made


def claim(name, most):
    return Claim(1, 2, name, content_type="application/json", payload=b"[[%d],{}]" % most)


def test_the_calls_are_made_one_after_the_other():
    app, seen, _ = tasks()
    runner, notes = Runner(app), []
    runs = [
        lambda: runner.run(claim("plain", 2), note=notes.append),
        lambda: runner.run(claim("coroutine", 2), note=notes.append),
        lambda: asyncio.run(runner.run_async(claim("coroutine", 2), notes.append)),
    ]
    for run in runs:
        assert run().finished.outcome == Succeeded("application/json", b"6")
    assert seen == notes == [0, 1] * 3


def test_what_a_call_raises_ends_them():
    app, seen, _ = tasks()
    for name in ("plain", "coroutine"):
        result = Runner(app).run(claim(name, 9))
        assert isinstance(result.finished.outcome, Failed)
        assert isinstance(result.raised, ZeroDivisionError)
    assert seen == [0, 1, 2] * 2


def test_they_are_made_eagerly():
    app, seen, (plain, _) = tasks()
    app.always_eager = True
    assert plain.delay(2).get() == 6
    assert seen == [0, 1]
