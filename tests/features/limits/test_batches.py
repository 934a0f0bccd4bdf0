"""Batches: calls are enqueued one by one, and run together; each keeps an end of its own."""

import threading
import time
from contextlib import closing
from datetime import timedelta

import pytest
from support.draining import drain
from support.held import nothing_left
from support.loops import opened
from support.sql import NOW, execute, held, one, rows

from fbtasks import ConfigurationError, FBTasks, Request, TaskDefinitionError, Unique, group
from fbtasks import timing as clock
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing
from fbtasks.tasks.call import RELEASED, Crashed, Finished, Reason, Requeue, Several, Succeeded, batch_of
from fbtasks.testing import eager
from fbtasks.worker.claiming import Claiming
from fbtasks.worker.fetcher import POLL_WITH_EVENTS
from fbtasks.worker.pools.solo import _given_back

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
LONG = 3600


def adding(app, size=3, wait=LONG, **options):
    return app.task(name="add", batch=size, wait=wait, **options)(lambda requests: [sum(r.args) for r in requests])


def state(app, result):
    return one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", int(result.id))


def age(app, seconds):
    """Has all that waits have waited for *seconds* more."""
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = DATEADD(-{seconds} SECOND TO START_TIME) WHERE STATE = 4")
    execute(app, f"UPDATE QUEUE_GATE SET FREE_US = FREE_US - {seconds} * 1000000, WAKE_TIME = {NOW} WHERE WAITS = 1")
    execute(app, f"UPDATE QUEUE_FEEDER SET DUE_TIME = {NOW}")


def numbers(claims):
    return [int(each.payload[2:-5]) for each in claims]


def leaves_nothing(app):
    """Whether nothing is left of batches when all tasks have ended, and what they left is read."""
    with app.database.session() as session:
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
    assert rows(app, "SELECT * FROM QUEUE_GATE WHERE WAITS = 1 OR USED > 0 OR WAKE_TIME IS NOT NULL") == []
    return nothing_left(app)


# When a batch is let in


def test_a_full_batch_is_claimed_at_once_and_what_is_left_waits(app, claim, end):
    results = adding(app).delay_many([(n,) for n in range(8)])
    taken = claim()
    assert numbers(taken) == [0, 1, 2, 3, 4, 5]
    assert claim() == []
    assert {state(app, each) for each in results[6:]} == {4}
    age(app, LONG)
    left = claim()
    assert numbers(left) == [6, 7]
    end(taken + left)
    assert leaves_nothing(app)


def test_wait_counts_for_each_that_is_left_behind(app, claim):
    """Of four calls three are a batch; the fourth has waited for as long as they."""
    add = adding(app)
    add.delay_many([(1,), (2,)])
    assert claim() == []
    age(app, LONG - 10)
    add.delay_many([(3,), (4,)], priority=-5)  # the newest comes last, whatever is before it
    assert numbers(claim()) == [1, 2, 3]
    assert claim() == []
    age(app, LONG)
    assert numbers(claim()) == [4]


@pytest.mark.parametrize("ages", [(LONG - 10, 0), (0, LONG - 10)], ids=["first", "last"])
def test_the_oldest_call_tells_how_long_a_batch_has_waited(app, claim, ages):
    """Whether it was counted first or last."""
    add = adding(app)
    for number, seconds in enumerate(ages):
        earlier = f"START_TIME = DATEADD(-{seconds} SECOND TO START_TIME)"
        execute(app, f"UPDATE QUEUE_TASK SET {earlier} WHERE ID = ?", int(add.delay(number).id))
        assert claim() == []
    age(app, 20)
    assert numbers(claim()) == [0, 1]


def test_a_worker_that_was_idle_for_long_looks_in_time(app, monkeypatch):
    add = adding(app, wait=5)
    with opened(app, name="idle") as loop:
        session, fetcher = loop.connection.session, loop._fetcher
        fetcher.claim(session)
        monkeypatch.setattr(fetcher, "_events_arrive", lambda: True)
        add.delay(1)
        fetcher.look()
        fetcher.claim(session)  # there is no batch yet
        fetcher.claim(session)
        monkeypatch.setattr(fetcher._poll, "_pause", POLL_WITH_EVENTS)
        monkeypatch.setattr(fetcher, "_next_poll", 0.0)  # the next one is due, and finds nothing
        fetcher.claim(session)
        assert 0 < fetcher._next_poll - clock.monotonic() <= 5


