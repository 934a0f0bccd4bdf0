"""Changes become tasks: in which order, how many together, and when the next of a lane is let in."""

import json
from datetime import timedelta

import pytest
from support.feeding import change, gates, left, subscribe, write
from support.sql import execute, held, one
from support.waking import listening

from fbtasks.firebird.session import UPDATE
from fbtasks.queue import tasks
from fbtasks.states import State
from fbtasks.tasks.call import RELEASED, Cancelled, Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

NAME = "tests.handle"


def a_minute_later(app):
    """Lets a minute pass for what waits behind gates."""
    execute(app, "UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-1 MINUTE TO WAKE_TIME)")
    execute(app, "UPDATE QUEUE_FEEDER SET DUE_TIME = DATEADD(-1 MINUTE TO DUE_TIME)")


@pytest.fixture
def session(app):
    app.database.make_ready()
    with app.database.session() as session:
        yield session


def claim(session, most=10, *, from_start=True):
    return session.run(lambda t: tasks.claim(t, 1, "default", most, from_start=from_start))


def numbers(session, claim):
    payload = claim.payload
    if payload is None:
        payload = session.run(lambda t: tasks.payload(t, claim.id))
    args, kwargs = json.loads(payload)
    assert kwargs == {}
    return [each["i"] for each in args]


def finish(session, *claims, outcome=None):
    items = [Finished(each, outcome or Succeeded(keep=False), 0.0) for each in claims]
    assert session.run(lambda t: tasks.finish(t, 1, 0, items)) == []


def taken(session, claims):
    return [numbers(session, each) for each in claims]


def test_without_order_each_change_is_a_task(app, session):
    subscribe(app, NAME, ordering="none", most=1)
    made = [change(app) for _ in range(5)]
    first = claim(session, 3)
    assert taken(session, first) == [[n] for n in made[:3]]
    assert {each.name for each in first} == {NAME}
    second = claim(session, 3)
    assert taken(session, second) == [[n] for n in made[3:]]
    finish(session, *first, *second)
    assert left(app) == (0, 0, 0, 0, 0)


def test_in_total_order_one_task_is_let_in_at_a_time(app, session):
    subscribe(app, NAME, ordering="total", most=3)
    made = [change(app) for _ in range(7)]
    seen = []
    while found := claim(session):
        assert len(found) == 1
        assert not claim(session)  # the gate is shut
        seen.append(numbers(session, found[0]))
        finish(session, *found)
    assert seen == [made[:3], made[3:6], made[6:]]
    assert left(app) == (0, 0, 0, 0, 0)


def test_by_key_lanes_run_beside_each_other_and_each_in_its_order(app, session):
    subscribe(app, NAME, most=2)
    made = {lane: [] for lane in (-5, 0, 3, 2**63 - 1, 1 - 2**63)}
    for _ in range(3):
        for lane in made:
            made[lane].append(change(app, lane))
    first = claim(session)
    assert sorted(taken(session, first)) == sorted(each[:2] for each in made.values())
    assert not claim(session)
    finish(session, *first)
    second = claim(session)
    assert sorted(taken(session, second)) == sorted(each[2:] for each in made.values())
    finish(session, *second)
    assert not claim(session)
    assert left(app) == (0, 0, 0, 0, 0)


def test_what_comes_while_a_lane_is_held_waits_and_is_joined(app, session):
    subscribe(app, NAME)
    change(app, 7)
    (running,) = claim(session)
    waiting = [change(app, 7), change(app, 7)]
    assert not claim(session)
    waiting.append(change(app, 7))
    assert not claim(session)
    assert gates(app) == [(7, running.id, 0, 1)]
    finish(session, running)
    assert taken(session, claim(session)) == [waiting]


def test_no_more_tasks_are_made_than_there_is_room_for(app, session):
    subscribe(app, NAME)
    for lane in range(10):
        change(app, lane)
    assert len(claim(session, 3)) == 3
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 3
    assert len(claim(session, 30)) == 7


