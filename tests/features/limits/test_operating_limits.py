"""Limits as operators see and change them; what maintenance deletes of them."""

import random
import re
import threading
from collections import Counter, defaultdict
from datetime import timedelta

import click
import pytest
from support.duties import Keeper
from support.held import nothing_left
from support.listing import tasks_in
from support.programs import command_line
from support.sql import again, execute, one, rows

from fbtasks import FBTasks, Ordered
from fbtasks.cli.groups import CommandGroup
from fbtasks.errors import ConfigurationError
from fbtasks.features.limits import operations as service
from fbtasks.features.limits.definition import LimitOptions, define_limit, rate_text
from fbtasks.features.limits.duty import Leftovers, sync_limits
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as task_service
from fbtasks.queue.operations.workers import get_health
from fbtasks.states import State
from fbtasks.tasks.call import Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

DONE = Succeeded(keep=False)
FAILED = Failed("builtins.ValueError", "no")


def limited(app, at_once=2, **options):
    app.limit("customer", at_once=at_once)
    return app.task(name="bill", limits={"customer": "number"}, ignore_result=True, **options)(lambda number: None)


def sync(app, definitions=None):
    with app.database.session() as session:
        return sync_limits(
            session, app.name, app.features["limits"].definitions.values() if definitions is None else definitions
        )


def listed(app):
    return {row.name: row for row in service.list_limits(app.database)}


def clean(app):
    """All that maintenance finds to delete, deleted."""
    with app.database.session() as session:
        leftovers = Leftovers()
        while leftovers.turn(session):
            pass


@pytest.fixture
def move(app):
    app.limit("all", at_once=5)

    def define(**options):
        ordered = Ordered("key", stop_on_failure=True)
        return app.task(name="move", ordered=ordered, ignore_result=True, **options)(lambda key, n: None)

    return define


def test_what_limits_let_in_and_what_waits_is_listed(app, claim):
    bill = limited(app)
    app.limit("sms", rate="100/m", burst=3)
    several = app.task(name="several", limits={"customer": None, "sms": None})(lambda: None)
    app.task(name="move", ordered="key")(lambda key: None).delay(1)
    app.task(name="once", unique=True)(lambda: None).delay()
    bill.delay_many([(1,)] * 5 + [(2,)])
    several.delay()
    app.task(name="count", batch=100, wait=0.5)(lambda requests: None).delay()
    found = listed(app)
    assert {name: (row.kind, row.state, row.inside, row.waiting, row.keys) for name, row in found.items()} == {
        "customer": ("at_once", "active", 0, 7, 3),
        "sms": ("rate", "active", 0, 0, 0),
        "ordered:move": ("ordered", "active", 0, 1, 1),
        "unique:once": ("unique", "active", 0, 1, 1),
        "batch:count": ("batch", "active", 0, 1, 1),
    }
    assert (found["sms"].rate, found["sms"].burst, found["sms"].at_once) == ("100/m", 3, None)
    assert (found["batch:count"].batch, found["batch:count"].wait) == (100, 0.5)
    assert service.lets_in(found["batch:count"]) == "100 together, or after 500 ms"
    assert (found["customer"].at_once, found["customer"].code_at_once, found["customer"].app) == (2, 2, app.name)
    claim()
    claim()
    found = listed(app)
    assert (found["customer"].inside, found["customer"].waiting) == (4, 3)
    assert found["sms"].inside == 1
    assert found["ordered:move"].inside == found["unique:once"].inside == 1


@pytest.mark.parametrize("rate", ["3/s", "100/m", "5/h", "7/d", "1/10s", "1/90s", "3/10s", "1/99999s"])
def test_a_rate_is_shown_as_it_is_written(rate):
    period = define_limit("x", LimitOptions(rate=rate)).period
    assert define_limit("x", LimitOptions(rate=rate_text(period))).period == period
    if rate != "3/10s":
        assert rate_text(period) == rate.replace("1/10s", "6/m").replace("1/90s", "40/h")


