"""The line that says which tasks are looked for, and the pages that it finds."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from support.draining import drain
from support.registering import register
from support.sql import execute, one, rows

from fbtasks import chain
from fbtasks.errors import ConfigurationError
from fbtasks.features.web import lanes, search
from fbtasks.features.web.query import Query
from fbtasks.features.web.search import parse
from fbtasks.features.web.showing import Arguments
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing
from fbtasks.states import State
from fbtasks.tasks.call import Reason, Requeue

pytestmark = pytest.mark.emptied


# The line.


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("", Query()),
        ("state:failed,cancelled  queue:mail", Query(state=("failed", "cancelled"), queue="mail")),
        (
            'name:shop.* worker:w1@* error:"timed out" since:1h until:2026-01-31T14:05',
            Query(name="shop.*", worker="w1@*", error="timed out", since="1h", until="2026-01-31T14:05"),
        ),
        (
            'why:limit "two words" arg.order:4711 arg.to.zip:"1 0" one "x:y" "say \\"no\\\\\\""',
            Query(
                why="limit", words=("two words", "one", "x:y", 'say "no\\"'), arg=(("order", "4711"), ("to.zip", "1 0"))
            ),
        ),
        ("id:order-17", Query(id="order-17")),
    ],
)
def test_a_line_is_read_and_written(line, query):
    assert parse(line) == query
    assert parse(str(query)) == query
    assert str(parse(str(query))) == str(query)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stat:failed", r"^stat: is nothing that tasks are looked for by. Did you mean 'state'\? Known: state, queue"),
        ("state:faild", r"^state:faild is unknown. Did you mean 'failed'\?"),
        ("state:failed,ready", "has tasks that have ended, and such that have not: look for them one after the other"),
        ("why:limits", r"^why:limits is unknown. Did you mean 'limit'\?"),
        ("why:limit state:ready", "^why:limit keeps no task that is ready: leave the state out, or take held"),
        ("id:3 state:failed", "^id:3 is one task: leave out all else"),
        (
            "since:999999w",
            "^'999999w' is no time",
        ),
        (
            "until:9999-12-31T23:59-14:00",
            "^'9999-12-31T23:59-14:00' is no time",
        ),
        (
            "since:yesterday",
            "^'yesterday' is no time: give 30m, 2h or 7d ago, or a time in UTC such as 2026-01-31T14:05",
        ),
        ("queue:a/b", "^'a/b' is not a queue name"),
        ("queue:a queue:b", "^queue: is given twice: leave out queue:b"),
        ("state:", "^state: has no value"),
        ('error:"timed', "has a quote that does not end"),
        (f"name:{'x' * 501}", "is longer than 500 characters"),
    ],
)
def test_what_a_line_cannot_mean_is_refused(line, said):
    with pytest.raises(ConfigurationError, match=said):
        parse(line)


# Pages.

LIVE = """
    INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CONTENT_TYPE, PAYLOAD)
        VALUES (?, ?, ?, ?, ?, QUEUE_NOW(), ?, 'application/json', '[[],{}]')"""
ENDED = """
    INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME, TRY_COUNT,
            CRASH_COUNT, CONTENT_TYPE)
        VALUES (?, ?, ?, ?, ?, QUEUE_NOW(), QUEUE_NOW(), ?, 1, 0, 'application/json')"""
TIME = datetime(2030, 1, 1)


def walk(app, line, most):
    """The ids on all pages. None of them looks at more than it may."""
    found, cursor, pages = [], None, 0
    with app.database.session() as session:
        while True:
            page = search.page(app.database, session, parse(line), Arguments(app, (), hidden=False), cursor, most)
            assert len(page.rows) <= most
            assert page.next is not None or not page.more
            found += [row.id for row in page.rows]
            if page.next is None:
                return found, pages
            assert page.next != cursor
            cursor, pages = page.next, pages + 1


@pytest.mark.parametrize("looks", [10_000, 7])
@pytest.mark.parametrize("few", [1000, 2])
def test_pages_have_each_task_once_and_in_order(app, monkeypatch, looks, few):
    """Whatever times, ranks and queues they share, and however few are looked at for one page."""
    monkeypatch.setattr(search, "LOOKS", looks)
    monkeypatch.setattr(lanes, "FEW", few)
    app.migrate()
    chosen = random.Random(looks)
    with app.connect() as connection, connection.cursor() as cursor:
        for sql, states in ((LIVE, (0, 1, 4)), (ENDED, (10, 11, 12))):
            for number in chosen.sample(range(1000), 60):  # which are not in the order of their rows
                moment = TIME + timedelta(milliseconds=chosen.choice((0, 1, 2, 500)))
                name, queue = chosen.choice(("a", "b")), chosen.choice(("q", "q!", "qq", "r"))
                cursor.execute(sql, (number, name, queue, chosen.choice(states), chosen.choice((-1, 0, 1)), moment))
        connection.commit()
    execute(app, "UPDATE QUEUE_TASK SET WORKER_ID = NULL")
    sorts = {
        "state:ready": ("QUEUE_TASK WHERE STATE = 0", "PRIORITY_RANK, START_TIME, ID"),
        "state:waiting name:a": ("QUEUE_TASK WHERE NAME = 'a'", "PRIORITY_RANK, START_TIME, ID"),
        "state:scheduled": ("QUEUE_TASK WHERE STATE = 1", "START_TIME, ID"),
        "state:scheduled name:b queue:qq": (
            "QUEUE_TASK WHERE STATE = 1 AND NAME = 'b' AND QUEUE = 'qq'", "START_TIME, ID",
        ),
        "": ("QUEUE_HISTORY", "FINISH_TIME DESC, ID DESC"),
        "state:failed,succeeded name:a": (
            "QUEUE_HISTORY WHERE STATE < 12 AND NAME = 'a'", "FINISH_TIME DESC, ID DESC",
        ),
        "since:2030-01-01T00:00:00.002": (
            "QUEUE_HISTORY WHERE FINISH_TIME >= '2030-01-01 00:00:00.002'", "FINISH_TIME DESC, ID DESC",
        ),
        "state:scheduled until:2030-01-01T00:00:00.001": (
            "QUEUE_TASK WHERE STATE = 1 AND START_TIME <= '2030-01-01 00:00:00.001'", "START_TIME, ID",
        ),
    }  # fmt: skip
    for line, (table, order) in sorts.items():
        wanted = [number for (number,) in rows(app, f"SELECT ID FROM {table} ORDER BY {order}")]
        assert wanted
        for most in (4, 50):
            found, _ = walk(app, line, most)
            assert found == wanted, (line, most)


def test_a_task_that_moves_while_a_page_is_read_is_on_it_once(app, session, monkeypatch):
    monkeypatch.setattr(search, "LOOKS", 13)
    task = app.task(name="a")(print)
    app.send_task("b", queue="other")
    task.delay_many([()] * 7)
    look, looks = lanes.Lanes.look, []

    def look_and_move(*given):
        found = look(*given)
        looks.append([key[-1] for key in found.found])
        execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(1 HOUR TO START_TIME) WHERE NAME = 'b'")
        return found

    monkeypatch.setattr(lanes.Lanes, "look", look_and_move)
    page = search.page(app.database, session, parse("state:ready name:b"), Arguments(app, (), hidden=False), None, 5)
    assert looks[:2] == [[1], [1]]
    assert [row.id for row in page.rows] == [1]


def test_a_bounded_look_says_how_far_it_came(app, session, monkeypatch):
    monkeypatch.setattr(search, "LOOKS", 10)
    app.task(name="t")(lambda: 1).delay_many([()] * 30)
    drain(app)
    page = search.page(
        app.database, session, parse("state:succeeded name:none"), Arguments(app, (), hidden=False), None, 5
    )
    assert (page.rows, page.more) == ([], False)
    (tenth,) = rows(app, "SELECT FIRST 1 SKIP 9 FINISH_TIME, ID FROM QUEUE_HISTORY ORDER BY FINISH_TIME DESC, ID DESC")
    assert page.searched_to == tenth[0].replace(tzinfo=UTC)
    assert page.next.endswith(f".{tenth[1]}")
    page = search.page(app.database, session, parse("name:t"), Arguments(app, (), hidden=False), None, 5)
    assert (len(page.rows), page.more, page.searched_to) == (5, True, None)


@pytest.mark.parametrize("cursor", ["", "1", "1.2.3", "a.b", "1.2;DROP", f"{10**17}.1", f"-{10**17}.1"])
def test_a_cursor_of_another_list_is_refused(app, session, cursor):
    with pytest.raises(ConfigurationError, match=r"begin with the first (one|page)\.$"):
        search.page(app.database, session, parse("state:failed"), Arguments(app, (), hidden=False), cursor)


def found(app, line):
    """The names of the tasks that a line finds."""
    with app.database.session() as session:
        page = search.page(app.database, session, parse(line), Arguments(app, (), hidden=False))
        assert page.next is None
        return sorted(row.name for row in page.rows)


def test_qualifiers_and_words(app):
    @app.task(name="shop.mail", max_retries=0)
    def mail(to, number, **more):
        raise TimeoutError("the Mail server has 100% load") if number else ValueError("nobody")

    app.task(name="shop.bill", queue="bills")(lambda order: order).delay({"id": 4711, "lines": [{"sku": "ä 1"}]})
    app.task(name="shopxbill", queue="bills")(lambda order: order).delay("x" * 3000)
    app.task(name="shop.many", queue="many")(lambda one, *others: None).delay("first", "second", "third")
    mail.delay("ann@example.org", 17, zip="1010", flag=True)
    mail.apply_async(("bob@example.org",), {"number": 0}, task_id="order-17")
    drain(app)
    number = one(app, "SELECT ID FROM QUEUE_HISTORY WHERE NAME = 'shop.bill'")
    worker = one(app, "SELECT FIRST 1 WORKER FROM QUEUE_HISTORY")
    mails = ["shop.mail", "shop.mail"]
    for line, names in {
        "state:failed": mails,
        "name:shop.*": ["shop.bill", *mails, "shop.many"],
        "name:shop.bill": ["shop.bill"],
        "name:shop_bill": [],
        "queue:bills state:succeeded": ["shop.bill", "shopxbill"],
        "error:timeouterror": ["shop.mail"],
        'error:"mail SERVER"': ["shop.mail"],
        "100% load": ["shop.mail"],
        "BILL": ["shop.bill", "shopxbill"],
        f'worker:"{worker}"': ["shop.bill", *mails, "shop.many", "shopxbill"],
        "worker:nobody*": [],
        "since:1h": ["shop.bill", *mails, "shop.many", "shopxbill"],
        "until:1h": [],
        f"id:{number}": ["shop.bill"],
        "id:order-17": ["shop.mail"],
        "id:4000000": [],
        "arg.number:17": ["shop.mail"],
        "arg.1:17": ["shop.mail"],
        "arg.number:0": ["shop.mail"],
        "arg.0:first arg.2:third": ["shop.many"],
        "arg.number:1": [],
        "arg.zip:1010 arg.flag:true": ["shop.mail"],
        "arg.order.id:4711": ["shop.bill"],
        'arg.order.lines.0.sku:"ä 1"': ["shop.bill"],
        f"arg.order:{'x' * 500}": [],
    }.items():
        assert found(app, line) == names, line
    page_of_large = found(app, "name:shopxbill arg.0:y")
    assert page_of_large == []


def test_why_tasks_wait(app, session, claim, end, monkeypatch):
    app.limit("sms", at_once=1)
    other_day = (datetime.now(UTC) + timedelta(days=3)).strftime("%a").lower()
    app.queue("night", run_between=("00:00", "01:00"), days=other_day, tz="UTC")
    app.queue("day", run_between=("00:00", "24:00"))
    made = {
        name: app.task(name=name, **options)(lambda key=1: None)
        for name, options in {
            "limited": {"limits": "sms", "queue": "limited"},
            "ordered": {"ordered": "key", "queue": "ordered"},
            "night": {"queue": "night"},
            "day": {"queue": "day"},
            "paused": {"queue": "paused"},
            "name_paused": {"queue": "plain"},
            "unknown": {"queue": "plain"},
            "unserved": {"queue": "nowhere"},
            "first": {"queue": "plain"},
        }.items()
    }
    app.migrate()
    register(app, queues=["plain", "limited", "ordered", "night", "day", "paused"])
    for task in made.values():
        task.delay()
        task.delay()
    chain(made["first"].s(), made["first"].si()).delay()
    for queue in ("limited", "ordered"):
        for _ in range(3):
            session.run(lambda t: tasks.claim(t, 1, queue, 2))  # noqa: B023
    pausing.pause(app.database, queues=["paused"], names=["name_paused"])
    for each in claim(queue="plain"):
        end([each], Requeue(Reason.PARKED if each.name == "unknown" else Reason.RELEASE))
    for line, names in {
        "why:limit": ["limited", "ordered"],
        "why:key": ["ordered"],
        "why:closed": ["night", "night"],
        "why:paused": ["name_paused", "name_paused", "paused", "paused"],
        "why:unknown": ["unknown", "unknown"],
        "why:unserved": ["unserved", "unserved"],
        "why:steps": ["first"],
        "why:unserved queue:plain": [],
        "state:running worker:w@*": ["limited", "ordered"],
        "state:running worker:other": [],
        "state:held": ["limited", "ordered"],
    }.items():
        assert found(app, line) == names, line
    page = search.page(app.database, session, parse("state:held queue:limited"), Arguments(app, (), hidden=False))
    assert [(row.state, row.waits_for) for row in page.rows] == [(State.HELD, ["sms"])]
