"""Ageing: in which order a claim takes the tasks of a queue with an age."""

import random
import re
from contextlib import closing
from datetime import timedelta

import pytest
from support.feeding import change, subscribe
from support.programs import command_line
from support.sql import NOW, execute, one, plans, rows

from fbtasks import FBTasks
from fbtasks.features.queues import duty as queue_limits
from fbtasks.queue import tasks
from fbtasks.queue.operations.queues import list_queues

pytestmark = pytest.mark.emptied

AGE = 60


def says(app, **options):
    """An app says that of the queue "mail", as one does whose worker starts."""
    with closing(FBTasks("says", app.settings.url)) as other, app.database.session() as session:
        other.queue("mail", **options)
        queue_limits.sync_queues(session, "says", other.features["queues"].definitions.values())


def put(app, *waiting):
    """Ready tasks: pairs of a priority, and the seconds for which it has been due."""
    note = app.tasks.get("note") or app.task(name="note", queue="mail")(lambda *args: None)
    calls = [note.apply_async((n,), priority=priority) for n, (priority, _) in enumerate(waiting)]
    moment = one(app, f"SELECT {NOW} FROM RDB$DATABASE")
    for call, (_, age) in zip(calls, waiting, strict=True):
        due = moment - timedelta(seconds=age)
        execute(app, "UPDATE QUEUE_TASK SET START_TIME = ? WHERE ID = ?", due, int(call.id))
    return [int(call.id) for call in calls]


def claim(app, most=1, **options):
    with app.database.session() as session:
        return [task.id for task in session.run(lambda t: tasks.claim(t, 1, "mail", most, **options))]


def claim_one_by_one(app):
    taken = []
    while found := claim(app):
        taken += found
    return taken


def test_a_steady_stream_of_higher_priorities_does_not_hold_it_up(app):
    """Each claim finds new tasks of a higher priority; the low one is older by a second from one to the next."""
    says(app, age=10)
    (low,) = put(app, (0, 0))
    seconds = 0
    while True:
        put(app, (1, 0), (1, 0))
        if claim(app) == [low]:
            break
        execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 SECOND TO START_TIME) WHERE ID = ?", low)
        seconds += 1
        assert seconds <= 11
    assert seconds >= 8


def test_an_age_counts_for_tasks_that_wait_already_and_no_longer_when_it_is_gone(app):
    ids = put(app, *[(1, 0)] * 3, *[(0, 150)] * 3, *[(-1, 200)] * 3)
    high, low, lowest = ids[:3], ids[3:6], ids[6:]
    assert claim(app) == [high[0]]
    says(app, age=30)
    assert claim(app) == [lowest[0]]
    says(app, age=100)
    assert claim(app) == [low[0]]
    says(app, age=1000)
    assert claim(app) == [high[1]]
    says(app)
    assert one(app, "SELECT AGE_MS FROM QUEUE_POLICY WHERE QUEUE = 'mail'") is None
    assert claim(app) == [high[2]]
    assert len(claim(app, 100)) == 4


@pytest.mark.parametrize("most", [1, 7])
def test_claims_keep_to_the_order_as_closely_as_they_promise(app, most):
    """Of 150 tasks, to a tenth of the age, or half of what one claim takes; none is left, none is taken twice."""
    says(app, age=AGE)
    chance = random.Random(most)
    ids = put(app, *[(chance.choice([0, 0, 1, 2, 5]), chance.uniform(0, 400)) for _ in range(150)])
    found = rows(app, "SELECT ID, START_TIME, PRIORITY FROM QUEUE_TASK")
    keys = {each: start.timestamp() - priority * AGE for each, start, priority in found}
    waiting = dict(keys)
    while taken := claim(app, most):
        first = min(waiting.values())
        for each in taken:
            del waiting[each]
        last = max(keys[each] for each in taken)
        assert last <= min(waiting.values(), default=last) + max(AGE / 10, (last - first) / 2) + 0.01
    assert waiting == {}
    assert len(keys) == len(ids)