def test_what_an_operator_sets_counts_at_once_and_outlasts_deployments(app, claim, end):
    limited(app).delay_many([(1,)] * 20)
    assert len(claim()) == 2
    changed = service.change(app.database, "customer", at_once=5)
    assert (changed.at_once, changed.code_at_once, changed.set) == (5, 2, ["at_once"])
    running = claim()
    assert len(running) == 3
    assert sync(app) == []
    again = FBTasks(app.name, app.settings.url)
    again.limit("customer", at_once=3)
    assert sync(again) == ["defined: customer"]
    again.close()
    assert (listed(app)["customer"].at_once, listed(app)["customer"].code_at_once) == (5, 3)
    assert service.reset(app.database, "customer").at_once == 3
    end(running[:2])
    assert claim() == []  # a lowered limit lets none in until what is in fits
    end(running[2:])
    assert len(claim()) == 1  # two of the first ones run still
    assert listed(app)["customer"].set == []


def test_a_rate_is_set_with_its_burst(app, claim):
    app.limit("sms", rate="1/h")
    app.task(name="send", limits="sms")(lambda n: None).delay_many([(n,) for n in range(10)])
    assert len(claim()) == 1
    row = service.change(app.database, "sms", rate="1000/s", burst=1000)
    assert (row.rate, row.burst, row.set) == ("1000/s", 1000, ["rate", "burst"])
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = 0")  # the token of the hour has been waited for
    assert len(claim()) == 9
    row = service.change(app.database, "sms", burst=7)
    assert (row.rate, row.burst) == ("1000/s", 7)
    assert service.change(app.database, "sms", rate="100/s").burst == 10


@pytest.mark.parametrize("name", ["sms", "queue:default"])
def test_a_raised_rate_counts_at_once(app, claim, end, wait_for, name):
    """Not after what the former rate had the next one wait for: it may have been a slip of the pen."""
    if name == "sms":
        app.limit("sms", rate="100/s", burst=1)
    else:
        app.queue("default", rate="100/s", burst=1)
    send = app.task(name="send", limits="sms" if name == "sms" else None)(lambda: None)
    send.delay()
    end(wait_for(claim))
    service.change(app.database, name, rate="1/d")
    send.delay_many([()] * 4)
    end(wait_for(claim))
    assert claim() == []
    service.reset(app.database, name)
    for _ in range(3):
        (one_more,) = wait_for(claim)
        end([one_more])


