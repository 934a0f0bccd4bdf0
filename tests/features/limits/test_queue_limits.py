"""Limits of queues on what runs: taken by the claim, given back by whatever ends a task or puts it back."""

import random
import threading
from functools import partial

import pytest
from support.sql import execute, one, rows

from fbtasks import FBTasks
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
LEFT = "SELECT G.USED - (SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0) FROM QUEUE_GATE G"


@pytest.fixture
def limited(url):
    """Makes an app whose queue ``reports`` has limits, and its task."""
    apps = []

    def make(**options):
        app = FBTasks("test", url)
        apps.append(app)
        app.queue("reports", **options)
        with app.database.session() as session:
            app.features["queues"].deploy(session)
            app.features["limits"].deploy(session)
        return app, app.task(name="report", queue="reports", ignore_result=True)(lambda n=0: n)

    yield make
    for app in apps:
        app.close()


def claim(app, most=100, queue="reports", **options):
    with app.database.session() as session:
        return session.run(lambda t: tasks.claim(t, 1, queue, most, **options))


def end(app, claims, outcome=DONE):
    with app.database.session() as session:
        assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, outcome) for each in claims])) == []


def test_no_more_run_at_once_than_the_limit_says(limited):
    app, report = limited(at_once=3)
    report.delay_many([(n,) for n in range(10)])
    sizes = []
    while claims := claim(app):
        assert claim(app) == []
        sizes.append(len(claims))
        end(app, claims)
    assert sizes == [3, 3, 3, 1]
    assert one(app, LEFT) == 0


def test_a_place_is_free_when_one_of_several_ends(limited):
    app, report = limited(at_once=3)
    report.delay_many([(n,) for n in range(5)])
    first, *others = claim(app, 2)
    (third,) = claim(app)
    end(app, [first])
    (fourth,) = claim(app)
    end(app, [*others, third, fourth])
    end(app, claim(app))
    assert one(app, LEFT) == 0


def test_other_queues_are_not_concerned(limited, app):
    _, report = limited(at_once=1)
    report.delay_many([()] * 3)
    other = app.task(name="other")(lambda: None)
    other.delay_many([()] * 3)
    assert len(claim(app)) == 1
    assert len(claim(app, queue="default")) == 3


@pytest.mark.parametrize(
    "outcome",
    [
        Failed("builtins.ValueError", "no"),
        RELEASED,
        Requeue(Reason.PARKED),
        Requeue(Reason.RETRY, 0.0, "no"),
        Requeue(Reason.CLOSED, 60.0),
    ],
    ids=["failed", "released", "parked", "retried", "closed"],
)
def test_whatever_becomes_of_a_task_its_place_is_free(limited, outcome):
    app, report = limited(at_once=1)
    report.delay_many([()] * 2)
    (first,) = claim(app)
    end(app, [first], outcome)
    (second,) = claim(app)
    assert claim(app) == []
    end(app, [second])
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE IS_COUNTED") == 0
    end(app, claim(app))
    assert one(app, LEFT) == 0


def test_what_is_deleted_by_hand_gives_its_place_back(limited):
    app, report = limited(at_once=1)
    report.delay_many([()] * 2)
    claim(app)
    execute(app, "DELETE FROM QUEUE_TASK WHERE STATE = 2")
    assert len(claim(app)) == 1


def test_a_failed_task_that_is_put_back_counts_when_it_runs(limited):
    app, report = limited(at_once=1)
    result = report.delay()
    end(app, claim(app), Failed("builtins.ValueError", "no"))
    with app.database.session() as session:
        assert session.call("FBTASKS_OPERATOR.RETRY", int(result.id))
    (again,) = claim(app)
    report.delay()
    assert claim(app) == []
    end(app, [again])
    assert len(claim(app)) == 1


def test_tasks_of_a_dead_worker_give_their_places_back(limited):
    app, report = limited(at_once=2)
    report.delay_many([()] * 3)
    claim(app)
    assert claim(app) == []
    with app.database.session() as session:
        session.call("FBTASKS_WORKER.ORPHANS", 99, 100)
    assert len(claim(app)) == 1  # suspects come alone
    assert len(claim(app)) == 1
    assert claim(app) == []