@pytest.mark.parametrize("most", [1, 2])
def test_ready_tasks_that_other_transactions_hold_take_no_room(app, session, most):
    """Not even of a worker that has room for no more than those."""
    subscribe(app, NAME)
    made = [[change(app, lane=lane)] for lane in (1, 2, 3)]
    locked = [app.send_task("locked").id for _ in range(2)]
    app.send_task("free")
    with held(app, "QUEUE_TASK", *locked):
        claims = []
        while found := claim(session, most):
            claims += found
    assert [each.name for each in claims if each.name != NAME] == ["free"]
    assert sorted(taken(session, [each for each in claims if each.name == NAME])) == made
    assert [each.name for each in claim(session)] == ["locked"] * 2


def test_that_another_one_is_at_a_subscription_is_told_though_others_hold_ready_tasks(app, session):
    """What the first dispatch of a claim has told is not lost when there is a second."""
    subscribe(app, NAME)
    subscribe(app, "tests.other", id=2)
    locked = app.send_task("locked").id
    change(app, 1, id=2)
    other = change(app, 2)
    with held(app, "QUEUE_TASK", locked), app.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT 1 FROM QUEUE_DISPATCH WHERE SUBSCRIPTION_ID = 2 WITH LOCK").fetchall()
        found = claim(session, 2)
    assert (taken(session, found), found.missed) == ([[other]], True)


def test_no_more_idle_work_is_made_than_there_is_room_for(app, session):
    subscribe(app, NAME, ordering="none", most=1, rank=9999)
    for _ in range(5):
        change(app)

    def look():
        claims = session.run(lambda t: tasks.claim(t, 1, "default", 2, idle=False))
        return len(claims), claims.idles, one(app, "SELECT COUNT(*) FROM QUEUE_TASK")

    assert [look(), look()] == [(0, True, 0)] * 2


def test_lanes_have_their_turns(app, session):
    subscribe(app, NAME, most=1)
    for lane in (1, 2, 3):
        change(app, lane)
        change(app, lane)
    first = claim(session, 1)
    finish(session, *first)
    second = claim(session, 1)
    finish(session, *second)
    third = claim(session, 1)
    keys = [json.loads(each.payload)[0][0]["k"]["ID"] for each in (*first, *second, *third)]
    assert sorted(keys) == [1, 2, 3]


def test_large_changes_are_tasks_of_their_own(app, session):
    subscribe(app, NAME)
    small = [change(app, 1), change(app, 1)]
    large = change(app, 1, n={"TEXT": "x" * 5000})
    last = change(app, 1)
    seen = []
    while found := claim(session):
        seen += taken(session, found)
        finish(session, *found)
    assert seen == [small, [large], [last]]


def test_a_run_is_not_longer_than_what_a_claim_returns_at_once(app, session):
    subscribe(app, NAME)
    made = [change(app, 1, n={"TEXT": "x" * 1800}) for _ in range(40)]
    seen = []
    while found := claim(session):
        seen += taken(session, found)
        finish(session, *found)
    assert [number for run in seen for number in run] == made
    assert max(map(len, seen)) == 15


@pytest.mark.parametrize("ordering", ["none", "total", "key"])
def test_a_change_waits_for_those_that_follow(app, session, ordering):
    subscribe(app, NAME, ordering=ordering, after_ms=60_000)
    young = [change(app, 0), change(app, 0)]
    assert not claim(session)
    assert tasks.any_ready(session, ["default"]) == (False, None, pytest.approx(60, abs=10))
    execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-1 MINUTE TO RAISE_TIME)")
    a_minute_later(app)
    assert tasks.any_ready(session, ["default"])[0]
    found = claim(session)
    assert taken(session, found) == [young]
    later = change(app, 0)
    finish(session, *found)
    assert not claim(session)
    execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-1 MINUTE TO RAISE_TIME)")
    a_minute_later(app)
    assert taken(session, claim(session)) == [[later]]


@pytest.mark.parametrize("ordering", ["none", "total", "key"])
def test_a_full_batch_does_not_wait(app, session, ordering):
    subscribe(app, NAME, ordering=ordering, after_ms=60_000, most=3, fills=1)
    made = [change(app, 0), change(app, 0)]
    assert not claim(session)
    made += [change(app, 0), change(app, 0)]
    assert taken(session, claim(session)) == [made[:3]]