def test_a_batch_takes_one_place_whatever_its_size(app, claim):
    adding(app, 50, 0).delay_many([(n,) for n in range(498)])
    assert [len(claim(room)) for room in (1, 7, 9)] == [50, 350, 98]  # what is there need not wait


def test_several_workers_split_no_batch(app):
    size, total = 10, 300
    adding(app, size).delay_many([(n,) for n in range(total)])
    found, lock = [], threading.Lock()

    def work(worker):
        until = time.monotonic() + 30
        with app.database.session() as session:
            while sum(map(len, found)) < total and time.monotonic() < until:
                taken = session.run(lambda t: tasks.claim(t, worker, "default", 1))
                if taken:
                    with lock:
                        found.append(numbers(taken))
                    session.run(lambda t: tasks.finish(t, worker, 0, [Finished(each, DONE) for each in taken]))  # noqa: B023
                else:
                    time.sleep(0.005)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(each) for each in found} == {size}
    assert sorted(n for each in found for n in each) == list(range(total))
    assert leaves_nothing(app)


def test_a_higher_priority_comes_first(app, claim, wait_for):
    add = adding(app, 2)
    add.delay_many([(1,), (2,), (3,)])
    add.apply_async((9,), priority=5)
    assert numbers(claim(1)) == [9, 1]
    app.task(name="urgent", priority=9)(lambda: None).delay_many([()] * 3)
    assert {each.name for each in claim(3)} == {"urgent"}
    assert numbers(wait_for(lambda: claim(1))) == [2, 3]  # the gate that found no room is looked at a millisecond later


def test_each_queue_has_batches_of_its_own(app, session, claim):
    add = adding(app, 2)
    for n in range(4):
        add.apply_async((n,), queue=["default", "mail"][n % 2])
    assert numbers(claim(queue="mail")) == [1, 3]
    assert numbers(claim()) == [0, 2]
    add.apply_async((5,), queue="mail")
    age(app, LONG)
    assert claim() == []  # which also reads that one has come to the other queue
    age(app, LONG)
    assert claim() == []
    assert not tasks.any_ready(session, ["default"]).ready  # it does not look again and again
    assert tasks.any_ready(session, ["mail"]).ready
    assert numbers(claim(queue="mail")) == [5]


def test_calls_that_another_transaction_holds_are_left(app, claim, end):
    results = adding(app, 2).delay_many([(1,), (2,), (3,)])
    with held(app, "QUEUE_TASK", int(results[0].id)):
        taken = claim()
        assert numbers(taken) == [2, 3]
    age(app, LONG)
    taken += claim()
    assert numbers(taken) == [2, 3, 1]
    end(taken)
    assert leaves_nothing(app)


def test_a_call_is_revoked_or_expires_while_it_waits(app, claim, end):
    add = adding(app)
    first, second = add.delay_many([(1,), (2,)])
    expired = add.apply_async((3,), expires=LONG)
    execute(app, f"UPDATE QUEUE_TASK SET EXPIRE_TIME = {NOW} WHERE ID = ?", int(expired.id))
    assert first.state == "PENDING"
    assert first.revoke()
    claim()  # two are left of three: it is no batch yet
    add.delay_many([(4,), (5,)])
    taken = claim() + claim()
    assert numbers(taken)[:1] == [2]
    assert (first.state, expired.state, second.state) == ("REVOKED", "REVOKED", "STARTED")
    age(app, LONG)
    end(taken + claim())
    assert leaves_nothing(app)


def test_a_call_that_is_tried_again_waits_for_a_batch(app, session, claim, end):
    add = adding(app, 2)
    first, _ = add.delay_many([(1,), (2,)])
    one_, two = claim()
    end([one_], Requeue(Reason.RETRY, 0, "again"))
    end([two])
    assert claim() == []
    assert state(app, first) == 4
    add.delay(3)
    again = claim()
    assert [(each.try_count, n) for each, n in zip(again, numbers(again), strict=True)] == [(1, 1), (0, 3)]
    end(again)
    assert leaves_nothing(app)


