"""How a task ends: by what its function returns, once, and under the claim that it ran under."""

from datetime import timedelta

import pytest
from support.draining import drain
from support.sql import one

from fbtasks import SerializationError
from fbtasks.queue import results, tasks
from fbtasks.states import State
from fbtasks.tasks.call import Finished, Stale, Succeeded

pytestmark = pytest.mark.emptied


def test_a_stale_claim_changes_nothing(app, add):
    add.delay(1, 1)
    with app.database.session() as session:
        claim = session.run(lambda t: tasks.claim(t, 1, "default", 5))[0]
        assert session.call("FBTASKS_WORKER.ORPHANS", 2, 200) == 1  # there is no worker 1
        again = session.run(lambda t: tasks.claim(t, 2, "default", 5))[0]
        stale = session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Succeeded())]))
        assert stale == [Stale(claim.id, again.claim_id)]
        assert results.state(session, claim.id)[0] is State.RUNNING
        assert (again.crash_count, again.suspect) == (0, 1)
        assert session.run(lambda t: tasks.finish(t, 2, 0, [Finished(again, Succeeded())])) == []
        assert session.run(lambda t: tasks.finish(t, 2, 0, [Finished(again, Succeeded())])) == [Stale(claim.id, 0)]


def test_a_result_that_cannot_be_serialised_fails_the_task(app):
    result = app.task(name="odd")(lambda: object()).delay()
    drain(app)
    with pytest.raises(SerializationError, match="'odd'"):
        result.get(timeout=1)


def test_a_returned_generator_fails_the_task_for_none_of_its_code_has_run(app):
    async def items():
        yield 1

    plain = app.task(name="plain")(lambda: (number for number in range(3)))
    coroutine = app.task(name="coroutine", ignore_result=True)(lambda: items())
    for result in (plain.delay(), coroutine.delay()):
        drain(app)
        with pytest.raises(SerializationError, match=r" returned a generator, whose code has not run: "):
            result.get(timeout=1)


def test_a_returned_coroutine_is_run(app):
    async def answer():
        return 42

    result = app.task(name="answer")(lambda: answer()).delay()
    drain(app)
    assert result.get(timeout=1) == 42


def test_ignored_results_leave_only_their_count(app):
    result = app.task(name="quiet", ignore_result=True)(lambda: 1).delay()
    drain(app)
    assert result.get(timeout=1) is None
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 0
    with app.database.session() as session:
        assert results.stats(session, timedelta(hours=1))[0].succeeded == 1