def test_quiet_waits_for_the_last_but_not_for_ever(app, session):
    subscribe(app, NAME, after_ms=60_000, quiet_ms=10_000)
    change(app, 1, age_ms=20_000)
    change(app, 1, age_ms=5_000)
    change(app, 2, age_ms=20_000)
    change(app, 3, age_ms=70_000)
    change(app, 3, age_ms=0)
    found = claim(session)
    assert sorted(json.loads(each.payload)[0][0]["k"]["ID"] for each in found) == [2, 3]


def test_what_waited_behind_a_run_is_due_as_if_it_had_come_to_a_free_lane(app, session):
    subscribe(app, NAME, id=1, most=2, after_ms=60_000, fills=1)
    subscribe(app, NAME, id=2, after_ms=60_000, quiet_ms=1000)
    for id in (1, 2):
        change(app, 1, id=id, age_ms=70_000), change(app, 1, id=id, age_ms=70_000)
    runs = claim(session)
    full = [change(app, 1, id=1), change(app, 1, id=1)]
    quiet = change(app, 1, id=2, age_ms=5000)
    assert not claim(session)
    finish(session, *runs)
    assert sorted(taken(session, claim(session))) == [full, [quiet]]


@pytest.mark.parametrize("how", ["cancelled while it waits", "cancelled while it runs", "deleted by hand"])
def test_a_cancelled_or_deleted_task_halts_nothing_and_lets_the_next_one_in(app, session, how):
    subscribe(app, NAME, most=1, stops=1)
    change(app, 1)
    second = change(app, 1)
    (running,) = claim(session)
    if how == "cancelled while it waits":
        finish(session, running, outcome=RELEASED)
        assert session.run(lambda t: tasks.revoke(t, running.id)) == "cancelled"
    elif how == "cancelled while it runs":
        finish(session, running, outcome=Cancelled("enough"))
    else:
        execute(app, "DELETE FROM QUEUE_TASK WHERE ID = ?", running.id)
    assert taken(session, claim(session)) == [[second]]


def test_a_failed_task_that_is_retried_waits_for_its_lane(app, session):
    subscribe(app, NAME, most=1)
    first, second = change(app, 1), change(app, 1)
    (failed,) = claim(session)
    finish(session, failed, outcome=Failed("E", "m", ""))
    (running,) = claim(session)
    assert numbers(session, running) == [second]
    assert session.call("FBTASKS_OPERATOR.RETRY", failed.id)
    assert not claim(session)
    assert one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", failed.id) == 4
    finish(session, running)
    (again,) = claim(session)
    assert (again.id, numbers(session, again)) == (failed.id, [first])
    finish(session, again)
    assert not claim(session)
    assert left(app) == (0, 0, 0, 0, 0)


def halted(app, session):
    """A lane that is halted since the first change of a run failed: the failed task, and the number of the rest."""
    subscribe(app, NAME, stops=1)
    for _ in range(3):
        change(app, 1)
    (run,) = claim(session)
    args = json.loads(run.payload)[0]
    rest, alone = (json.dumps([some, {}]).encode() for some in (args[1:], args[:1]))

    def work(t):
        number = t.call("FBTASKS_SOURCES.PUT_REST", run.id, run.claim_id, alone, rest, None, 0)
        assert tasks.finish(t, 1, 0, [Finished(run, Failed("E", "m", ""), 0.0)]) == []
        return number

    number = session.run(work)
    assert not claim(session)
    assert gates(app) == [(1, run.id, 1, 1)]
    return run, number


def crashes(app, session, claimed):
    """Its worker, which has crashed once too often, is declared dead."""
    execute(app, "UPDATE QUEUE_TASK SET SUSPECT = 1, CRASH_COUNT = 2 WHERE ID = ?", claimed.id)
    execute(app, "EXECUTE PROCEDURE FBTASKS_CORE.GIVE_BACK(1, 0, 3, 'why')")


def is_parked_for_too_long(app, session, claimed):
    finish(session, claimed, outcome=Requeue(Reason.PARKED))
    assert session.run(lambda t: tasks.fail_parked(t, timedelta(0))) == [claimed.id]


