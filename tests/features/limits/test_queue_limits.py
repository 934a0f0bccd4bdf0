"""Limits of queues on what runs: taken by the claim, given back by whatever ends a task or puts it back."""

import pytest
from support.sql import execute, one

from fbtasks import FBTasks
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
LEFT = "SELECT G.USED - (SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0) FROM QUEUE_GATE G"


@pytest.fixture
def limited(app):
    """Makes an app whose queue ``reports`` has limits, and its task."""
    apps = []

    def make(**options):
        made = FBTasks("test", app.settings.url)
        apps.append(made)
        made.queue("reports", **options)
        with made.database.session() as session:
            made.features["queues"].deploy(session)
            made.features["limits"].deploy(session)
        return made, made.task(name="report", queue="reports", ignore_result=True)(lambda n=0: n)

    yield make
    for made in apps:
        made.close()


def claim(app, most=100, queue="reports", **options):
    with app.database.session() as session:
        return session.run(lambda t: tasks.claim(t, 1, queue, most, **options))


def end(app, claims, outcome=DONE):
    with app.database.session() as session:
        assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, outcome) for each in claims])) == []


def test_no_more_of_the_queue_run_at_once_than_the_limit_says(limited):
    app, report = limited(at_once=3)
    report.delay_many([(n,) for n in range(10)])
    app.task(name="other")(lambda: None).delay_many([()] * 4)
    sizes = []
    while claims := claim(app):
        assert claim(app) == []
        sizes.append(len(claims))
        end(app, claims)
    assert sizes == [3, 3, 3, 1]
    assert one(app, LEFT) == 0
    assert len(claim(app, queue="default")) == 4


@pytest.mark.parametrize(
    "outcome",
    [
        RELEASED,
        Requeue(Reason.PARKED),
        "deleted by hand",
    ],
)
def test_whatever_becomes_of_a_task_its_place_is_free(limited, outcome):
    app, report = limited(at_once=1)
    report.delay_many([()] * 2)
    claims = claim(app)
    if isinstance(outcome, str):
        execute(app, "DELETE FROM QUEUE_TASK WHERE STATE = 2")
    else:
        end(app, claims, outcome)
    (second,) = claim(app)
    assert claim(app) == []
    end(app, [second])
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE IS_COUNTED") == 0
    end(app, claim(app))
    assert one(app, LEFT) == 0


def test_a_limit_that_the_code_has_no_more_holds_nothing_back(limited):
    app, report = limited(at_once=1)
    report.delay_many([()] * 5)
    (first,) = claim(app)
    limited(max_length=100)
    assert len(claim(app)) == 4
    end(app, [first])
    limited(at_once=2)
    assert claim(app) == []  # those four still count


def test_a_queue_lets_begin_what_its_tokens_and_its_places_allow(limited):
    app, report = limited(rate="10/h", burst=4, at_once=3)
    report.delay_many([()] * 10)
    with app.database.session() as session:
        assert tasks.any_ready(session, ["reports"]).ready
        claims = claim(app)
        assert len(claims) == 3
        assert not tasks.any_ready(session, ["reports"]).ready
        end(app, claims)
        claims = claim(app)
        assert len(claims) == 1
        assert claim(app) == []
        look = tasks.any_ready(session, ["reports"])
        assert not look.ready
        assert 350 < look.again < 361
        execute(app, "UPDATE QUEUE_GATE SET FREE_US = FREE_US - 720000000")
        assert tasks.any_ready(session, ["reports"]).ready
    assert len(claim(app)) == 2