@pytest.mark.parametrize(
    ("name", "said", "wanted"),
    [
        ("custmer", {"at_once": 1}, r"there is no limit 'custmer'\. Did you mean 'customer'\?"),
        ("customer", {"at_once": 0}, "at_once 0 must be"),
        ("customer", {"rate": "1/s"}, "'customer' limits how many tasks run at once: give --at-once"),
        ("sms", {"at_once": 1}, "'sms' limits how often tasks begin: give --rate or --burst"),
        ("sms", {"rate": "fast"}, "rate 'fast' must say how many"),
        ("ordered:move", {"at_once": 2}, "lets in one task of a key at a time: there is nothing to set"),
        ("batch:count", {"at_once": 2}, "'batch:count' is of a task with batch=, which its code alone says"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(app, move, name, said, wanted):
    limited(app)
    app.limit("sms", rate="1/h")
    move()
    app.task(name="count", batch=100)(lambda requests: None)
    app.migrate()
    sync(app)
    with pytest.raises(ConfigurationError, match=wanted):
        service.change(app.database, name, **said)
    assert all(row.set == [] for row in listed(app).values())


def test_a_limit_that_becomes_a_rate_loses_what_was_set_and_keeps_its_place_among_others(app):
    limited(app)
    app.migrate()
    sync(app)
    service.change(app.database, "customer", at_once=9)
    stages = [one(app, "SELECT STAGE FROM QUEUE_LIMIT")]
    for said in ({"rate": "5/s"}, {"at_once": 4}):
        sync(app, [define_limit("customer", LimitOptions(**said))])
        stages.append(one(app, "SELECT STAGE FROM QUEUE_LIMIT"))
    assert stages == [1, 2, 2]
    assert (listed(app)["customer"].at_once, listed(app)["customer"].set) == (4, [])


def test_a_limit_that_the_code_has_no_more_is_orphaned_and_its_tasks_run(app, claim, end):
    limited(app, 1).delay_many([(1,)] * 3)
    other = FBTasks("other", app.settings.url)
    assert sync(other) == []  # those of other apps are left alone
    other.close()
    assert sync(app, []) == ["orphaned: customer"]
    assert sync(app, []) == []
    assert listed(app)["customer"].state == "orphaned"
    counts = []
    while claims := claim():
        counts.append(len(claims))
        end(claims)
    assert counts == [1, 1, 1]
    assert sync(app) == ["defined: customer"]
    assert listed(app)["customer"].state == "active"


def test_the_name_of_an_ordered_task_may_be_as_long_as_a_name_can_be(app, claim):
    name = "ä" * 255
    app.task(name=name, ordered=True)(lambda: None).delay()
    assert [each.name for each in claim()] == [name]
    assert list(listed(app)) == [f"ordered:{name}"]


@pytest.fixture
def stopped(claim, end, move):
    """An order with a failed task, and one behind it; with *limits* both have several gates."""

    def stopped(**options):
        task = move(**options)
        first, second = task.delay(1, 1), task.delay(1, 2)
        end(claim() or claim(), FAILED)
        assert claim() == []
        return first, second

    return stopped


def test_the_limit_of_a_queue_is_listed_set_and_kept(app, claim, end):
    app.queue("default", at_once=1)
    app.task(name="plain")(lambda n: None).delay_many([(n,) for n in range(9)])
    running = claim()
    assert len(running) == 1
    assert sync(app) == []  # which knows nothing of queues, and leaves their limits alone
    row = listed(app)["queue:default"]
    assert (row.kind, row.state, row.at_once, row.rate, row.inside, row.waiting) == ("queue", "active", 1, None, 1, 8)
    with pytest.raises(ConfigurationError, match="'queue:default' has no rate: give --rate as well"):
        service.change(app.database, "queue:default", burst=3)
    row = service.change(app.database, "queue:default", at_once=4, rate="100/h", burst=3)
    assert (row.at_once, row.rate, row.burst, row.set) == (4, "100/h", 3, ["at_once", "rate", "burst"])
    again = FBTasks(app.name, app.settings.url)
    again.queue("default", at_once=2)
    again.database.use(again.features["limits"].deploy)
    again.close()
    assert listed(app)["queue:default"].set == ["at_once", "rate", "burst"]
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = 0")  # the first one has begun long ago
    assert len(claim()) == 3
    assert service.reset(app.database, "queue:default").at_once == 2
    end(running)
    assert claim() == []


@pytest.mark.parametrize("options", [{}, {"limits": {"all": None}}])
@pytest.mark.parametrize("how", ["key", "task"])
def test_a_closed_key_is_opened_by_its_value_or_by_the_failed_task(app, claim, stopped, options, how):
    first, second = stopped(**options)
    (closed,) = listed(app)["ordered:move"].closed
    assert (closed.task, closed.waiting) == (int(first.id), 1)
    problems = get_health(app.database, 300).problems["limits"]
    assert [problem.what for problem in problems] == ["limit ordered:move"]
    named = {"key": ["1"]} if how == "key" else {"task": int(first.id)}
    assert service.resume(app.database, "ordered:move", **named) == [int(first.id)]
    claims = claim() or claim()
    assert [each.id for each in claims] == [int(second.id)]
    assert listed(app)["ordered:move"].closed == get_health(app.database, 300).problems["limits"] == []
    assert one(app, "SELECT STATE FROM QUEUE_HISTORY WHERE ID = ?", int(first.id)) == 11


@pytest.mark.parametrize("options", [{}, {"limits": {"all": None}}])
@pytest.mark.parametrize("procedure", ["FBTASKS_OPERATOR.RETRY", "FBTASKS_READER.DISMISS"])
def test_an_order_that_stops_on_a_failure_goes_on_when_that_is_put_right(
    app, session, claim, end, stopped, procedure, options
):
    first, second = stopped(**options)
    session.run(lambda t: tasks.prune(t, State.FAILED, timedelta(0)))  # which leaves it there
    assert session.call(procedure, int(first.id))
    expected = [first, second] if procedure == "FBTASKS_OPERATOR.RETRY" else [second]
    found = []
    while claims := claim() or claim():
        found += [each.id for each in claims]
        end(claims)
    assert found == [int(each.id) for each in expected]


def test_what_is_not_closed_is_not_opened(app, stopped):
    first, _ = stopped()
    for key, wanted in [(["2"], "no closed key '2'"), ([], "no closed line of all calls")]:
        with pytest.raises(ConfigurationError, match=rf"{wanted}.*closed by task {first.id}: fbtasks limits res"):
            service.resume(app.database, "ordered:move", key)
    with pytest.raises(ConfigurationError, match="no key of 'ordered:move' that task 77 closed"):
        service.resume(app.database, "ordered:move", task=77)
    with pytest.raises(ConfigurationError, match=r"no limit 'ordered:mov'\. Did you mean 'ordered:move'"):
        service.resume(app.database, "ordered:mov", ["1"])


def test_one_line_of_all_calls_needs_no_key(app, claim, end):
    task = app.task(name="one", ordered=Ordered(None, stop_on_failure=True))(lambda: None)
    first, second = task.delay(), task.delay()
    end(claim(), FAILED)
    assert claim() == []
    assert service.resume(app.database, "ordered:one") == [int(first.id)]
    assert [each.id for each in claim()] == [int(second.id)]


def test_tasks_that_wait_for_a_limit_that_nobody_defined_are_told(app):
    limited(app).delay_many([(1,), (2,)])
    found = get_health(app.database, 300)  # a queue with held tasks alone needs a worker
    assert (found.unserved, found.problems["limits"]) == (["default"], [])
    execute(app, "DELETE FROM QUEUE_LIMIT")
    (row,) = service.list_limits(app.database)
    assert (row.name, row.state, row.waiting) == (None, "undefined", 2)
    (problem,) = get_health(app.database, 300).problems["limits"]
    assert problem.problem == "2 tasks wait for a limit that no app has defined (fbtasks inspect held)"
    assert [each.waits_for for each in tasks_in(app, State.HELD)[0]] == [["a limit that no app defines"]] * 2


def test_what_held_tasks_wait_for_is_named(app, claim):
    limited(app, 1)
    app.limit("sms", rate="1/h")
    several = app.task(name="several", limits={"sms": None, "customer": "n"})(lambda n: None)
    for n in (1, 1, 2):
        several.delay(n)
    app.tasks["bill"].delay(1)
    claim()
    claim()
    waits = {each.id: each.waits_for for each in tasks_in(app, State.HELD)[0]}
    assert waits == {2: ["customer", "sms"], 3: ["sms"], 4: ["customer"]}
    assert task_service.get_task(app.database, "2").row.waits_for == ["customer", "sms"]
    assert task_service.get_task(app.database, "1").row.waits_for == []


def test_a_rate_whose_task_runs_on_needs_no_look_and_its_key_is_forgotten(app, claim, end, session, wait_for):
    app.limit("sms", rate="100/s", burst=3)
    app.task(name="send", limits={"sms": "n"}, ignore_result=True)(lambda n: None).delay(1)
    running = claim()
    assert not tasks.any_ready(session, ["default"]).ready
    assert tasks.any_ready(session, ["default"]).again is None
    end(running)

    def forgotten():
        claim()
        Leftovers().turn(session)
        return not rows(app, "SELECT * FROM QUEUE_GATE")

    wait_for(forgotten)


def test_maintenance_deletes_gates_that_nothing_needs_and_no_others(app, claim, end):
    bill = limited(app, 1)
    app.limit("sms", rate="1/d")
    app.task(name="send", limits="sms", ignore_result=True)(lambda: None).delay()
    app.task(name="move", ordered=Ordered("key", stop_on_failure=True))(lambda key: None).delay(1)
    by_name = {each.name: each for each in claim()}
    end([by_name["send"]])
    end([by_name["move"]], FAILED)
    bill.delay_many([(1,)] * 2)
    claim()
    owner = "(SELECT ID FROM QUEUE_LIMIT WHERE NAME = 'customer')"
    execute(app, f"INSERT INTO QUEUE_GATE (OWNER_ID, LANE) VALUES ({owner}, 5)")
    before = set(rows(app, "SELECT OWNER_ID, LANE FROM QUEUE_GATE WHERE LANE <> 5"))
    assert len(before) == 3  # one with a task in and one that waits, a rate without tokens, a closed order
    clean(app)
    assert set(rows(app, "SELECT OWNER_ID, LANE FROM QUEUE_GATE")) == before
    execute(app, "UPDATE QUEUE_GATE SET FREE_US = 1 WHERE FREE_US > 0")  # its tokens are all there again
    clean(app)
    assert len(before) - len(rows(app, "SELECT * FROM QUEUE_GATE")) == 1


def test_gates_are_left_to_a_worker_that_is_at_them(app, session):
    limited(app).delay(1)
    execute(app, "INSERT INTO QUEUE_GATE (OWNER_ID, LANE) SELECT ID, 5 FROM QUEUE_LIMIT")
    with session.transaction() as transaction:
        transaction.sql("SELECT 1 FROM QUEUE_DISPATCH WHERE SUBSCRIPTION_ID > 0 WITH LOCK")
        clean(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE") == 1
    clean(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_GATE") == 0


def test_maintenance_forgets_merged_tasks_and_gates_of_tasks_that_are_gone(app, claim, end):
    app.limit("a", at_once=1)
    app.limit("b", at_once=1)
    several = app.task(name="several", limits={"a": None, "b": None})(lambda: None)
    kept, failed, gone = several.delay(), several.delay(), several.delay()
    end(claim() or claim(), FAILED)
    execute(app, "DELETE FROM QUEUE_TASK WHERE ID = ?", int(gone.id))
    execute(app, """EXECUTE BLOCK AS DECLARE N INTEGER = 1000; BEGIN
        WHILE (N < 3100) DO BEGIN
            INSERT INTO QUEUE_REDIRECT (ID, TO_ID) VALUES (:N, 5000000 + :N);
            N = N + 1;
        END END""")  # fmt: skip
    execute(app, "INSERT INTO QUEUE_REDIRECT (ID, TO_ID) VALUES (9000, ?)", int(kept.id))
    execute(app, "INSERT INTO QUEUE_REDIRECT (ID, TO_ID) VALUES (9001, ?)", int(failed.id))
    clean(app)
    assert {number for (number,) in rows(app, "SELECT ID FROM QUEUE_REDIRECT")} == {9000, 9001}
    assert {number for (number,) in rows(app, "SELECT TASK_ID FROM QUEUE_HOLD")} == {int(kept.id), int(failed.id)}


def test_a_worker_does_this_once_an_hour(app, session):
    app.migrate()
    keeper = Keeper(app)
    keeper.turn(session)
    execute(app, "INSERT INTO QUEUE_REDIRECT (ID, TO_ID) VALUES (1, 2)")
    keeper.turn(session)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_REDIRECT") == 1
    Keeper(app).turn(session)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_REDIRECT") == 0


def test_maintenance_beside_enqueues_and_workers_loses_nothing(app):
    """Keys come and go; some tasks have several limits, some are tried again. Limits hold, that of the queue too."""
    app.limit("customer", at_once=2)
    app.limit("all", at_once=4)
    app.limit("sms", rate="100000/s", burst=1)
    kinds = [
        app.task(name=name, ignore_result=True, **options)(lambda key: None)
        for name, options in {
            "bill": {"limits": {"customer": "key"}},
            "both": {"limits": {"customer": "key", "all": None}},
            "move": {"ordered": "key"},
            "sms": {"limits": {"sms": "key"}},
        }.items()
    ]
    app.queue("default", at_once=10)
    app.migrate()
    app.database.use(app.features["limits"].deploy)
    total, lock, done, over, stop = 160, threading.Lock(), [], [], threading.Event()
    inside, begun = Counter(), defaultdict(list)

    def enqueue():
        chosen = random.Random(1)
        for _ in range(total):
            chosen.choice(kinds).delay(chosen.randrange(6))

    def work(worker):
        chosen = random.Random(worker)
        with app.database.session() as session:
            while len(done) < total:
                room = chosen.randint(1, 8)
                claims = again(lambda: session.run(lambda t: tasks.claim(t, worker, "default", room, from_start=True)))  # noqa: B023
                with lock:
                    for each in claims:
                        key = each.name, each.payload
                        inside[key] += 1
                        begun[key].append(each.id)
                        if inside[key] > {"move": 1, "sms": 99}.get(each.name, 2) or inside.total() > 10:
                            over.append(key)
                finished = [
                    Finished(each, Requeue(Reason.RETRY, 0.0, "x", "E") if chosen.random() < 0.1 else DONE)
                    for each in claims
                ]
                with lock:
                    for each in finished:
                        inside[each.claim.name, each.claim.payload] -= 1
                again(lambda: session.run(lambda t: tasks.finish(t, worker, 0, finished)))  # noqa: B023
                with lock:
                    done.extend(each.claim.id for each in finished if each.outcome is DONE)

    def maintain():
        with app.database.session() as session:
            while not stop.is_set():
                again(lambda: Leftovers().turn(session))
                stop.wait(0.005)

    threads = [threading.Thread(target=enqueue), *(threading.Thread(target=work, args=(n,)) for n in (1, 2))]
    cleaner = threading.Thread(target=maintain)
    for thread in [*threads, cleaner]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    cleaner.join()
    assert over == []
    assert len(set(done)) == len(done) == total
    assert all(ids == sorted(ids) for (name, _), ids in begun.items() if name == "move")
    with app.database.session() as session:
        for _ in range(3):
            session.run(lambda t: tasks.claim(t, 1, "default", 10, from_start=True))
    clean(app)
    assert nothing_left(app, "QUEUE_GATE")


def test_the_commands_say_what_they_do(app, url, capsys, monkeypatch, stopped):
    monkeypatch.setenv("FBTASKS_URL", url)
    first, second = stopped()
    limited(app)
    sync(app)

    def run(*arguments, code=0):
        capsys.readouterr()
        assert command_line(*arguments) == code
        found = capsys.readouterr()
        return found.err or found.out

    group = CommandGroup("limits", place="limits ")
    assert set(group.table(click.Context(group))) == {"list", "set", "reset", "resume"}
    shown = run("limits", "list")
    assert "customer" in shown and "2 at once" in shown  # noqa: PT018
    assert f"fbtasks limits resume ordered:move --task {first.id}" in shown
    assert run("limits", "set", "customer", "--at-once", "9") == "customer: 9 at once (set; the code: 2 at once).\n"
    assert "9 at once (set" in run("limits", "list")
    assert run("limits", "reset", "customer") == "customer: 2 at once.\n"
    assert re.search(
        rf"^ID +NAME +QUEUE +TRIES +PRIORITY +FOR .*\n +{second.id} +move .* ordered:move ", run("inspect", "held")
    )
    assert re.search(r"^WAITS FOR +ordered:move \(for \d", run("inspect", "task", second.id), re.MULTILINE)
    assert run("health", code=1) == (
        "queue default: no worker serves it\n"
        f"limit ordered:move: a key is closed since task {first.id} failed; tasks that wait behind it: 1. Retry that "
        f"task, or pass it by: fbtasks limits resume ordered:move --task {first.id}\n"
        "no worker is alive (fbtasks worker -A MODULE)\n"
    )
    assert run("limits", "set", "customer", code=2).endswith("--at-once, --rate or --burst.\n")
    assert "Did you mean 'customer'?" in run("limits", "reset", "customr", code=2)
    assert "give KEY or --task" in run("limits", "resume", "ordered:move", "1", "--task", "3", code=2)
    said = run("limits", "resume", "ordered:move", "1")
    assert said == f"ordered:move: goes on behind task {first.id}, which stays failed.\n"