@pytest.mark.parametrize("ends", [crashes, is_parked_for_too_long])
@pytest.mark.parametrize("ordering", ["key", "total"])
def test_a_task_that_a_statement_fails_halts_its_lane_as_well(app, session, ends, ordering):
    subscribe(app, NAME, ordering=ordering, stops=1)
    lane = int(ordering == "key")
    made = change(app, lane)
    (failed,) = claim(session)
    later = change(app, lane)
    ends(app, session, failed)
    assert one(app, "SELECT STATE FROM QUEUE_HISTORY WHERE ID = ?", failed.id) == 11
    assert not claim(session)
    assert gates(app)[0][:3] == (lane, failed.id, 1)
    assert session.call("FBTASKS_OPERATOR.RETRY", failed.id)
    (again,) = claim(session)
    assert (again.id, numbers(session, again)) == (failed.id, [made])
    finish(session, again)
    assert taken(session, claim(session)) == [[later]]


@pytest.fixture
def wakes(app):
    """Tells whether what a function does wakes the workers of the queue."""
    with listening(app) as wakes:
        yield wakes


@pytest.mark.parametrize(("ordering", "lane"), [("key", 1), ("key", 0), ("total", 0)])
def test_an_end_wakes_workers_only_when_something_waits_behind_it(app, session, wakes, ordering, lane):
    subscribe(app, NAME, ordering=ordering)
    change(app, lane)
    (first,) = claim(session)
    assert not wakes(finish, session, first)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0") == 0
    change(app, lane)
    (second,) = claim(session)
    change(app, lane)
    assert not claim(session)
    assert wakes(finish, session, second)
    (third,) = claim(session)
    assert wakes(finish, session, third, outcome=Failed("E", "m", ""))


def test_in_total_order_the_end_of_a_full_run_wakes_workers(app, session, wakes):
    subscribe(app, NAME, ordering="total", most=2)
    for _ in range(3):
        change(app)
    (first,) = claim(session)
    assert wakes(finish, session, first)
    (second,) = claim(session)
    assert not wakes(finish, session, second)


@pytest.mark.parametrize(("ordering", "lane"), [("key", 1), ("total", 0)])
def test_what_comes_while_its_lane_is_ending_unseen_is_looked_for_again(app, session, ordering, lane):
    subscribe(app, NAME, ordering=ordering)
    change(app, lane)
    (first,) = claim(session)
    with app.database.session() as other:
        with other.transaction(UPDATE) as t:
            assert tasks.finish(t, 1, 0, [Finished(first, Succeeded(keep=False), 0.0)]) == []
            later = change(app, lane)
            assert claim(session) == []
            ready, _, look_ms, *_ = session.run(lambda t: t.rows("FBTASKS_WORKER.ANY_READY", "default"))[0]
            assert ready == 1 or look_ms <= 50
            times = "SELECT DATEDIFF(MILLISECOND FROM QUEUE_NOW() TO WAKE_TIME) FROM QUEUE_GATE"
            execute(app, "UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-1 SECOND TO QUEUE_NOW())")
            assert claim(session) == []  # it is still shut, and looked at again later
            assert one(app, times) > 0
        execute(app, "UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-1 SECOND TO QUEUE_NOW())")
    assert taken(session, claim(session)) == [[later]]


def test_a_lane_that_stays_shut_is_looked_at_less_and_less(app, session):
    subscribe(app, NAME)
    change(app, 1)
    (first,) = claim(session)
    for age, within in ((1, 2_000), (30, 40_000), (3600, 60_000)):
        change(app, 1)
        execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(? SECOND TO QUEUE_NOW())", -age)
        assert claim(session) == []
        execute(app, "UPDATE QUEUE_GATE SET WAKE_TIME = DATEADD(-1 SECOND TO QUEUE_NOW())")
        assert claim(session) == []
        again = one(app, "SELECT DATEDIFF(MILLISECOND FROM QUEUE_NOW() TO WAKE_TIME) FROM QUEUE_GATE")
        assert min(900 * age, 50_000) < again <= within
    finish(session, first)
    assert len(claim(session)) == 1


def test_a_task_for_which_a_lane_is_halted_is_not_pruned(app, session):
    run, _ = halted(app, session)
    assert session.run(lambda t: tasks.prune(t, State.FAILED, timedelta(0))) == 0
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE ID = ?", run.id) == 1