def test_a_changed_limit_holds_at_the_next_claim(limited):
    app, report = limited(at_once=3)
    report.delay_many([()] * 10)
    claims = claim(app)
    execute(app, "UPDATE QUEUE_LIMIT SET SET_AT_ONCE = 2 WHERE NAME = 'queue:reports'")
    end(app, claims[:1])
    assert claim(app) == []
    end(app, claims[1:])
    assert len(claim(app)) == 2
    execute(app, "UPDATE QUEUE_LIMIT SET SET_AT_ONCE = 5 WHERE NAME = 'queue:reports'")
    assert len(claim(app)) == 3


def test_a_limit_that_the_code_has_no_more_holds_nothing_back(limited):
    app, report = limited(at_once=1)
    report.delay_many([()] * 5)
    (first,) = claim(app)
    limited(max_length=100)
    assert len(claim(app)) == 4
    end(app, [first])
    limited(at_once=2)
    assert claim(app) == []  # those four still count


def test_a_rate_lets_begin_what_its_tokens_allow(limited):
    app, report = limited(rate="10/h", burst=4)
    report.delay_many([()] * 10)
    assert len(claim(app)) == 4
    assert claim(app) == []
    with app.database.session() as session:
        ready = tasks.any_ready(session, ["reports"])
    assert not ready.ready
    assert 350 < ready.again < 361
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = FREE_US - 720000000")
    assert len(claim(app)) == 2


def test_a_queue_can_have_both(limited):
    app, report = limited(rate="10/h", burst=4, at_once=3)
    report.delay_many([()] * 10)
    claims = claim(app)
    assert len(claims) == 3
    end(app, claims)
    assert len(claim(app)) == 1


def test_a_full_queue_is_not_ready(limited):
    app, report = limited(at_once=1)
    report.delay_many([()] * 2)
    with app.database.session() as session:
        assert tasks.any_ready(session, ["reports"]).ready
        (first,) = claim(app)
        assert not tasks.any_ready(session, ["reports"]).ready
        end(app, [first])
        assert tasks.any_ready(session, ["reports"]).ready


def test_tasks_with_limits_of_their_own_count_for_the_queue(limited):
    app, _ = limited(at_once=3)
    app.limit("customer", at_once=2)
    bill = app.task(name="bill", queue="reports", limits={"customer": "n"}, ignore_result=True)(lambda n: None)
    bill.delay_many([(n % 3,) for n in range(12)])
    total = 0
    while claims := claim(app):
        assert len(claims) <= 3
        total += len(claims)
        end(app, claims)
    assert total == 12
    assert one(app, "SELECT SUM(USED) - (SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0) FROM QUEUE_GATE") == 0


def test_never_more_with_several_at_once(limited):
    app, report = limited(at_once=3)
    report.delay_many([()] * 200)
    running, most, ended, lock = set(), [0], [], threading.Lock()

    def work(seed):
        rng = random.Random(seed)
        mine = []
        with app.database.session() as session:
            while len(ended) < 200:
                found = session.run(
                    lambda t: tasks.claim(t, 1, "reports", rng.randint(1, 3), from_start=rng.random() < 0.3)
                )
                with lock:
                    running.update(each.id for each in found)
                    most[0] = max(most[0], len(running))
                mine += found
                rng.shuffle(mine)
                if mine:
                    done = Finished(
                        mine.pop(), rng.choice([DONE, DONE, DONE, RELEASED, Requeue(Reason.RETRY, 0.0, "again")])
                    )
                    with lock:
                        running.discard(done.claim.id)
                    assert session.run(partial(tasks.finish, worker_id=1, slot=0, items=[done])) == []
                    if done.outcome is DONE:
                        ended.append(done.claim.id)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == len(set(ended)) == 200
    assert 1 < most[0] <= 3
    assert rows(app, "SELECT * FROM QUEUE_TASK") == []
    assert one(app, LEFT) == 0
