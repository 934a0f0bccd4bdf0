"""What the code has and the database not so: ``health -A`` and a worker's log tell it until it is put right."""

import json
import re
from collections import Counter
from contextlib import closing

import pytest
from support import sources
from support.duties import Worker
from support.loops import opened
from support.programs import command_line
from support.sources import apply
from support.sql import adopt, execute, rows

from fbtasks import FBTasks
from fbtasks.errors import StatementRefused
from fbtasks.features.sources.deploy import applying
from fbtasks.features.sources.deployment import Deployment
from fbtasks.firebird.session import Transaction
from fbtasks.queue.operations.workers import get_health

TABLE = "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(20))"
NO_TABLE = "the database has no table 'ORDERS'. Create it first."
NO_TRIGGER = "it has no trigger yet"


@pytest.fixture
def app(url):
    """An app whose workers deploy what they can, on a server, too."""
    app = FBTasks("test", url, auto_migrate=True)
    app.path = "shop"
    with app.database.session() as session:
        adopt(session)
    yield app
    app.close()


def start(app, queues=("default",)):
    """What a worker does for its sources, when it has started."""
    duty = Deployment(app, Worker(queues))
    with app.database.session() as session:
        duty.begin(session)
    look(app, duty)
    return duty


def look(app, duty):
    """A minute later."""
    with app.database.session() as session:
        duty.do(session)


def told(app):
    """What ``fbtasks health -A`` says of subscriptions: task, app and problem."""
    found = get_health(app.database, 300).problems["sources"]
    named = [(re.fullmatch(r"subscription (\S+)(?: \(app (.*)\))?", each.what), each.problem) for each in found]
    suffix = " (fbtasks subscriptions apply)"
    return [(*match.groups(), problem.removesuffix(suffix)) for match, problem in named if match]


def listed(app):
    found = sources.listed(app, app.features["sources"].feeds())
    return [(row.id, row.name, row.app, row.state, row.problems) for row in found]


def changed(app, table="ORDERS", **options):
    app.on_change(table, name="paid", **{"insert": True, **options})(id)


def test_a_table_that_is_not_there_is_told_until_it_is_deployed(app, url):
    changed(app)
    start(app)
    assert told(app) == [("paid", "test", NO_TABLE.rstrip("."))]
    assert not get_health(app.database, 300).healthy
    assert listed(app) == [(None, "paid", "test", "undeployed", [NO_TABLE])]
    (loaded,) = sources.inspected(app, app.features["sources"].feeds())
    assert (loaded.state, loaded.problems, loaded.waiting, loaded.kind) == ("undeployed", [NO_TABLE], 0, "change")
    execute(app, TABLE)
    assert told(app) == [("paid", "test", NO_TRIGGER)]
    with closing(FBTasks("fbtasks", url)) as without_code:
        assert told(without_code) == listed(without_code) == []
    assert apply(app).problems == {}
    assert told(app) == []
    assert listed(app) == [(1, "paid", "test", "active", [])]


def test_a_worker_that_does_not_deploy_tells_of_triggers_that_are_not_there(app, url, caplog):
    execute(app, TABLE)
    other = FBTasks("test", url, auto_migrate=False)
    other.path = "shop"
    changed(other)
    duty = start(other)
    said = f"Subscription paid: {NO_TRIGGER}. Run: fbtasks subscriptions apply -A shop"
    assert caplog.messages == [said]
    look(other, duty)
    assert caplog.messages == [said] * 2
    assert told(other) == [("paid", "test", NO_TRIGGER)]
    apply(other)
    look(other, duty)
    assert caplog.messages == [said] * 2
    assert told(other) == []
    other.close()


LATE = """
    from fbtasks.features.sources import deployment
    deployment.PERIOD = 0.2

    @app.on_change("ORDERS", insert=True, name="paid")
    def paid(change):
        with open("ledger", "a") as ledger:
            print(change.key["ID"], file=ledger)
"""