def test_a_stale_claim_leaves_the_run_as_it_is(app, session):
    subscribe(app, NAME)
    change(app, 1)
    (run,) = claim(session)
    number = session.call("FBTASKS_SOURCES.PUT_REST", run.id, run.claim_id + 1, b"[[],{}]", None, 0, 0)
    assert number == 0
    assert one(app, "SELECT PAYLOAD FROM QUEUE_TASK WHERE ID = ?", run.id) == run.payload


def test_a_held_task_that_another_transaction_has_locked_delays_its_own_lane_alone(app, session):
    run, number = halted(app, session)
    other = change(app, 2)
    with held(app, "QUEUE_TASK", number):
        assert session.call("FBTASKS_READER.DISMISS", run.id)
        assert taken(session, claim(session)) == [[other]]
        assert (1, None, 0, 1) in gates(app)
    a_minute_later(app)
    assert [each.id for each in claim(session)] == [number]


def test_a_held_task_that_is_cancelled_and_retried_before_its_turn_runs_alone(app, session):
    run, number = halted(app, session)
    assert session.call("FBTASKS_READER.DISMISS", run.id)  # the task that waits is to go on
    execute(app, f"EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE({number}, 12, NULL, 0, NULL, 'cancelled', NULL, NULL, NULL)")
    assert session.call("FBTASKS_OPERATOR.RETRY", number)
    later = change(app, 1)
    (again,) = claim(session)  # reads all of these notes at once
    assert again.id == number
    finish(session, again)
    (last,) = claim(session)
    assert numbers(session, last) == [later]
    finish(session, last)
    assert not claim(session)
    assert left(app) == (0, 0, 0, 0, 0)


def test_in_total_order_a_locked_task_has_its_turn_later(app, session):
    subscribe(app, NAME, ordering="total", most=1)
    made = [change(app) for _ in range(3)]
    (failed,) = claim(session)
    finish(session, failed, outcome=Failed("E", "m", ""))
    (running,) = claim(session)
    assert session.call("FBTASKS_OPERATOR.RETRY", failed.id)
    assert not claim(session)
    with held(app, "QUEUE_TASK", failed.id):
        finish(session, running)
        assert not claim(session)
        assert gates(app) == [(0, None, 0, 1)]
        assert not tasks.any_ready(session, ("default",)).ready  # it is looked at again in a second
    a_minute_later(app)
    (again,) = claim(session)
    assert again.id == failed.id
    finish(session, again)
    assert taken(session, claim(session)) == [made[2:]]


@pytest.mark.parametrize(
    "locked",
    ["QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 1", "QUEUE_GATE WHERE OWNER_ID = 1", "QUEUE_NOTE WHERE OWNER_ID = 1"],
)
def test_a_locked_row_of_a_subscription_holds_up_no_other_one_and_no_plain_task(app, session, locked):
    subscribe(app, NAME, id=1, most=1)
    subscribe(app, "tests.other", id=2)
    first, second = change(app, 1, id=1), change(app, 1, id=1)
    (running,) = claim(session, 1)
    assert numbers(session, running) == [first]
    assert not claim(session)  # from now on the end of the first one is noted
    finish(session, running)
    change(app, 1, id=2)
    app.task(name="plain")(lambda: None).delay()
    with app.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute(f"SELECT 1 FROM {locked} WITH LOCK").fetchall()
        found = claim(session)
        assert sorted(each.name for each in found) == ["plain", "tests.other"]
        assert found.missed
    assert taken(session, claim(session)) == [[second]]


def test_another_dispatcher_is_not_waited_for(app, session):
    subscribe(app, NAME)
    change(app, 1)
    with app.database.session() as other, other.transaction(UPDATE) as t:
        assert len(tasks.claim(t, 2, "default", 1)) == 1
        change(app, 2)
        found = claim(session)
        assert (list(found), found.missed) == ([], True)
    found = claim(session)
    assert (len(found), found.missed) == (1, False)