def test_a_drain_does_not_wait_for_what_is_paused(app):
    act = recording(app, wait=0)
    results = [act.delay("a"), act.delay("b")]
    pausing.pause(app.database, ["default"])
    drain(app)
    assert [each.state for each in results] == ["PENDING"] * 2
    pausing.resume(app.database, ["default"])
    drain(app)
    assert len(act.given) == 1


def test_a_paused_name_loses_no_call_of_a_large_batch(app, claim, end):
    adding(app, 1000).delay_many([(n,) for n in range(1000)])
    pausing.pause(app.database, names=["add"])
    for _ in range(3):
        assert claim() == []
    assert rows(app, "SELECT DISTINCT STATE FROM QUEUE_TASK") == [(3,)]
    pausing.resume(app.database, names=["add"])
    taken = claim(1) or claim(1)
    assert len(taken) == 1000
    end(taken)
    assert leaves_nothing(app)


def test_a_queue_that_lets_one_run_runs_one_batch_at_once(app, session, claim, end):
    app.queue("default", at_once=1)
    app.features["limits"].deploy(session)
    adding(app, 3).delay_many([(n,) for n in range(6)])
    first = claim()
    assert numbers(first) == [0, 1, 2]
    assert claim() == []
    end(first[:2])
    assert claim() == []
    end(first[2:])
    second = claim()
    assert numbers(second) == [3, 4, 5]
    end(second)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_what_is_ready_keeps_its_order_beside_batches(app, session):
    """The next claim does not begin behind a call of a batch that was enqueued after what is ready."""
    plain = app.task(name="plain")(lambda number: None)
    plain.delay_many([(n,) for n in range(4)])
    time.sleep(0.002)
    adding(app, 2).delay_many([(1,), (2,)])
    time.sleep(0.002)
    plain.delay_many([(n,) for n in range(4, 8)])
    claiming, found = Claiming(("default",)), []
    for _ in range(6):
        taken = session.run(lambda t: claiming.claim(t, 1, 2))
        claiming.committed(taken)
        found += [each for each in taken.claims if each.name == "plain"]
    assert numbers(found) == [*range(8)]


# How it is run


def recording(app, **options):
    """A task that notes what it is given, and returns what each call says."""
    given = []

    def act(request):
        match request.args:
            case ["raise", *_]:
                raise ValueError("all of them")
            case ["fail", *_]:
                return KeyError("this one")
            case ["retry", *_] if request.retries == 0:
                return OSError("once")
            case _:
                return request.args[0]

    @app.task(name="act", **{"batch": 3, "wait": 0.1, **options})
    def acting(requests):
        given.append(requests)
        return [act(each) for each in requests]

    acting.given = given
    return acting


def test_what_a_request_says(app):
    act, large = recording(app, max_retries=5), "z" * 70_000
    named = act.apply_async(("a",), task_id="first", priority=3, expires=timedelta(hours=1))
    plain = act.apply_async((large,), {"c": [1]})
    drain(app)
    first, second = act.given[0]
    assert isinstance(first, Request)
    assert (first.id, first.task, first.queue, first.args, first.kwargs) == ("first", "act", "default", ("a",), {})
    assert (first.priority, first.retries, first.max_retries, first.eager) == (3, 0, 5, False)
    assert first.expires is not None
    assert (second.id, second.args, second.kwargs) == (plain.id, (large,), {"c": [1]})
    assert (named.get(0), plain.get(0)) == ("a", large)


def test_an_exception_in_the_list_is_retried_by_the_policy_of_the_task_and_hooks_are_called_for_each_call(app):
    told = []

    def hook(word):
        return lambda request, value: told.append((word, request.args[0]))

    act = recording(
        app, autoretry_for=(OSError,), default_retry_delay=0, max_retries=1,
        on_success=hook("success"), on_failure=hook("failure"), on_retry=hook("retry"),
    )  # fmt: skip
    good, bad, again = act.delay("a"), act.delay("fail"), act.delay("retry")
    drain(app)
    assert [[(r.args[0], r.retries) for r in given] for given in act.given] == [
        [("a", 0), ("fail", 0), ("retry", 0)],
        [("retry", 1)],
    ]
    assert (good.get(0), bad.state, again.get(0)) == ("a", "FAILURE", "retry")
    assert sorted(told) == [("failure", "fail"), ("retry", "retry"), ("success", "a"), ("success", "retry")]
    assert one(app, "SELECT TRY_COUNT FROM QUEUE_HISTORY WHERE ID = ?", int(again.id)) == 2