@pytest.mark.acceptance
@pytest.mark.embedded("on a server no worker makes triggers unasked")
def test_a_worker_makes_the_trigger_of_a_table_that_comes_later(project, wait_for):
    project.write(LATE)
    with closing(FBTasks("late", project.url, auto_migrate=True)) as app:
        app.migrate()
        project.worker("--pool", "solo", "-c", "1")
        wait_for(lambda: NO_TABLE in project.logs())
        execute(app, TABLE)
        wait_for(lambda: "Subscription paid (change of ORDERS): create." in project.logs())
        execute(app, "INSERT INTO ORDERS (ID) VALUES (7)")
        wait_for(lambda: project.lines() == ["7"])
    assert NO_TRIGGER not in project.logs()
    project.run("subscriptions", "drop", "paid", "-y")
    wait_for(lambda: NO_TRIGGER in project.logs())
    assert project.logs().count("(change of ORDERS)") == 1  # what an operator has dropped stays dropped


def test_a_definition_that_changed_is_told_beside_its_subscription(app, url, caplog):
    execute(app, TABLE)
    changed(app)
    apply(app)
    other = FBTasks("test", url, auto_migrate=False)
    changed(other, update=True)
    duty = start(other)
    said = "the definition has changed; its trigger is made in another way, since the definition, the table or fbtasks "
    said += "has changed"
    assert told(other) == [("paid", "test", said)]
    assert listed(other) == [(1, "paid", "test", "active", [said])]
    execute(app, "ALTER TRIGGER QUEUE_ON_1 INACTIVE")
    inactive = said.replace("; ", "; its trigger is inactive; ", 1)
    assert told(other) == [("paid", "test", inactive)]
    assert told(app) == [("paid", "test", "its trigger is inactive")]
    look(other, duty)
    assert [each.partition(". Run")[0] for each in caplog.messages] == [
        f"Subscription paid: {each}" for each in (said, inactive)
    ]
    apply(app)
    assert (told(app), told(other)) == ([], [("paid", "test", said)])
    apply(other)
    assert told(other) == []
    other.close()


@pytest.mark.parametrize("newer", [False, True])
def test_a_refused_definition_is_deployed_later_unless_another_one_was(app, url, newer):
    execute(app, TABLE)
    with closing(FBTasks("test", url, auto_migrate=True)) as former:
        changed(former)
        apply(former)
    changed(app, columns=("TOTAL",))
    duty = start(app)
    with closing(FBTasks("test", url, auto_migrate=True)) as other:
        if newer:
            changed(other, update=True)
            apply(other)
        execute(app, "ALTER TABLE ORDERS ADD TOTAL INTEGER")
        look(app, duty)
        assert told(other if newer else app) == []


def test_a_refused_poll_is_told_until_its_table_has_the_column(app, caplog):
    execute(app, TABLE)
    app.poll_table("ORDERS", key="ID", columns="TOTAL", name="served")(id)
    app.poll_table("ORDERS", key="ID", columns="TOTAL", queue="other", name="elsewhere")(id)
    duty = start(app)
    said = "the table 'ORDERS' has no column 'TOTAL'"
    assert told(app) == [("elsewhere", "test", said), ("served", "test", said)]
    # What the worker polls itself it says where it polls.
    assert caplog.messages == [f"Subscription elsewhere: {said}. Run: fbtasks subscriptions apply -A shop"]
    execute(app, "ALTER TABLE ORDERS ADD TOTAL INTEGER")
    apply(app)
    look(app, duty)
    assert told(app) == []
    assert len(caplog.messages) == 1


def test_a_handler_of_an_event_that_is_refused_is_told(app, monkeypatch, caplog):
    app.on_event("order.paid", name="mail")(id)

    def refused(*given, **options):
        raise StatementRefused("not today")

    with monkeypatch.context() as patch:
        patch.setattr(applying.subscriptions, "subscribe", refused)
        duty = start(app)
        look(app, duty)
        assert told(app) == [("mail", "test", "it is not registered yet")]
    assert [each.partition(". Run")[0] for each in caplog.messages] == ["Subscription mail: not today"] * 2
    look(app, duty)
    assert len(caplog.messages) == 2
    assert told(app) == []


