"""Limits on tasks: how many at once, how often, in which order, whatever becomes of them."""

import random
import threading
from collections import Counter
from datetime import timedelta

import pytest
from support.held import nothing_left
from support.sql import NOW, again, execute, held, one, rows
from support.variants import slow

from fbtasks import Ordered
from fbtasks.queue import tasks
from fbtasks.tasks.call import RELEASED, Cancelled, Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
FAILED = Failed("builtins.ValueError", "no")


def state(app, result):
    return one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", int(result.id))


def leaves_nothing(app):
    """Whether nothing is left of limits when all tasks have ended, and what they left is read."""
    with app.database.session() as session:
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
        session.run(lambda t: tasks.claim(t, 1, "default", 10))
        assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE WHERE USED + WAITS + HALTED <> 0") == 0
        while session.call("FBTASKS_LIMITS.FORGET_GATES", 1000):
            pass
    return nothing_left(app, "QUEUE_GATE")


def customer(app, at_once=2, **options):
    app.limit("customer", at_once=at_once)
    options = {"limits": {"customer": "number"}, "ignore_result": True, **options}
    return app.task(name="bill", **options)(lambda number, text="": text)


def test_as_many_of_each_key_as_the_limit_says(app, claim, end):
    bill = customer(app)
    bill.delay_many([(n % 3,) for n in range(12)])
    counts = []
    while claims := claim():
        counts.append(Counter(each.payload for each in claims))
        end(claims)
    assert counts == [{b"[[0],{}]": 2, b"[[1],{}]": 2, b"[[2],{}]": 2}] * 2
    assert leaves_nothing(app)


def test_a_claim_takes_no_more_than_it_has_room_for(app, claim, end):
    customer(app, 10).delay_many([(n,) for n in range(10)])
    taken = []
    while claims := claim(3):
        assert len(claims) <= 3
        taken += claims
    assert len(taken) == 10
    end(taken)
    assert leaves_nothing(app)


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("number", [((1,), {}), ((), {"number": 1}), (("1",), {})]),
        (("number", "text"), [((1,), {}), ((1, ""), {}), ((), {"text": "", "number": 1})]),
        (lambda number, text="": number % 10, [((1,), {}), ((11,), {}), ((21,), {})]),
        (None, [((1,), {}), ((2,), {}), ((3,), {})]),
    ],
)
def test_what_a_key_is(app, claim, key, calls):
    app.limit("customer", at_once=1)
    bill = app.task(limits={"customer": key})(lambda number, text="": text)
    for args, kwargs in calls:
        bill.apply_async(args, kwargs)
    assert len(claim()) == 1
    bill.delay(5, "other")
    assert len(claim()) == (0 if key is None else 1)


def test_plain_tasks_go_on_beside_those_that_wait(app, claim):
    plain = app.task(name="plain")(lambda: None)
    bill = customer(app, 1)
    bill.delay_many([(1,)] * 50)
    plain.delay_many([()] * 10)
    found = Counter(each.name for each in claim(20))
    assert found == {"bill": 1, "plain": 10}


def test_the_room_is_shared_with_what_is_ready(app, claim):
    plain = app.task(name="plain")(lambda: None)
    bill = customer(app, 1000)
    bill.delay_many([(1,)] * 100)
    plain.delay_many([()] * 100)
    assert Counter(each.name for each in claim(20)) == {"bill": 10, "plain": 10}
    ones = Counter(each.name for _ in range(20) for each in claim(1))
    assert set(ones) == {"bill", "plain"}


@pytest.mark.parametrize(("rank", "expected"), [(5, {"bill": 20}), (-5, {"plain": 20})])
def test_what_is_more_urgent_comes_first(app, claim, rank, expected):
    plain = app.task(name="plain")(lambda: None)
    bill = customer(app, 1000, priority=rank)
    bill.delay_many([(1,)] * 100)
    plain.delay_many([()] * 100)
    assert Counter(each.name for each in claim(20)) == expected