def test_an_exception_that_is_raised_is_that_of_all(app):
    act = recording(app, autoretry_for=(ValueError,), default_retry_delay=0, max_retries=1)
    results = [act.delay(text) for text in ("a", "raise")]
    drain(app)
    assert len(act.given) == 2
    for each in results:
        with pytest.raises(ValueError, match="all of them"):
            each.get(0)


def test_self_retry_and_snooze_are_those_of_all(app):
    asked = []

    @app.task(name="ask", batch=2, wait=0.1, bind=True, default_retry_delay=0)
    def ask(self, requests):
        asked.append([(each.args, each.retries) for each in requests])
        assert self.request.args == (requests,)
        if len(asked) == 1:
            self.retry(countdown=0)
        if len(asked) == 2:
            self.snooze(0.05)
        return [None] * len(requests)

    results = ask.delay_many([(1,), (2,)])
    until = time.monotonic() + 10
    while len(asked) < 3 and time.monotonic() < until:
        drain(app)
    assert asked == [[((1,), 0), ((2,), 0)], [((1,), 1), ((2,), 1)], [((1,), 1), ((2,), 1)]]
    assert [each.state for each in results] == ["SUCCESS"] * 2


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "returned None"), ([1], "returned 1 result"), ("ab", "returned 'ab'")],
)
def test_a_wrong_list_fails_all(app, value, said):
    wrong = app.task(name="wrong", batch=2, max_retries=3, autoretry_for=(Exception,))(lambda requests: value)
    results = wrong.delay_many([(1,), (2,)])
    drain(app)
    for each in results:
        with pytest.raises(TaskDefinitionError, match="was given 2 requests, and " + said):
            each.get(0)


def test_a_task_without_results_may_return_nothing(app):
    quiet = app.task(name="quiet", batch=2, ignore_result=True)(lambda requests: None)
    results = quiet.delay_many([(1,), (2,)])
    drain(app)
    assert leaves_nothing(app)
    assert all(each.get(0) is None for each in results)


def test_a_call_that_cannot_be_read_fails_alone(app):
    act = recording(app)
    good, bad = act.delay("a"), act.delay("b")
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = 'no' WHERE ID = ?", int(bad.id))
    drain(app)
    assert good.get(0) == "a"
    assert bad.state == "FAILURE"
    worst = act.delay("c")
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = 'no' WHERE ID = ?", int(worst.id))
    drain(app)
    assert worst.state == "FAILURE"
    assert len(act.given) == 1


def test_middleware_goes_around_the_batch_and_it_may_be_a_coroutine(app):
    seen = []

    @app.middleware
    class Seen:
        async def around_run(self, request, next):
            seen.append((request.task, len(request.args[0])))
            return await next(request)

    @app.task(name="wait", batch=2)
    async def wait(requests):
        return [each.args[0] for each in requests]

    results = wait.delay_many([(1,), (2,)])
    drain(app)
    assert seen == [("wait", 2)]
    assert [each.get(0) for each in results] == [1, 2]


def test_a_drain_runs_a_batch_that_is_not_full_when_its_time_has_come(app):
    act = recording(app, wait=0.3)
    result = act.delay("a")
    begun = time.monotonic()
    drain(app)
    assert time.monotonic() - begun > 0.2
    assert result.get(0) == "a"
    other = app.task(name="late", batch=2, wait=LONG, queue="other")(lambda requests: [None]).delay()
    drain(app, ["default"])  # that of another queue is not waited for
    assert other.state == "PENDING"


def test_calls_that_were_enqueued_without_the_code_of_the_task_are_put_together(app):
    act = recording(app, wait=LONG)
    with closing(FBTasks("other", app.settings.url)) as other:
        for text in ("a", "b"):
            other.send_task("act", (text,))
    execute(app, "SELECT ID FROM FBTASKS.ENQUEUE('act', '[\"c\"]')")
    drain(app)
    assert [sorted(each.args[0] for each in given) for given in act.given] == [["a", "b", "c"]]
    assert leaves_nothing(app)