def test_code_that_is_back_is_told(app, url):
    execute(app, TABLE)
    changed(app)
    apply(app)
    with closing(FBTasks("test", url)) as without:
        apply(without)
        assert told(without) == []
    assert told(app) == [("paid", "test", "its code is back")]


def test_a_task_of_another_app_is_told_as_a_problem(app, url):
    other = FBTasks("other", url)
    changed(app)
    changed(other)
    assert [each[:2] for each in told(other)] == [("paid", "other")]
    execute(app, TABLE)
    apply(app)
    ((*named, problem),) = told(other)
    assert named == ["paid", "other"]
    assert problem.startswith("a source feeds the task 'paid' of the app 'other', and already one of 'test'.")
    assert [(app_name, state) for _, _, app_name, state, _ in listed(other)] == [
        ("test", "active"),
        ("other", "undeployed"),
    ]
    assert told(app) == []
    other.close()


def test_a_refusal_is_logged_once_a_minute_in_one_message(app, caplog):
    changed(app, when="new.STATSU = 'x'")
    execute(app, TABLE)
    duty = start(app)
    (first,) = caplog.messages
    assert first.startswith("Subscription paid: on_change('ORDERS'): when=")
    assert "does not compile" in first
    assert first.endswith(" as new.COLUMN. Run: fbtasks subscriptions apply -A shop")
    look(app, duty)
    assert caplog.messages == [first] * 2


def test_a_look_at_what_is_deployed_is_two_statements(app, monkeypatch):
    seen = Counter()
    rows_of = Transaction.rows

    def counted(transaction, name, *given, **more):
        seen[name] += 1
        return rows_of(transaction, name, *given, **more)

    Deployment(app, Worker()).do(None)  # asks the database nothing
    execute(app, TABLE)
    changed(app)
    app.on_event("order.paid", name="mail")(id)
    duty = start(app)
    monkeypatch.setattr(Transaction, "rows", counted)
    for _ in range(3):
        look(app, duty)
    assert seen == {"subscriptions": 3, "source_triggers": 3}


def test_a_worker_tells_it_at_its_start(app, caplog):
    changed(app)
    execute(app, TABLE.replace("ORDERS", "INBOX"))
    app.poll_table("INBOX", key="ID", when="TOTAL > 5", name="poll")(id)
    with opened(app, name="short", burst=True) as loop:
        loop.run()
    (paid, poll) = told(app)
    assert paid == ("paid", "test", NO_TABLE.rstrip("."))
    assert poll[:2] == ("poll", "test")
    assert poll[2].startswith("poll_table('INBOX'): when='TOTAL > 5' does not compile (")
    said = [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname != "INFO"]
    assert sorted(said) == ["Polling INBOX for poll fails", "Subscription paid"]


def test_the_command_line_tells_it_with_the_code_alone(app, url, capsys, tmp_path, monkeypatch):
    (tmp_path / "shop_of_test.py").write_text(
        f"from fbtasks import FBTasks\napp = FBTasks('test', {url!r})\n"
        "app.on_change('ORDERS', insert=True, name='paid')(id)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app.migrate()
    app.close()
    assert command_line("health", "-A", "shop_of_test") == 1
    no_table = NO_TABLE.rstrip(".")
    assert f"subscription paid (app test): {no_table} (fbtasks subscriptions apply)\n" in capsys.readouterr().out
    assert command_line("doctor", "-A", "shop_of_test", "--json") == 1
    found = {each["id"]: each["finding"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["undeployed"] == f"subscription paid (app test): {no_table}"
    assert command_line("health", "--url", url) == 1  # no worker is alive
    assert "paid" not in capsys.readouterr().out
    for command in (["subscriptions", "list"], ["inspect", "sources"]):
        assert command_line(*command, "-A", "shop_of_test") == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "undeployed" in out
        assert no_table in out
        assert command_line(*command, "--url", url) == 0
        assert "undeployed" not in capsys.readouterr().out
    assert rows(app, "SELECT NAME FROM QUEUE_SUBSCRIPTION") == []