def test_of_one_key_the_most_urgent_comes_first(app, claim, end):
    bill = customer(app, 1)
    for priority in (0, 5, 9, 5):
        bill.apply_async((1,), priority=priority)
    found = []
    while claims := claim():
        found += [each.priority for each in claims]
        end(claims)
    assert found == [9, 5, 5, 0]


def expired(app, _claim, _end, result):
    execute(app, f"UPDATE QUEUE_TASK SET EXPIRE_TIME = DATEADD(-1 SECOND TO {NOW}) WHERE ID = ?", int(result.id))


def deleted(app, _claim, _end, result):
    execute(app, "DELETE FROM QUEUE_TASK WHERE ID = ?", int(result.id))


def deleted_while_it_runs(app, claim, end, result):
    claim()
    deleted(app, claim, end, result)


ENDS = {
    "succeeded": lambda _app, claim, end, _: end(claim()),
    "kept": lambda _app, claim, end, _: end(claim(), Succeeded("application/json", b"1")),
    "failed": lambda _app, claim, end, _: end(claim(), FAILED),
    "cancelled": lambda _app, claim, end, _: end(claim(), Cancelled("no")),
    "revoked while it waits": lambda _app, _claim, _end, result: result.revoke(),
    "deleted while it runs": deleted_while_it_runs,
    "deleted while it waits": deleted,
    "expired": expired,
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("limits", [{"customer": "number"}, {"customer": "number", "all": None}])
def test_each_end_gives_the_places_back(app, claim, end, how, limits):
    app.limit("customer", at_once=1)
    app.limit("all", at_once=3)
    bill = app.task(name="bill", limits=limits)(lambda number: None)
    first = bill.delay(1)
    ENDS[how](app, claim, end, first)
    second = bill.delay(1)
    claims = claim() or claim()
    assert [each.id for each in claims] == [int(second.id)]
    end(claims)
    execute(app, "DELETE FROM QUEUE_HISTORY")
    assert leaves_nothing(app)


@pytest.mark.parametrize(
    "outcome",
    [Requeue(Reason.RETRY, 60.0, "later", "E"), Requeue(Reason.RETRY, 0.0, "again", "E"), Requeue(Reason.CLOSED, 60.0)],
)
def test_a_task_that_is_to_be_tried_again_gives_its_place_back(app, claim, end, outcome):
    bill = customer(app, 1)
    first, second = bill.delay(1), bill.delay(1)
    end(claim(), outcome)
    found = [each.id for each in claim()]
    assert found == ([int(first.id)] if outcome == Requeue(Reason.RETRY, 0.0, "again", "E") else [int(second.id)])


def test_a_task_that_was_not_tried_keeps_its_place(app, claim, end):
    bill = customer(app, 1)
    first, second = bill.delay(1), bill.delay(1)
    end(claim(), RELEASED)
    assert [each.id for each in claim()] == [int(first.id)]
    assert state(app, second) == 4


def test_a_task_that_is_parked_gives_its_place_back(app, claim, end):
    bill = customer(app, 1)
    _, second = bill.delay(1), bill.delay(1)
    end(claim(), Requeue(Reason.PARKED))
    assert [each.id for each in claim()] == [int(second.id)]


def test_one_whose_worker_is_gone_keeps_its_place(app, claim):
    bill = customer(app, 1)
    first, second = bill.delay(1), bill.delay(1)
    claim()
    with app.database.session() as session:
        assert session.call("FBTASKS_WORKER.ORPHANS", 999, 200) == 1
    assert [each.id for each in claim()] == [int(first.id)]
    assert state(app, second) == 4


def test_scheduled_tasks_wait_when_they_are_due(app, claim, end, session):
    bill = customer(app, 1)
    first = bill.apply_async((1,), countdown=60)
    second = bill.delay(1)
    running = claim()
    assert [each.id for each in running] == [int(second.id)]
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE ID = ?", int(first.id))
    session.run(tasks.promote)
    assert state(app, first) == 4
    end(running)
    assert [each.id for each in claim()] == [int(first.id)]


def test_a_failed_task_that_is_put_back_waits_for_its_place(app, claim, end):
    bill = customer(app, 1)
    first = bill.delay(1)
    end(claim(), FAILED)
    second = bill.delay(1)
    running = claim()
    with app.database.session() as session:
        assert session.call("FBTASKS_OPERATOR.RETRY", int(first.id))
    assert claim() == []
    end(running)
    running = claim()
    assert [each.id for each in running] == [int(first.id)]
    end(running)
    assert second.id not in {str(number) for (number,) in rows(app, "SELECT ID FROM QUEUE_TASK")}


def test_a_rate_lets_them_begin_one_after_the_other(app, claim, end, wait_for):
    app.limit("sms", rate="50/s", burst=2)
    send = app.task(name="send", limits="sms")(lambda n: None)
    send.delay_many([(n,) for n in range(8)])
    taken = []

    def all_taken():
        taken.extend(claim())
        return len(taken) == 8

    wait_for(all_taken)
    times = sorted(moment for (moment,) in rows(app, "SELECT CLAIM_TIME FROM QUEUE_TASK"))
    assert len([moment for moment in times if moment - times[0] < timedelta(milliseconds=20)]) <= 2
    assert times[-1] - times[0] >= timedelta(milliseconds=20 * 6 - 2)  # two at once, then one each
    end(taken)


def test_a_rate_has_no_burst_after_a_pause(app, claim, end):
    app.limit("sms", rate="1/h", burst=3)
    send = app.task(name="send", limits="sms")(lambda n: None)
    send.delay(0)
    end(claim())
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = 0")  # as if that had been long ago
    send.delay_many([(n,) for n in range(10)])
    assert len(claim()) == 3
    assert claim() == []


def test_ready_tells_when_the_next_token_is_there(app, claim, session):
    app.limit("sms", rate="1/10s")
    app.task(name="send", limits="sms")(lambda n: None).delay_many([(1,), (2,)])
    assert len(claim()) == 1
    look = tasks.any_ready(session, ["default"])
    assert not look.ready
    assert 8 < look.again <= 10.1


@pytest.fixture
def move(app):
    def define(**options):
        return app.task(name="move", ordered=Ordered("key", **options), ignore_result=True)(lambda key, n: None)

    return define


def test_one_at_a_time_in_the_order_of_enqueueing_whatever_the_priority(app, claim, end, move):
    moves = move()
    for n in range(6):
        moves.apply_async((n % 2, n), priority=n)
    found = []
    while claims := claim():
        found += [each.id for each in sorted(claims, key=lambda each: each.id)]
        end(claims)
    assert found == sorted(found)
    assert leaves_nothing(app)


@pytest.mark.parametrize(("during_retry", "expected"), [("wait", []), ("pass", ["second"])])
def test_whether_others_pass_one_that_is_to_be_tried_again(claim, end, move, during_retry, expected):
    moves = move(during_retry=during_retry)
    moves.delay(1, 1)
    second = moves.delay(1, 2)
    end(claim(), Requeue(Reason.RETRY, 60.0, "later", "E"))
    assert [each.id for each in claim()] == [int(second.id) for _ in expected]


@pytest.mark.usefixtures("url")  # a new file: what two keys let go at once comes in the order of its rows
@pytest.mark.parametrize("procedure", ["FBTASKS_OPERATOR.RETRY", "FBTASKS_READER.DISMISS"])
def test_an_order_that_stops_on_a_failure_goes_on_when_that_is_put_right(app, claim, end, move, procedure):
    moves = move(stop_on_failure=True)
    first, second = moves.delay(1, 1), moves.delay(1, 2)
    other = moves.delay(2, 1)
    claims = claim()
    assert [each.id for each in claims] == [int(first.id), int(other.id)]
    end(claims, FAILED)
    assert claim() == []
    with app.database.session() as session:
        assert session.call(procedure, int(first.id))
    claims = claim()
    assert [each.id for each in claims] == [int(first.id) if procedure == "FBTASKS_OPERATOR.RETRY" else int(second.id)]
    end(claims)
    if procedure == "FBTASKS_OPERATOR.RETRY":
        assert [each.id for each in claim()] == [int(second.id)]


def test_a_locked_task_is_passed_but_not_in_an_order(app, claim, move):
    moves, bill = move(), customer(app, 1)
    first, second = bill.delay(1), bill.delay(1)
    moved = [moves.delay(1, 1), moves.delay(1, 2)]
    with held(app, "QUEUE_TASK", int(first.id), int(moved[0].id)):
        assert [each.id for each in claim()] == [int(second.id)]


def test_several_limits_are_passed_in_one_order(app, claim, end):
    app.limit("a", at_once=1)
    app.limit("b", at_once=1)
    one_way = app.task(name="one", limits={"a": None, "b": None})(lambda: None)
    other_way = app.task(name="other", limits={"b": None, "a": None})(lambda: None)
    for _ in range(3):
        one_way.delay()
        other_way.delay()
    total = 0
    for _ in range(20):
        claims = claim()
        assert len(claims) <= 1
        total += len(claims)
        end(claims)
    assert total == 6
    assert leaves_nothing(app)


def test_tasks_of_other_queues_are_let_in_too(app, claim, end):
    app.limit("all", at_once=1)
    one_task = app.task(name="one", limits="all")(lambda: None)
    first = one_task.apply_async(queue="other")
    second = one_task.delay()
    assert claim() == []  # the first has its turn
    claims = claim(queue="other")
    assert [each.id for each in claims] == [int(first.id)]
    end(claims)
    assert [each.id for each in claim()] == [int(second.id)]


def test_rolled_back_means_that_it_never_waited(app, claim):
    bill = customer(app, 1)
    with app.connect() as connection:
        bill.using(connection).delay(1)
        connection.rollback()
        second = bill.using(connection).delay(1)
        connection.commit()
    assert [each.id for each in claim()] == [int(second.id)]


class Walk:
    """Random operations on limited tasks, and what must hold after each."""

    LIMITS = {"two": 2, "three": 3, "all": 5}

    def __init__(self, app, session, seed):
        self.app, self.session, self.random = app, session, random.Random(seed)
        self.running = []
        for name, at_once in self.LIMITS.items():
            app.limit(name, at_once=at_once)
        several = {"two": "key", "three": "key", "all": None}
        self.tasks = [
            app.task(name=f"t{number}", **options)(lambda key: None)
            for number, options in enumerate([
                {"limits": {"two": "key"}}, {"limits": several}, {"ordered": "key", "limits": several},
                {"ordered": Ordered("key", stop_on_failure=True)}, {"limits": {"all": None}}, {},
            ])
        ]  # fmt: skip

    def step(self):
        chosen = self.random
        what = chosen.choice(["enqueue"] * 4 + ["claim"] * 4 + ["end"] * 6 + ["cancel", "retry", "promote", "orphans"])
        match what:
            case "enqueue":
                countdown = chosen.choice([0, 0, 0, 3600])
                chosen.choice(self.tasks).apply_async((chosen.randrange(3),), countdown=countdown)
            case "claim":
                most, start = chosen.choice([1, 2, 10]), chosen.random() < 0.5
                self.running += self.session.run(lambda t: tasks.claim(t, 1, "default", most, from_start=start))
            case "end" if self.running:
                ended = self.running.pop(chosen.randrange(len(self.running)))
                outcome = chosen.choice([
                    DONE, DONE, Succeeded("application/json", b"1"), FAILED, Requeue(Reason.RETRY, 0.0, "x", "E"),
                    Requeue(Reason.RETRY, 3600.0, "x", "E"), RELEASED, Cancelled("x"), Requeue(Reason.CLOSED, 3600.0),
                ])  # fmt: skip
                self.session.run(lambda t: tasks.finish(t, 1, 0, [Finished(ended, outcome)]))
            case "cancel":
                waiting = rows(self.app, "SELECT ID FROM QUEUE_TASK WHERE STATE IN (0, 1, 4)")
                if waiting:
                    self.session.run(lambda t: tasks.revoke(t, chosen.choice(waiting)[0]))
            case "retry":
                ended = rows(self.app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE IN (11, 12)")
                if ended:
                    self.session.call("FBTASKS_OPERATOR.RETRY", chosen.choice(ended)[0])
            case "promote":
                execute(self.app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE STATE = 1")
                self.session.run(tasks.promote)
            case "orphans":
                self.session.call("FBTASKS_WORKER.ORPHANS", 999, 200)
                self.running = []

    def check(self):
        """No limit is exceeded: counted by what runs, and by what is in."""
        counts = rows(self.app, """
            SELECT L.NAME, H.LANE, COUNT(*) FROM QUEUE_TASK T JOIN QUEUE_HOLD H ON H.TASK_ID = T.ID
                JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID
            WHERE T.STATE = 2 OR (T.STATE = 0 AND H.SORT_KEY >= 30000) GROUP BY 1, 2""")  # fmt: skip
        for name, lane, count in counts:
            assert count <= self.LIMITS.get(name, 1), (name, lane, count)

    def settle(self):
        quiet = 0
        while quiet < 3:
            execute(self.app, f"UPDATE QUEUE_TASK SET START_TIME = {NOW} WHERE STATE = 1")
            self.session.run(tasks.promote)
            claims = self.running + self.session.run(lambda t: tasks.claim(t, 1, "default", 100))
            self.running = []
            ended = rows(self.app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE IN (11, 12)")
            for (number,) in ended:
                self.session.call("FBTASKS_OPERATOR.RETRY", number)
            for each in claims:
                self.session.run(lambda t, e=each: tasks.finish(t, 1, 0, [Finished(e, DONE)]))
            quiet = 0 if claims or ended else quiet + 1


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_random_operations_never_exceed_a_limit_and_leave_nothing(app, session, seed):
    walk = Walk(app, session, seed)
    for _ in range(250):
        walk.step()
        walk.check()
    walk.settle()
    execute(app, "DELETE FROM QUEUE_HISTORY")
    assert leaves_nothing(app)


def test_workers_at_once_never_exceed_a_limit(app):
    bill = customer(app, 3)
    moves = app.task(name="move", ordered="number")(lambda number: None)
    bill.delay_many([(n % 4,) for n in range(200)])
    moves.delay_many([(n % 10,) for n in range(100)])
    lock, inside, most, order, done = threading.Lock(), Counter(), Counter(), [], []

    def begin(claims):
        with lock:
            for each in claims:
                key = each.name, each.payload
                inside[key] += 1
                most[key] = max(most[key], inside[key])
                order.append((key, each.id))

    def finish(session, worker, claims):
        with lock:
            for each in claims:
                inside[each.name, each.payload] -= 1
                done.append(each.id)
        finished = [Finished(each, DONE) for each in claims]
        again(lambda: session.run(lambda t: tasks.finish(t, worker, 0, finished)))

    def work(worker):
        chosen = random.Random(worker)
        with app.database.session() as session:
            while len(done) < 300:
                room = chosen.randint(1, 20)
                claims = again(lambda: session.run(lambda t: tasks.claim(t, worker, "default", room)))  # noqa: B023
                begin(claims)
                finish(session, worker, claims)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(done)) == len(done) == 300
    assert {name: max(count for (each, _), count in most.items() if each == name) for name in ("bill", "move")} == {
        "bill": 3, "move": 1,
    }  # fmt: skip
    for key in {key for key, _ in order if key[0] == "move"}:
        numbers = [number for each, number in order if each == key]
        assert numbers == sorted(numbers)
    assert leaves_nothing(app)