def test_calls_of_a_unique_task_are_merged_before_they_are_put_together(app, claim):
    add = adding(app, 2, unique=True)
    first, again, _ = add.delay(1), add.delay(1), add.delay(2)
    assert numbers(claim()) == [1, 2]
    assert again.state == first.state == "STARTED"


def test_steps_of_a_workflow(app):
    act = recording(app)
    double = app.task(name="double")(lambda number: 2 * number)
    total = app.task(name="total")(sum)
    result = (group(double.s(n) | act.s() for n in range(3)) | total.s()).apply_async()
    drain(app)
    assert result.get(0) == 6
    assert sorted(request.args[0] for given in act.given for request in given) == [0, 2, 4]


def test_eager_mode_has_batches_of_one(app):
    act = recording(app, autoretry_for=(OSError,), max_retries=1)
    with eager(app):
        assert act.delay("a").get() == "a"
        assert act.delay("retry").get() == "retry"
        with pytest.raises(KeyError):
            act.delay("fail").get()
    assert [len(each) for each in act.given] == [1, 1, 1, 1]
    assert act.given[0][0].eager
    assert act([Request(id="1", task="act", queue="", args=("a",))]) == ["a"]


# What a worker makes of it


def test_a_crash_is_charged_to_none_of_several(app, claim):
    adding(app, 2).delay_many([(1,), (2,)])
    several = claim()
    crashed = Crashed("its process ended by SIGKILL while it ran", True)
    assert [each.outcome.charged for each in Finished(batch_of(several), crashed).parts()] == [False, False]
    assert [each.outcome.charged for each in Finished(batch_of(several[:1]), crashed).parts()] == [True]
    ends = Finished(batch_of(several), Several((DONE, RELEASED))).parts()
    assert [(each.claim, each.outcome) for each in ends] == [(several[0], DONE), (several[1], RELEASED)]


def test_a_stopped_solo_worker_keeps_the_calls_that_have_succeeded(app, claim):
    adding(app, 2).delay_many([(1,), (2,)])
    batch = batch_of(claim())
    ended = _given_back(Finished(batch, Several((DONE, Requeue(Reason.RETRY, 5, "no")))))
    assert [each.outcome for each in ended.parts()] == [DONE, RELEASED]


# What makes no sense


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch 0 must be a whole number of calls from 1 to 1000"),
        ({"batch": 1001}, "batch 1001 must be"),
        ({"batch": 2, "wait": -1}, "wait -1 must be a number of seconds from 0"),
        ({"wait": 1}, "wait=1 is how long .* give batch= as well"),
        ({"batch": 2, "ordered": True}, "batch=2 .* ordered= .* leave out one"),
        ({"batch": 2, "limits": "sms"}, r"batch=2 .* limits=\['sms'\] .* leave out one"),
        ({"batch": 2, "transactional": True}, "batch=2 .* transactional=True .* leave out one"),
    ],
)
def test_options_that_make_no_sense(app, options, said):
    with pytest.raises(ConfigurationError, match=said):
        app.task(**options)


@pytest.mark.parametrize("function", [lambda a, b: None, lambda *, a: None])
def test_a_function_that_cannot_be_given_a_list(app, function):
    with pytest.raises(TaskDefinitionError, match="is given one argument, a list of requests"):
        app.task(batch=2)(function)


def test_a_key_by_the_names_of_arguments(app):
    with pytest.raises(TaskDefinitionError, match="give a function of a call's arguments"):
        app.task(batch=2, unique=Unique(by="number"))(lambda requests: requests)


def test_options_of_sources_are_not_those_of_calls(app):
    assert app.on_change("T", insert=True, batch=2)(lambda changes: None).options.batching is None
    with pytest.raises(TaskDefinitionError, match=r"unknown .* 'wait'"):
        app.on_change("T", insert=True, wait=2)
    with pytest.raises(TaskDefinitionError, match=r"unknown .* 'batch'"):
        app.poll_table("T", key="ID", delete=True, batch=2)
    with pytest.raises(ConfigurationError, match="must not begin with"):
        app.limit("batch:add", at_once=1)