def test_what_is_committed_late_is_found_by_a_look_from_the_start(app, session):
    subscribe(app, NAME, ordering="none", most=1)
    late = one(app, "SELECT NEXT VALUE FOR QUEUE_CHANGE_SEQ FROM RDB$DATABASE")
    early = change(app)
    found = claim(session)
    assert taken(session, found) == [[early]]
    finish(session, *found)
    write(app, 1, 0, late, json.dumps({"i": late}))
    assert not claim(session, from_start=False)
    assert tasks.any_ready(session, ["default"])[0]
    assert taken(session, claim(session)) == [[late]]


def test_a_paused_subscription_keeps_its_changes(app, session):
    subscribe(app, NAME)
    change(app, 1)
    execute(app, "UPDATE QUEUE_SUBSCRIPTION SET STATE = 'paused'")
    assert not claim(session)
    assert tasks.any_ready(session, ["default"]) == (False, None, None)
    execute(app, "UPDATE QUEUE_SUBSCRIPTION SET STATE = 'active'")
    assert len(claim(session)) == 1


def test_subscriptions_of_one_queue_share_the_room(app, session):
    subscribe(app, NAME, ordering="none", most=1)
    subscribe(app, "tests.other", id=2, ordering="none", most=1)
    for _ in range(10):
        change(app)
        change(app, id=2)
    seen = {each.name for each in claim(session, 4)} | {each.name for each in claim(session, 4)}
    assert seen == {NAME, "tests.other"}


@pytest.mark.parametrize("most", [1, 4])
def test_a_queue_in_which_tasks_are_always_ready_asks_its_sources_too(app, session, most):
    subscribe(app, NAME)
    app.task(name="plain")(lambda: None).delay_many([()] * 50)
    for lane in range(20):
        change(app, lane)
    looks = 30
    for _ in range(looks):
        finish(session, *claim(session, most))
    made = 20 - one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0")
    assert made > 3 if most == 1 else made == 20
    ready = one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'plain'")
    assert made + 50 - ready == min(70, most * looks)


def test_a_queue_in_which_a_limit_always_lets_one_in_asks_its_sources_too(app, session):
    app.limit("narrow", at_once=1)
    app.task(name="plain", limits="narrow")(lambda: None).delay_many([()] * 40)
    number = one(app, "SELECT GEN_ID(QUEUE_OWNER_SEQ, 1) FROM RDB$DATABASE")
    subscribe(app, NAME, id=number)
    for lane in range(40):
        change(app, lane, id=number)
    names = []
    for _ in range(40):
        (claimed,) = claim(session, 1)
        names.append(claimed.name)
        finish(session, claimed)
    assert 5 < names.count("plain") < 35


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [({0: 50}, 10), ({0: 3}, 17), ({-1: 50}, 20), ({1: 4}, 16), ({1: 4, 0: 50}, 6), ({1: 50, 0: 50}, 0)],
    ids=str,
)
def test_ready_tasks_have_their_share_of_the_room_by_priority(app, session, priorities, expected):
    subscribe(app, NAME, ordering="none", most=1)
    plain = app.task(name="plain")(lambda: None)
    for priority, count in priorities.items():
        plain.delay_many([()] * count, priority=priority)
    for _ in range(30):
        change(app)
    found = [each.name for each in claim(session, 20)]
    assert (found.count(NAME), len(found)) == (expected, 20)


def test_ready_tasks_of_the_same_priority_have_every_second_claim_of_one(app, session):
    subscribe(app, NAME, ordering="none", most=1)
    app.task(name="plain")(lambda: None).delay_many([()] * 40)
    for _ in range(40):
        change(app)
    assert {each.name for _ in range(40) for each in claim(session, 1)} == {"plain", NAME}


def test_more_urgent_tasks_take_the_whole_room(app, session):
    subscribe(app, NAME)
    app.task(name="plain", priority=1)(lambda: None).delay_many([()] * 50)
    change(app, 1)
    assert {each.name for _ in range(5) for each in claim(session, 4)} == {"plain"}
    assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0") == 1


def test_a_higher_priority_is_made_tasks_of_though_others_wait(app, session):
    subscribe(app, NAME, ordering="none", most=1)
    subscribe(app, "tests.urgent", id=2, ordering="none", most=1, rank=-5)
    for _ in range(10):
        change(app)
    assert len(claim(session, 1)) == 1
    urgent = change(app, id=2)
    assert taken(session, claim(session, 1)) == [[urgent]]