def test_more_priorities_than_a_claim_looks_at_are_claimed_as_well(app):
    says(app, age=AGE)
    execute(
        app,
        f"""EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
            WHILE (I < 1200) DO BEGIN
                INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME,
                    CONTENT_TYPE, PAYLOAD)
                VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'note', 'mail', 0, 5 * :I, {NOW}, {NOW},
                    'application/json', '[[],{{}}]');
                I = I + 1;
            END END""",
    )
    assert len(claim(app, 2000)) == 1200


def test_idle_work_does_not_age(app):
    says(app, age=1)
    idle, lowest = put(app, (-9999, 1e8), (-9998, 0))
    assert claim(app, idle=False) == [lowest]
    assert claim(app, idle=False) == []
    assert claim(app) == [idle]


def test_tasks_at_the_ends_of_time_are_claimed(app):
    says(app, age=3e9)
    ids = put(app, (9999, 0), (-9998, 0), (0, 0))
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = TIMESTAMP '0001-01-01' WHERE ID = ?", ids[0])
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = TIMESTAMP '9999-12-31 23:59:59.9999' WHERE ID = ?", ids[1])
    assert claim_one_by_one(app) == [ids[0], ids[2], ids[1]]


def test_what_another_transaction_holds_is_passed_over(app):
    says(app, age=AGE)
    first, second, third = put(app, (0, 100), (1, 30), (1, 20))
    with app.connect() as other:
        other.cursor().execute("SELECT ID FROM QUEUE_TASK WHERE ID = ? WITH LOCK", (first,)).fetchall()
        assert claim(app, 2) == [second, third]
        other.rollback()
    assert claim(app) == [first]


@pytest.mark.usefixtures("url")  # a database of its own: MON$ shows what other tests prepared
def test_the_first_task_of_each_priority_is_found_by_the_index(app):
    says(app, age=AGE)
    put(app, (0, 0))
    with closing(app.database.open()) as session:
        session.run(lambda t: tasks.claim(t, 1, "mail", 1))
        found = [plan for plan in plans(session, "FBTASKS_WORKER.AGED") if "QUEUE_TASK" in plan]
    assert len(found) == 2
    for plan in found:
        assert re.search(r'Index "QUEUE_TASK_CLAIM" Range Scan \(lower bound: [34]/5, upper bound: [23]/5\)', plan)
        assert "Sort" not in plan


def test_expired_tasks_end_on_the_way(app):
    says(app, age=AGE)
    gone, stays = put(app, (0, 100), (1, 0))
    execute(app, f"UPDATE QUEUE_TASK SET EXPIRE_TIME = DATEADD(-1 SECOND TO {NOW}) WHERE ID = ?", gone)
    assert claim(app, 2) == [stays]
    assert one(app, "SELECT STATE FROM QUEUE_HISTORY WHERE ID = ?", gone) == 12


@pytest.mark.parametrize("most", [1, 10])
def test_a_task_behind_a_limit_is_let_in_beside_higher_priorities(app, most):
    says(app, age=AGE)
    app.limit("sms", at_once=1)
    limited = app.task(name="limited", queue="mail", limits={"sms": None})(lambda: None)
    number = int(limited.apply_async(priority=-5).id)
    put(app, *[(5, 0)] * 30)
    taken = []
    for _ in range(200 if most == 1 else 1):
        taken += claim(app, most)
    assert number in taken


def test_changes_of_a_low_priority_have_their_turn_beside_higher_ones(app):
    """When they are old enough: from then on they share the room."""
    subscribe(app, "changes", queue="mail", rank=5)
    for lane in range(60):
        change(app, lane)
    made = "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'changes'"
    put(app, *[(5, 0)] * 100)
    claim(app, 10)
    assert one(app, made) == 0
    says(app, age=AGE)
    claim(app, 10)
    assert one(app, made) == 0
    execute(app, f"UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-11 * {AGE} SECOND TO RAISE_TIME)")
    for number in range(1, 5):
        assert len(claim(app, 10)) == 10
        assert one(app, made) == 5 * number


def test_an_age_is_shown(app, capsys):
    says(app, age=90)
    (row,) = list_queues(app.database)
    assert (row.queue, row.facts["age"]) == ("mail", 90)
    assert command_line("inspect", "queues", "--url", app.settings.url.reveal()) == 0
    title, line = capsys.readouterr().out.splitlines()
    assert title.split()[-1] == "AGE"
    assert line.split()[-2:] == ["90", "s"]
